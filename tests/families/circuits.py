"""Circuits do what a family's attention does: scores before the softmax, and what one token's values add."""

from functools import lru_cache
from itertools import product

import numpy as np
import pytest
import torch
from support.reference_blocks import epsilon_of, inputs_of, read_attention
from support.relative_positions import relative_scores

from families.weights import BOUND, bound_of
from theodolite.sites import Site
from theodolite_jobs.models.reference import read_sites
from theodolite_jobs.models.threads import threads_for
from theodolite_jobs.results.circuits import read_circuits

TOKENS = (5, 60, 17, 33, 9, 41, 28, 12, 50)  # offsets up to 8; the tiny models' windows hold 6
OFFSETS = range(1 - len(TOKENS), len(TOKENS))
LAYERS = (0, 4)  # of every kind that a family has


def numpy_of(tensor):
    return tensor.double().numpy()


@lru_cache(maxsize=4)  # those of one family
def circuits_of(weights, layer, fold_norm):
    return read_circuits(weights, layer, OFFSETS, fold_norm)


def scores_before_softmax(model):
    """Run the tokens and return what each layer's attention hands to its softmax, (head, query, key), by layer.

    Families hand it to torch's softmax, or, where they cannot be switched to plain attention, queries and keys to
    torch's own attention.
    """
    found = []

    def softmax(scores, *args, original=torch.nn.functional.softmax, **options):
        if scores.ndim == 4:  # a router's have fewer
            found.append(numpy_of(scores[0]))
        return original(scores, *args, **options)

    def attention(query, key, value, original=torch.nn.functional.scaled_dot_product_attention, **options):
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        mask = options["attn_mask"]
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        found.append(numpy_of(scores[0]))
        return original(query, key, value, **options)

    with pytest.MonkeyPatch.context() as patch, threads_for(1):  # with more, a function mode calls each function twice
        patch.setattr(torch.nn.functional, "softmax", softmax)
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
        read_sites(model, TOKENS, [-1])
    return dict(zip(model.anatomy.attention_layers(model.dimensions.n_layers), found, strict=True))


def without_what_is_in_no_circuit(scores, model, attention, layer):
    """Take away the sinks, the soft cap and what positions add (docs/science/heads.md, "Limits")."""
    n_heads, soft_cap = model.dimensions.n_heads, attention.soft_cap
    if attention.sinks is not None:  # the last column; gpt-oss subtracts the largest score from all
        scores = scores[..., :-1] - scores[..., -1:] + numpy_of(attention.sinks)[:, None, None]
    if soft_cap is not None:
        inside = np.abs(scores) < soft_cap  # masked ones are at -inf or so
        scores = np.where(inside, soft_cap * np.arctanh(np.where(inside, scores, 0) / soft_cap), scores)
    if model.anatomy.positions == "ALiBi":  # four heads: slopes 1/4, 1/16, …; Falcon scales them as it does scores
        falcon = model.dimensions.d_head**-0.5 if model.config.model_type == "falcon" else 1.0
        slopes = 0.25 ** np.arange(1, n_heads + 1) * falcon
        scores = scores - slopes[:, None, None] * np.arange(len(TOKENS))
    if model.anatomy.positions.endswith("relative"):
        x = inputs_of(model, "attention", TOKENS)[layer]
        scores = scores - numpy_of(relative_scores(x, attention, layer, model))
    return scores


def spread(x, weights, axes=-1):
    """Return what a norm of the family divides by."""
    if weights.anatomy.norm_kind == "layer":
        x = x - x.mean(axis=axes, keepdims=True)
    config = weights.config
    epsilon = 1e-5 if config.model_type == "opt" else epsilon_of(config)
    return np.sqrt((x**2).mean(axis=axes, keepdims=True) + epsilon)


def standardised(x, weights):
    centred = x - x.mean(axis=-1, keepdims=True) if weights.anatomy.norm_kind == "layer" else x
    return centred / spread(x, weights)


def attended(by_queries, by_keys, circuits, attention, weights):
    """Return queries and keys, (head, token, d_head), from circuits, with what norms on them divide by put back.

    What queries and keys read differs if the keys are those of an earlier layer. It is given in two forms: `raw` as
    attention reads it, and `x` as circuits are applied to it, which is the same, or before a folded norm.
    """
    found = []
    sides = {"q": (by_queries, circuits.query, circuits.query_bias), "k": (by_keys, circuits.key, circuits.key_bias)}
    for name, ((x, raw), matrix, bias) in sides.items():
        bias = np.zeros(matrix.shape[::2]) if bias is None else bias
        if attention.q_norm is None:
            found.append(x @ matrix + bias[:, None])
            continue
        own = getattr(attention, f"{name}_bias")
        projected = raw @ numpy_of(getattr(attention, name)) + (0 if own is None else numpy_of(own)[:, None])
        divisor = spread(projected, weights, axes=(0, 2) if attention.norm_spans_heads else -1)
        shift = getattr(attention, f"{name}_norm_bias")  # is added after the division
        shift = 0 if shift is None else numpy_of(shift)
        found.append((x @ matrix + (bias - shift)[:, None]) / divisor + np.broadcast_to(shift, bias.shape)[:, None])
    query, key = found
    return query, key[circuits.kv_head_of]


def scores_of(query, key, rotations, sign=1):
    """Return q R(δ) kᵀ, (head, query, key), for the offset δ of each query and key."""
    found = np.empty((len(query), query.shape[1], key.shape[1]))
    for at, to in np.ndindex(found.shape[1:]):
        found[:, at, to] = (query[:, at] @ rotations[sign * (at - to)] * key[:, to]).sum(-1)
    return found


def attention_to_one_token(model, token):
    """Return what attention reads and adds, before a gate, where there is but one token to attend to."""
    found = read_attention(model, (token,))
    added = {layer: sites[Site.ATTN_OUT][0] for layer, sites in found.items()}
    read = [numpy_of(x)[0] for x in inputs_of(model, "attention", (token,))]
    return np.stack(read), added


def gate_of(read, attention):
    gate = np.einsum("d,hdk->hk", read, numpy_of(attention.gate))
    return 1 / (1 + np.exp(-gate - (0 if attention.gate_bias is None else numpy_of(attention.gate_bias))))


def error(ours, theirs):
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


def scores(weights, model):
    """Scores before the softmax are those of QK."""
    theirs = scores_before_softmax(model)
    stream = read_sites(model, TOKENS, range(-len(TOKENS), 0))[Site.RESID_PRE]
    inputs = [numpy_of(x) for x in inputs_of(model, "attention", TOKENS)]
    for layer in LAYERS:
        attention = weights.attention(layer)
        expected = without_what_is_in_no_circuit(theirs[layer], model, attention, layer)
        for fold_norm in (False, True):
            scores_of_a_layer(weights, model, layer, fold_norm, attention, stream, inputs, expected)


def scores_of_a_layer(weights, model, layer, fold_norm, attention, stream, inputs, expected):
    circuits = circuits_of(weights, layer, fold_norm)
    folded = fold_norm and circuits.input_norm is not None
    reads = [
        (standardised(stream[:, one], weights) if folded else inputs[one], inputs[one])
        for one in (layer, weights.anatomy.keys_of.get(layer, layer))
    ]
    query, key = attended(*reads, circuits, attention, weights)
    seen = expected > -1e30  # by no mask covered
    assert seen[:, -1, -6:].all()
    assert seen[:, 0, 1:].any() != model.anatomy.causal
    ours = scores_of(query, key, circuits.rotations)
    assert error(ours[seen], expected[seen]) < bound_of(model), (layer, fold_norm)
    rotates = not np.array_equal(circuits.rotations[7], circuits.rotations[0])
    positions = weights.anatomy.positions.startswith("rotary")
    assert rotates == (positions and layer not in weights.anatomy.layers_without_rotary)
    if rotates:
        assert error(scores_of(query, key, circuits.rotations, sign=-1)[seen], expected[seen]) > 0.05, (
            layer,
            fold_norm,
        )


def added_by_one_token(weights, model):
    """What one token's values add is that of OV."""
    attentions = {layer: weights.attention(layer) for layer in LAYERS}
    for token in (5, 60):
        read, added = attention_to_one_token(model, token)
        stream = read_sites(model, (token,), [-1])[Site.RESID_PRE][0]
        for layer, fold_norm in product(LAYERS, (False, True)):
            circuits, attention = circuits_of(weights, layer, fold_norm), attentions[layer]
            folded = fold_norm and circuits.input_norm is not None
            source = weights.anatomy.keys_of.get(layer, layer)
            x = standardised(stream[source], weights) if folded else read[source]
            value = x @ circuits.value
            value = value if circuits.value_bias is None else value + circuits.value_bias
            value = value / spread(value, weights) if weights.anatomy.normed_values else value
            value = value[circuits.kv_head_of]
            if attention.gate is not None:  # OV is that of an open gate
                value = value * gate_of(read[layer], attention)
            if attention.sinks is not None:  # a token alone shares the attention with the sink
                both = x[None], read[layer][None]
                query, key = attended(both, both, circuits, attention, weights)
                score = scores_of(query, key, circuits.rotations)[:, 0]
                value = value / (1 + np.exp(numpy_of(attention.sinks)[:, None] - score))
            ours = np.einsum("hk,hdk->d", value, circuits.written)
            if circuits.output_norm is not None:  # it divides by what depends on the data
                bias = 0 if circuits.output_bias is None else circuits.output_bias
                plain = np.einsum("hk,hdk->d", value, circuits.output) + bias
                assert weights.anatomy.norm_kind == "rms"
                ours = (ours + bias * circuits.output_norm.scale) / spread(plain, weights) + circuits.output_norm.bias
            elif circuits.output_bias is not None:
                ours = ours + circuits.output_bias * circuits.output_scale
            assert error(ours, added[layer]) < BOUND, (layer, fold_norm)


def folded_norms(weights, _model):
    plain, folded = (circuits_of(weights, 4, fold_norm) for fold_norm in (False, True))
    if plain.input_norm is None:
        for name in ("query", "key", "value", "query_bias", "key_bias", "value_bias"):
            np.testing.assert_array_equal(getattr(plain, name), getattr(folded, name))
        return
    assert (folded.input_norm.scale == 1).all()
    assert (folded.input_norm.bias == 0).all()
    assert (folded.input_norm.kind, folded.input_norm.epsilon) == (plain.input_norm.kind, plain.input_norm.epsilon)
    np.testing.assert_array_equal(folded.written, plain.written)
    for name in ("query", "key", "value"):
        column_sums = getattr(folded, name).sum(axis=1)
        assert np.allclose(column_sums, 0, atol=1e-13) == (plain.input_norm.kind == "layer")


CHECKS = (scores, added_by_one_token, folded_norms)
