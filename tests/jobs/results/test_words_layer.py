"""One layer's circuits in words, against the whole vocabulary scored with dense matrices and the model's modules."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from support import tiny
from support.each import together
from support.tiny_configs import CONFIGS
from transformers import AutoModel

from theodolite.sites import Site
from theodolite_jobs.groups.words import formulas as words
from theodolite_jobs.groups.words.layer import LAYER_SUM, READ_VECTORS, Decoding, decoding_norm, key_parts, layer_words
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.reference import read_sites
from theodolite_jobs.models.rotary import rotations
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import input_embeddings, input_norm, read_circuits
from theodolite_jobs.statistics.norms import standardised

CPU = torch.device("cpu")
LAYER, KNOWN, COUNT = 2, 61, 5  # the tokenizer knows fewer tokens than the table has rows
NOUNS = np.array([40, 7, 23, 58, 11])
HEADS, VECTORS, WIDTH = 4, 3, 48
ALL_TOKENS = tuple(range(64))
# What is ranked is in float32.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
FAMILIES = [
    "bert",  # post-norm, a norm on embeddings, learned positions
    "bloom",  # a norm on embeddings, biases
    "cohere",  # queries and keys are normalised, LayerNorm
    "falcon_h1",  # attention beside a state space, factors on its input, its keys and its output
    "falcon-groups",  # several heads to a key, biases, parallel
    "gemma2",  # embeddings are scaled, attention's output is normalised
    "gpt2",  # biases, learned positions
    "granite",  # embeddings, scores and branches are scaled; untied
    "llama",  # several heads to a key, biases; untied
    "llama-yarn",  # scaled even at offset 0; biases
    "modernbert",  # a norm on embeddings, and none before the first attention
    "olmo2",  # attention reads the stream itself
]


@dataclass
class Reference:
    """A family's model in float64, and all tokens as it has them.

    Attributes:
        embeddings: as they enter the first block, (token, d_model).
        read: as the layer's attention reads them; with a folded norm, on its sphere.
        query: s·W_Q of each head, with what is folded, likewise `key`; (head, d_model, d_head).
    """

    weights: Weights
    model: Any
    embeddings: np.ndarray
    read: np.ndarray
    query: np.ndarray
    key: np.ndarray
    query_bias: np.ndarray | None
    key_bias: np.ndarray | None
    turned: np.ndarray
    fold_norm: bool

    @property
    def attention(self):
        return self.weights.attention(LAYER)

    @property
    def kv_head_of(self):
        return np.arange(HEADS) // (HEADS // self.weights.dimensions.n_kv_heads)

    @property
    def tied(self):
        return bool(self.weights.config.tie_word_embeddings)


def numpy_of(tensor):
    return tensor.detach().double().numpy()


def embeddings_of(model):
    """Return what the model itself puts into its first block for each token, without what it adds for a position."""
    if model.config.model_type == "bert":
        module = model.module.embeddings
        return numpy_of(module.LayerNorm(module.word_embeddings.weight))
    entering = read_sites(model, ALL_TOKENS, range(-64, 0))[Site.RESID_PRE][:, 0]
    return entering - numpy_of(model.module.wpe.weight[:64]) if model.config.model_type == "gpt2" else entering


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Where each family's model is saved, once."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CONFIGS["llama-yarn"], "attention_bias", True)
        for family in FAMILIES:
            found[family] = tmp_path_factory.mktemp(family)
            tiny.model_with_head(family).save_pretrained(found[family])
    return found


def name_of(param):
    return f"{param[0]}{'-folded' if param[1] else ''}"


@pytest.fixture(
    scope="module",
    params=[(family, bool(index % 2)) for index, family in enumerate(FAMILIES)]
    + [pytest.param((family, not index % 2), marks=pytest.mark.nightly) for index, family in enumerate(FAMILIES)],
    ids=name_of,
)
def reference(request, folders):
    family, fold_norm = request.param
    base = AutoModel.from_pretrained(folders[family], dtype=torch.float64)
    model, weights = wrap(base), Weights(folders[family], base.config)
    anatomy, attention = model.anatomy, weights.attention(LAYER)
    group = HEADS // weights.dimensions.n_kv_heads
    embeddings = embeddings_of(model)
    read, centre = embeddings, np.eye(WIDTH)
    query, key = numpy_of(attention.q), numpy_of(attention.k).repeat(group, 0)
    biases = [None if bias is None else numpy_of(bias) for bias in (attention.q_bias, attention.k_bias)]
    query_bias, key_bias = biases[0], None if biases[1] is None else biases[1].repeat(group, 0)
    if "attention" in anatomy.norms and not anatomy.post_norm:
        stored = weights.norm(LAYER, "attention")
        read = numpy_of(model.blocks[LAYER].get_submodule(anatomy.norms["attention"])(torch.from_numpy(embeddings)))
        if fold_norm:
            if stored.bias.any():
                query_bias = np.einsum("d,hdk->hk", stored.bias, query) + (0 if query_bias is None else query_bias)
                key_bias = np.einsum("d,hdk->hk", stored.bias, key) + (0 if key_bias is None else key_bias)
            read = (read - stored.bias) / stored.scale
            centre = np.eye(WIDTH) - 1 / WIDTH if anatomy.norm_kind == "layer" else centre
            query, key = (centre @ (stored.scale[:, None] * one) for one in (query, key))
    if attention.q_norm is not None:  # its data-dependent divisor is left out
        width = query.shape[-1]
        middle = np.eye(width) - 1 / width if anatomy.norm_kind == "layer" else np.eye(width)
        query = query @ middle * numpy_of(attention.q_norm)[:, None]
        key = key @ middle * numpy_of(attention.k_norm).repeat(group, 0)[:, None]
        assert query_bias is None
    scale = attention.scale
    turned = rotations(model.config, anatomy, LAYER, [0])[0]
    query_bias = None if query_bias is None else scale * query_bias
    return Reference(weights, model, embeddings, read, scale * query, key, query_bias, key_bias, turned, fold_norm)


@pytest.fixture(scope="module")
def vectors():
    drawn = np.random.default_rng(0).normal(size=(4, HEADS, VECTORS, WIDTH)).astype(np.float32)
    return dict(zip((*READ_VECTORS, "ov right"), drawn, strict=True))


def decoding_of(reference, nouns=NOUNS, count=COUNT, known=KNOWN):
    """Return the options of decoding into so many of the known tokens."""
    norm = input_norm(reference.weights, 4)  # the last layer's serves all, as in a survey
    return Decoding(
        count,
        known,
        nouns,
        reference.embeddings[nouns],
        reference.fold_norm,
        reference.tied,
        None if norm is None else words.standardisation(input_embeddings(reference.weights), known, norm),
    )


@pytest.fixture(scope="module")
def frames(reference, vectors):
    decoding = decoding_of(reference)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "BLOCK_TOKENS", 10)
        return layer_words(reference.weights, LAYER, decoding, vectors, CPU)


def test_a_layer_without_the_norm_of_the_others_reads_the_embeddings_themselves(tmp_path):
    tiny.model_with_head("modernbert").save_pretrained(tmp_path)
    base = AutoModel.from_pretrained(tmp_path, dtype=torch.float64)
    weights, norms = Weights(tmp_path, base.config), base.layers
    rows = input_embeddings(weights)
    standardisation = words.standardisation(rows, KNOWN, input_norm(weights, 4))
    decoding = Decoding(COUNT, KNOWN, NOUNS, np.zeros((5, WIDTH)), False, True, standardisation)
    for layer, reads_directly in ((0, True), (1, False)):
        plain, to_keys, bias = key_parts(weights, read_circuits(weights, layer), decoding, CPU)
        embeddings = base.embeddings(torch.arange(KNOWN))
        assert isinstance(norms[layer].attn_norm, torch.nn.Identity) == reads_directly
        qkv = norms[layer].attn.Wqkv(norms[layer].attn_norm(embeddings)) - norms[layer].attn.Wqkv.bias
        ours = plain(slice(0, KNOWN)) @ to_keys + bias
        np.testing.assert_allclose(ours.numpy(), numpy_of(qkv.chunk(3, dim=-1)[1]), **CLOSE)


def check_lists(frame, keys, scores_of, end="top"):
    """Hold each list of a table against the scores of the whole vocabulary, best first.

    Scores of ids, not ids, are compared: of two tokens that score alike either may come first.
    """
    lists = frame.groupby(keys)
    for key, rows in lists:
        whole = scores_of(*key)[:KNOWN]
        best = np.sort(whole)[::-1] if end == "top" else np.sort(whole)
        assert rows["place"].tolist() == list(range(COUNT))
        assert rows["token_id"].is_unique
        np.testing.assert_allclose(rows["score"], best[:COUNT], **CLOSE)
        np.testing.assert_allclose(rows["score"], whole[rows["token_id"]], **CLOSE)
    return len(lists)


def vectors_are_decoded_against_attentions_input_and_output(reference, vectors, frames):
    frame = frames["head_tokens"]
    tables = {"read": reference.read, "embedding": numpy_of(reference.weights.embedding())}
    if not reference.tied:
        tables["unembedding"] = numpy_of(reference.weights.unembedding())
    expected = {(*name.split(), "read") for name in READ_VECTORS}
    expected |= {("ov", "right", against) for against in tables if against != "read"}
    assert set(frame[["circuit", "side", "against"]].itertuples(index=False, name=None)) == expected
    assert (frame["layer"] == LAYER).all()
    for (circuit, side, against, end), rows in frame.groupby(["circuit", "side", "against", "end"]):
        looked_up = vectors[f"{circuit} {side}"].astype(np.float64) @ tables[against].T
        count = check_lists(rows, ["head", "vector"], lambda head, vector, all_of=looked_up: all_of[head, vector], end)
        assert count == HEADS * VECTORS
    assert len(frame) == len(expected) * 2 * HEADS * VECTORS * COUNT


def nouns_as_queries_find_the_keys_that_score_highest(reference, frames):
    frame = frames["noun_keys"]
    whole = reference.query @ reference.turned @ reference.key.transpose(0, 2, 1)
    scores = np.einsum("nd,hde,te->hnt", reference.read[NOUNS], whole, reference.read)
    places = {noun: index for index, noun in enumerate(NOUNS)}
    count = check_lists(frame, ["head", "noun_id"], lambda head, noun: scores[head, places[noun]])
    assert count == HEADS * len(NOUNS)
    assert (frame["layer"] == LAYER).all()


def after_values(reference):
    """Return norm_f(e + what is added) by the model's modules, (head, noun, d_model); the last is all heads' sum."""
    model, attention = reference.model, reference.attention
    stream = torch.from_numpy(reference.embeddings[NOUNS])
    norm = model.anatomy.norms.get("attention")
    read = stream if norm is None or model.anatomy.post_norm else model.blocks[LAYER].get_submodule(norm)(stream)
    added = []
    for head, kv_head in enumerate(reference.kv_head_of):
        value = read @ attention.v[kv_head].double()
        value = value if attention.v_bias is None else value + attention.v_bias[kv_head].double()
        added.append(value @ attention.o[head].double())
    bias = 0 if attention.o_bias is None else attention.o_bias.double()
    together = sum(added) + bias
    ways = torch.stack([*(one + bias for one in added), together])
    if "attention_output" in model.anatomy.norms and not model.anatomy.post_norm:
        stored = reference.weights.norm(LAYER, "attention_output")
        assert (stored.kind, stored.bias.any()) == ("rms", False)
        module = model.blocks[LAYER].get_submodule(model.anatomy.norms["attention_output"])
        by_length = torch.from_numpy(stored.scale) / (together.square().mean(-1, keepdim=True) + stored.epsilon).sqrt()
        torch.testing.assert_close(by_length * together, module(together), rtol=1e-6, atol=1e-6)
        ways = ways * by_length
    moved = stream + ways * model.anatomy.scale_of_attention
    if model.anatomy.post_norm:  # there the norm after attention is the nearest there is
        return numpy_of(model.blocks[LAYER].get_submodule(model.anatomy.norms["attention_output"])(moved))
    return numpy_of(model.module.get_submodule(model.anatomy.final_norm)(moved))


def values_of_nouns_are_decoded_through_the_last_norm(reference, frames):
    frame = frames["noun_values"]
    bias = reference.weights.unembedding_bias()
    scores = after_values(reference) @ numpy_of(reference.weights.unembedding()).T
    scores = scores if bias is None else scores + numpy_of(bias)
    places = {noun: index for index, noun in enumerate(NOUNS)}
    assert sorted(frame["head"].unique()) == [LAYER_SUM, *range(HEADS)]
    count = check_lists(frame, ["head", "noun_id"], lambda head, noun: scores[head, places[noun]])
    assert count == (HEADS + 1) * len(NOUNS)


def biases_are_decoded_against_attentions_input(reference, frames):
    probes = {}
    if reference.key_bias is not None:
        probes["query"] = np.einsum("hdk,kl,hl->hd", reference.query, reference.turned, reference.key_bias)
    if reference.query_bias is not None:
        probes["key"] = np.einsum("hk,kl,hdl->hd", reference.query_bias, reference.turned, reference.key)
    assert ("bias_tokens" in frames) == bool(probes)
    if not probes:
        return
    frame = frames["bias_tokens"]
    assert set(frame["side"]) == set(probes)
    assert "vector" not in frame
    for (side, end), rows in frame.groupby(["side", "end"]):
        scores = probes[side] @ reference.read.T
        assert check_lists(rows, ["head"], lambda head, all_of=scores: all_of[head], end) == HEADS
    assert len(frame) == len(probes) * 2 * HEADS * COUNT


def alignment_compares_nouns_before_and_after_a_head(reference, frames):
    frame = frames["noun_alignment"].set_index(["head", "noun_id"])
    read = reference.read[NOUNS]
    before = read @ read.T
    assert len(frame) == HEADS * len(NOUNS)
    for head in range(HEADS):
        after = read @ reference.query[head] @ reference.turned @ reference.key[head].T @ read.T
        for index, noun in enumerate(NOUNS):
            row = frame.loc[(head, noun)]
            others = np.delete(np.arange(len(NOUNS)), index)
            expected = spearmanr(before[index, others], after[index, others]).statistic
            np.testing.assert_allclose(row["correlation"], expected, atol=1e-12)
            assert row["nearest_before_id"] == NOUNS[others[before[index, others].argmax()]]
            assert row["nearest_after_id"] == NOUNS[others[after[index, others].argmax()]]
            assert row["own_rank"] == (after[index] > after[index, index]).sum() + 1


def input_embeddings_are_the_inputs_of_the_first_block(reference):
    found = input_embeddings(reference.weights)(slice(5, 20))
    assert found.dtype == torch.float32
    np.testing.assert_allclose(numpy_of(found), reference.embeddings[5:20], rtol=1e-5, atol=1e-6)


def the_decoding_norm_is_the_final_norm_or_in_post_norm_models_the_norm_after_attention(reference):
    model, found = reference.model, decoding_norm(reference.weights, LAYER)
    if model.anatomy.post_norm:
        module = model.blocks[LAYER].get_submodule(model.anatomy.norms["attention_output"])
    else:
        module = model.module.get_submodule(model.anatomy.final_norm)
    stream = torch.from_numpy(np.random.default_rng(0).normal(size=(3, WIDTH)))
    ours = standardised(stream.numpy(), found) * found.scale + found.bias
    np.testing.assert_allclose(ours, numpy_of(module(stream)), rtol=1e-5, atol=1e-6)


def all_columns_are_integers_except_scores_and_correlations(frames):
    for name, frame in frames.items():
        texts = {"circuit", "side", "end", "against"}
        for column in set(frame.columns) - texts:
            kind = {"score": np.float32, "correlation": np.float64}.get(column, np.int32)
            assert frame[column].dtype == kind, f"{name}.{column}"
        assert np.isfinite(frame.select_dtypes("number")).all().all()


LLAMA = pytest.mark.parametrize("reference", [("llama", False)], indirect=True, ids=name_of)


@LLAMA
def test_without_stored_vectors_only_their_lists_are_empty(reference):
    decoding = decoding_of(reference)
    none = {name: np.empty((HEADS, 0, WIDTH), dtype=np.float32) for name in (*READ_VECTORS, "ov right")}
    frames = layer_words(reference.weights, LAYER, decoding, none, CPU)
    assert len(frames["head_tokens"]) == 0
    assert len(frames["noun_keys"]) == HEADS * len(NOUNS) * COUNT


@LLAMA
def test_a_list_is_no_longer_than_the_vocabulary(reference, vectors):
    nouns = NOUNS[[1, 4]]
    decoding = decoding_of(reference, nouns, 20, 12)
    frames = layer_words(reference.weights, LAYER, decoding, vectors, CPU)
    assert frames["noun_keys"].groupby(["head", "noun_id"])["token_id"].nunique().eq(12).all()


@LLAMA
def test_without_nouns_only_vectors_and_biases_have_lists(reference, vectors):
    nouns = NOUNS[:0]
    decoding = decoding_of(reference, nouns)
    frames = layer_words(reference.weights, LAYER, decoding, vectors, CPU)
    assert len(frames["head_tokens"])
    for name in ("noun_keys", "noun_values", "noun_alignment"):
        assert len(frames[name]) == 0


test_words_of_a_layer_are_those_of_dense_matrices = together(
    vectors_are_decoded_against_attentions_input_and_output,
    nouns_as_queries_find_the_keys_that_score_highest,
    values_of_nouns_are_decoded_through_the_last_norm,
    biases_are_decoded_against_attentions_input,
    alignment_compares_nouns_before_and_after_a_head,
    input_embeddings_are_the_inputs_of_the_first_block,
    the_decoding_norm_is_the_final_norm_or_in_post_norm_models_the_norm_after_attention,
    all_columns_are_integers_except_scores_and_correlations,
)
