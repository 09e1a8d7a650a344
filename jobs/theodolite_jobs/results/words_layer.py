"""What one Dask task does with one layer's circuits: say them in tokens. Tables hold token ids; texts come later."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from theodolite_jobs.results.circuits import read_circuits
from theodolite_jobs.statistics.circuits import Circuits
from theodolite_jobs.statistics.norms import Norm, norm_of, normalised, projected
from theodolite_jobs.statistics.words import (
    Request,
    Rows,
    Tops,
    alignment,
    meeting_bias,
    standard_rows,
    top_tokens,
    with_bias,
)

if TYPE_CHECKING:
    from theodolite_jobs.models.weights import Weights

LAYER_SUM = -1
"""Stands for the head in rows that are about all heads of a layer together."""

READING = ("qk left", "qk right", "vo left")
"""The vectors that meet what attention reads; `vo right` meets what it writes to."""

BOTH_ENDS = ("top", "bottom")

Frames = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Wording:
    """How circuits are put into words.

    Attributes:
        count: tokens in a list.
        n_tokens: rows of the vocabulary that the tokenizer knows.
        nouns: token ids of the nouns.
        noun_embeddings: the same as they enter the first block, (noun, d_model).
        fold_norm: whether circuits have the norm that attention reads through in them.
        tied: whether the unembedding is the embedding.
    """

    count: int
    n_tokens: int
    nouns: NDArray[np.int64]
    noun_embeddings: NDArray[np.float64]
    fold_norm: bool
    tied: bool


def layer_words(weights: "Weights", layer: int, wording: Wording, vectors: Mapping[str, NDArray[np.float32]]) -> Frames:
    """Return one layer's rows of each table.

    Args:
        weights: the model's weights on disk.
        layer: which block.
        wording: how many tokens, which nouns.
        vectors: leading singular vectors, (head, vector, d_model), by `READING` and `vo right`.
    """
    circuits = read_circuits(weights, layer, fold_norm=wording.fold_norm)
    norm, stream = circuits.input_norm, wording.noun_embeddings
    read = stream if norm is None else normalised(stream, norm)
    biases = _bias_vectors(circuits)
    of_vectors, of_nouns, of_biases = _against_read(
        weights, circuits, wording, [vectors[name] for name in READING], read, list(biases.values())
    )
    written = Request(vectors["vo right"], BOTH_ENDS)
    (of_written,) = top_tokens(weights.embedding, wording.n_tokens, [written], wording.count)
    bias = weights.unembedding_bias()
    values = Request(meeting_bias(_values(weights, layer, circuits, stream, read), bias), ("top",))
    decoded = [values] if wording.tied else [values, written]
    logits = with_bias(weights.unembedding, bias)
    of_values, *untied = top_tokens(logits, wording.n_tokens, decoded, wording.count)
    heads = [_head_rows(layer, name, tops, "read") for name, tops in zip(READING, of_vectors, strict=True)]
    heads += [_head_rows(layer, "vo right", of_written, "embedding")]
    heads += [_head_rows(layer, "vo right", tops, "unembedding") for tops in untied]
    each = np.arange(len(circuits.query))
    frames = {
        "head_tokens": pd.concat(heads, ignore_index=True),
        "noun_keys": _noun_rows(layer, each, wording.nouns, of_nouns),
        "noun_values": _noun_rows(layer, np.append(each, LAYER_SUM), wording.nouns, of_values["top"]),
        "noun_alignment": _alignment_rows(layer, read, circuits, wording.nouns),
    }
    if biases:
        rows = [_bias_rows(layer, side, tops) for side, tops in zip(biases, of_biases, strict=True)]
        frames["bias_tokens"] = pd.concat(rows, ignore_index=True)
    return frames


def embedded(weights: "Weights") -> Rows:
    """Return token embeddings as they enter the first block, positions left out: scaled and normalised as it does."""
    from theodolite_jobs.models.weights import embedding_scale

    scale, stored = embedding_scale(weights.config), weights.embedding_norm()
    norm = None if stored is None else norm_of(stored, weights.dimensions.d_model)

    def rows(some: slice) -> torch.Tensor:
        table = weights.embedding(some) * scale
        return table if norm is None else torch.from_numpy(normalised(table.numpy(), norm).astype(np.float32))

    return rows


def output_norm_of(weights: "Weights", layer: int) -> Norm | None:
    """Return the norm before the vocabulary; in post-norm blocks, which have none, the one after attention."""
    final = weights.final_norm()
    if final is None and weights.anatomy.post_norm:
        final = weights.norm(layer, "attention_output")
    return None if final is None else norm_of(final, weights.dimensions.d_model)


def _against_read(
    weights: "Weights",
    circuits: Circuits,
    wording: Wording,
    vectors: Sequence[NDArray[np.float32]],
    read: NDArray[np.float64],
    biases: Sequence[NDArray[np.float64]],
) -> tuple[list[dict[str, Tops]], Tops, list[dict[str, Tops]]]:
    """Return the best tokens of vectors, of the nouns as queries, and of bias probes, as attention reads tokens.

    The table is swept once. With standardised rows n, a token is read as n·scale + bias, so a vector meets n in its
    product with the scale, and the bias raises all its scores alike. The tokens' keys stand beside their rows.
    """
    norm, d_model = circuits.input_norm, weights.dimensions.d_model
    keys = circuits.key.transpose(1, 0, 2).reshape(d_model, -1)
    scale = np.ones(d_model) if norm is None else norm.scale
    bias = np.zeros(d_model) if norm is None else norm.bias
    plain = embedded(weights) if norm is None else standard_rows(embedded(weights), norm)
    to_keys = torch.from_numpy((keys.T * scale).T.astype(np.float32))
    all_keys_bias = torch.from_numpy((bias @ keys).astype(np.float32))

    def rows(some: slice) -> torch.Tensor:
        table = plain(some)
        return torch.cat([table, table @ to_keys + all_keys_bias], dim=1)

    looked_up: list[NDArray[Any]] = [*vectors, *(vector[:, None] for vector in biases)]
    requests = [Request(one * scale, BOTH_ENDS) for one in looked_up]
    queries = read @ circuits.query @ circuits.rotations[0]
    for kv_head in range(len(circuits.key)):
        own = queries[circuits.kv_head_of == kv_head]
        requests.append(Request(own, ("top",), d_model + kv_head * own.shape[-1]))
    found = top_tokens(rows, wording.n_tokens, requests, wording.count)
    raised = [
        {end: tops.raised(one @ bias) for end, tops in of_one.items()}
        for one, of_one in zip(looked_up, found, strict=False)
    ]
    of_nouns = [of_kv_head["top"] for of_kv_head in found[len(looked_up) :]]
    nouns = Tops(np.concatenate([one.ids for one in of_nouns]), np.concatenate([one.scores for one in of_nouns]))
    return raised[: len(vectors)], nouns, raised[len(vectors) :]


def _keys(circuits: Circuits) -> NDArray[np.float64]:
    """Return each head's W_K turned as at offset 0, (head, d_model, d_head)."""
    turned: NDArray[np.float64] = circuits.key[circuits.kv_head_of] @ circuits.rotations[0].T
    return turned


def _bias_vectors(circuits: Circuits) -> dict[str, NDArray[np.float64]]:
    """Return W_Q b_Kᵀ, which meets queries, and b_Q W_Kᵀ, which meets keys, (head, d_model), where there are biases."""
    found = {}
    if circuits.key_bias is not None:
        turned = circuits.key_bias[circuits.kv_head_of] @ circuits.rotations[0].T
        found["query"] = np.einsum("hdk,hk->hd", circuits.query, turned)
    if circuits.query_bias is not None:
        found["key"] = np.einsum("hdk,hk->hd", _keys(circuits), circuits.query_bias)
    return found


def _values(
    weights: "Weights", layer: int, circuits: Circuits, stream: NDArray[np.float64], read: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return norm_f(e + what each head, and then all together, add for a word), (head + 1, noun, d_model).

    A head adds ê W_V W_O with its own part of the biases, b_V W_O + b_O; together the output bias counts once. Where
    the family normalises attention's output, every head is divided by the length of the layer's sum.
    """
    out = (read @ circuits.value)[circuits.kv_head_of]
    if circuits.value_bias is not None:
        out = out + circuits.value_bias[circuits.kv_head_of][:, None]
    added = out @ circuits.output.transpose(0, 2, 1)
    bias = 0.0 if circuits.output_bias is None else circuits.output_bias
    together = added.sum(axis=0) + bias
    added = np.concatenate([added + bias, together[None]])
    norm = circuits.output_norm
    if norm is not None:
        variance = (projected(together, norm) ** 2).mean(axis=-1, keepdims=True)
        added = projected(added, norm) / np.sqrt(variance + norm.epsilon) * norm.scale + norm.bias
    final, moved = output_norm_of(weights, layer), stream + added * circuits.output_scale
    return moved if final is None else normalised(moved, final)


def _head_rows(layer: int, name: str, tops: Mapping[str, Tops], against: str) -> pd.DataFrame:
    circuit, side = name.split()
    parts = []
    for end, of_end in tops.items():
        frame = _rows(of_end, ("head", "vector"))
        frame.insert(0, "layer", np.full(len(frame), layer, dtype=np.int32))
        parts.append(frame.assign(circuit=circuit, side=side, end=end, against=against))
    return pd.concat(parts, ignore_index=True)


def _bias_rows(layer: int, side: str, tops: Mapping[str, Tops]) -> pd.DataFrame:
    parts = [_rows(of_end, ("head", "vector")).assign(end=end) for end, of_end in tops.items()]
    frame = pd.concat(parts, ignore_index=True).drop(columns="vector").assign(side=side)
    frame.insert(0, "layer", np.full(len(frame), layer, dtype=np.int32))
    return frame


def _noun_rows(layer: int, heads: NDArray[np.int64], nouns: NDArray[np.int64], tops: Tops) -> pd.DataFrame:
    frame = _rows(tops, ("head", "noun_id"))
    frame["head"], frame["noun_id"] = heads[frame["head"]].astype(np.int32), nouns[frame["noun_id"]].astype(np.int32)
    frame.insert(0, "layer", np.full(len(frame), layer, dtype=np.int32))
    return frame


def _alignment_rows(
    layer: int, read: NDArray[np.float64], circuits: Circuits, nouns: NDArray[np.int64]
) -> pd.DataFrame:
    parts = []
    for head, key in enumerate(_keys(circuits)):
        found = alignment(read, circuits.query[head], key)
        frame = pd.DataFrame({"layer": layer, "head": head, "noun_id": nouns, "correlation": found["correlation"]})
        frame["nearest_before_id"], frame["nearest_after_id"] = nouns[found["before"]], nouns[found["after"]]
        parts.append(frame.assign(own_rank=found["own_rank"]))
    whole = pd.concat(parts, ignore_index=True)
    return whole.astype({name: np.int32 for name in whole.columns if name != "correlation"})


def _rows(tops: Tops, dims: tuple[str, str]) -> pd.DataFrame:
    """Return a row for each place of each list, with its two indices."""
    places = np.indices(tops.ids.shape, dtype=np.int32)
    columns = dict(zip((*dims, "place"), (index.ravel() for index in places), strict=True))
    return pd.DataFrame(
        {**columns, "token_id": tops.ids.ravel().astype(np.int32), "score": tops.scores.ravel().astype(np.float32)}
    )
