"""The analysis `words`: tables of circuits, embeddings and trajectories, decoded into tokens."""

import tempfile
from collections.abc import Sequence
from functools import partial
from operator import call
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from theodolite.errors import UnsupportedModelError
from theodolite.groups import GROUPS
from theodolite.spec_parts import NOUNS, SENTENCES, PromptSetSpec
from theodolite.store.prompts import read_prompts as read_stored_prompts
from theodolite.store.result_reader import read_layer
from theodolite.store.runs import Run
from theodolite.store.tables import append_table
from theodolite_jobs.groups.words.formulas import standardisation
from theodolite_jobs.groups.words.formulas_embeddings import embedding_lengths, embedding_sphere
from theodolite_jobs.groups.words.layer import READ_VECTORS, Decoding, Frames, layer_words
from theodolite_jobs.groups.words.nouns import noun_results, own_key_chance, own_key_shares, spellings_of
from theodolite_jobs.groups.words.trajectories import trajectory_table
from theodolite_jobs.models.anatomy import check_words
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.passes.selections import captured_digest
from theodolite_jobs.prompts.conversations import text_of
from theodolite_jobs.prompts.sources import read_prompts
from theodolite_jobs.results.circuits import input_embeddings, input_norm, vectors_digest
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.results.devices import available_device
from theodolite_jobs.results.token_texts import token_texts
from theodolite_jobs.statistics.norms import Norm
from theodolite_jobs.tasks import Progress, run_tasks, shared


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest: vectors, captured sentences, nouns and options."""
    options = context.spec.words_options.model_dump(mode="json", exclude={"nouns", "sentences"})
    options["nouns"] = _nouns(context.run, context.spec.words_options.nouns)
    sentences = {SENTENCES: context.commits[SENTENCES]} if SENTENCES in context.commits else {}
    rules = {"group": "words", "version": GROUPS["words"].version}
    vectors = vectors_digest(context.spec.heads)
    return {**rules, "vectors": vectors, "sentences": captured_digest(sentences), **options}


def compute(context: Context) -> Result:
    """Return the statistics of nouns, and the tables of tokens, decoded from the stored vectors of `heads`.

    Raises:
        ModelError: the model has no tokenizer.
        UnsupportedModelError: embeddings do not lie in the stream, the files have no language-model head, or the
            family's heads give no outputs for single tokens.
    """
    run, weights, words = context.run, context.weights, context.spec.words_options
    check_words(weights.anatomy, weights.config.model_type)
    tokenizer = context.open_tokenizer(weights)
    if not weights.embeds_into_stream:
        raise UnsupportedModelError("this model projects its embeddings into the stream, so vectors cannot be decoded")
    if not weights.has_unembedding:
        raise UnsupportedModelError("the model's files have no language-model head, so vectors cannot be decoded")
    texts = token_texts(tokenizer, weights.vocabulary_size)
    ids, dropped = single_tokens(tokenizer, _nouns(run, words.nouns))
    rows = input_embeddings(weights)
    width = weights.dimensions.d_model
    noun_rows = np.array([rows(slice(token, token + 1))[0].double().numpy() for token in ids]).reshape(-1, width)
    norm = input_norm(weights, weights.dimensions.n_layers - 1)  # the norms of all layers have the same kind and ε
    decoding = Decoding(
        count=words.tokens,
        n_tokens=len(texts),
        nouns=np.array(ids, dtype=np.int64),
        noun_embeddings=noun_rows,
        fold_norm=context.spec.heads.fold_norm,
        tied=weights.tied,
        standardisation=None if norm is None else standardisation(rows, len(texts), norm),
    )
    with tempfile.TemporaryDirectory() as folder:
        with context.tasks():
            spellings = spellings_of(texts)
            own_keys = _write_layers(run, weights, decoding, texts, spellings, Path(folder), context.progress)
            arrays, noun_tables = noun_results(weights, decoding, context.progress)
            for name, frame in noun_tables.items():
                append_table(Path(folder) / name, _with_texts(frame, texts))
            others = [partial(_tables_of_embeddings, weights, decoding)]
            if SENTENCES in run.record.sets:
                special = tokenizer.all_special_ids
                others.append(partial(_trajectories, run, weights, decoding.n_tokens, special))
            for frames in run_tasks(call, [(other,) for other in others], context.progress, "trajectories"):
                for name, frame in frames.items():
                    append_table(Path(folder) / name, _with_texts(frame, texts))
        tables = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    attributes = {
        "vectors": vectors_digest(context.spec.heads),
        "options": words.model_dump(mode="json"),
        "tables": sorted(tables),
        "tokens": words.tokens,
        "vocabulary": len(texts),
        "nouns": len(ids),
        "nouns_dropped": dropped,
        "own_keys_chance": own_key_chance(decoding.nouns, spellings, words.tokens),
        "decoded_against": _decoded_against(weights, decoding),
    }
    coordinates = {"layer": range(weights.dimensions.n_layers), "head": range(weights.dimensions.n_heads)}
    return Result({**arrays, "own_keys": own_keys}, coordinates, attributes, tables=tables)


def single_tokens(tokenizer: Any, words: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the token ids of single-token words, preferably with a leading space, and the other words."""
    tokens, dropped = [], []
    for word in words:
        spellings = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (f" {word}", word))
        ids = next((ids for ids in spellings if len(ids) == 1), None)
        if ids is None or ids[0] == tokenizer.unk_token_id:
            dropped.append(word)
        elif ids[0] not in tokens:
            tokens.append(int(ids[0]))
    return tokens, dropped


def _nouns(run: Run, name: str) -> list[str]:
    if name in run.record.spec.prompts:
        return [str(text) for text in read_stored_prompts(run, name)["text"]]
    return list(map(text_of, read_prompts(name, PromptSetSpec(source=f"builtin:{NOUNS}"), Path())))


def _decoded_against(weights: Weights, decoding: Decoding) -> list[str]:
    """Return one sentence for each value of `against` in head_tokens."""
    first = "normalised embedding" if weights.embedding_norm() is not None else "embedding"
    has_norm = not weights.anatomy.post_norm and "attention" in weights.anatomy.norms
    norm = "after the norm that precedes the layer's attention" if has_norm else "as attention reads it"
    sentences = [f"the matrix “read” is the {first} {norm}", "the matrix “embedding” is the stored embedding"]
    other = "the matrix “unembedding” is the language-model head, which differs from the embedding"
    return sentences if decoding.tied else [*sentences, other]


def _write_layers(
    run: Run,
    weights: Weights,
    decoding: Decoding,
    texts: NDArray[np.object_],
    spellings: NDArray[np.int64],
    folder: Path,
    progress: Progress,
) -> NDArray[np.float64]:
    """Write the tables of all layers; return the share of nouns that are keys of themselves, (layer, head)."""
    decoding, shares = shared(decoding), []
    arguments = [(run, weights, layer, decoding) for layer in range(weights.dimensions.n_layers)]
    for frames in run_tasks(_words_of_layer, arguments, progress, "words", rounds=1):
        for name, frame in frames.items():
            append_table(folder / name, _with_texts(frame, texts))
        shares.append(own_key_shares(frames["noun_keys"], spellings, weights.dimensions.n_heads))
    return np.stack(shares)


def _words_of_layer(run: Run, weights: Weights, layer: int, decoding: Decoding) -> Frames:
    stored = read_layer(run, "heads", layer).sel(offset=0)
    vectors = {
        f"{circuit} {side}": stored[f"{side}_vectors"].sel(circuit=circuit).values
        for circuit, side in (name.split() for name in (*READ_VECTORS, "ov right"))
    }
    return layer_words(weights, layer, decoding, vectors, available_device())


def _with_texts(frame: pd.DataFrame, texts: NDArray[np.object_]) -> pd.DataFrame:
    """Return a table with a column of texts before each column of token ids."""
    columns = {}
    for name in frame.columns:
        if name.endswith("_id"):
            columns[name.removesuffix("_id")] = texts[frame[name]]
        columns[name] = frame[name].to_numpy()
    return pd.DataFrame(columns)


def _trajectories(run: Run, weights: Weights, n_tokens: int, special: Sequence[int]) -> Frames:
    return {"trajectories": trajectory_table(run, weights, n_tokens, available_device(), special)}


def _tables_of_embeddings(weights: Weights, decoding: Decoding) -> Frames:
    """Return the tables of embeddings, norm_tokens and embedding_sphere."""
    d_model = weights.dimensions.d_model
    plain = Norm(weights.anatomy.norm_kind, 0.0, np.ones(d_model), np.zeros(d_model))
    final = weights.final_norm() or plain
    rows = []
    for measure, values in embedding_lengths(weights.embedding, decoding.n_tokens, final).items():
        order = np.argsort(values, kind="stable")
        for end, ids in (("top", order[::-1]), ("bottom", order)):
            leading = ids[: decoding.count]
            columns = {"measure": measure, "end": end, "place": np.arange(len(leading), dtype=np.int32)}
            columns |= {"token_id": leading.astype(np.int32), "value": values[leading]}
            rows.append(pd.DataFrame(columns))
    sphere = embedding_sphere(weights.embedding, decoding.n_tokens, final)
    return {
        "norm_tokens": pd.concat(rows, ignore_index=True),
        "embedding_sphere": pd.DataFrame(sphere),
    }
