"""Thin factors of one layer's circuits from its weights, with the family's scales, norms, groups and rotations.

Operations that depend on the data are not part of a circuit; `notes_on` lists them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from theodolite.digests import digest_of
from theodolite.groups import GROUPS
from theodolite.spec_options import HeadsSpec
from theodolite_jobs.models.anatomy import check_circuits, rotary_settings
from theodolite_jobs.models.config_numbers import embedding_scale
from theodolite_jobs.models.latent import latent_sizes
from theodolite_jobs.models.rotary import rotations
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.statistics.factors import Circuits
from theodolite_jobs.statistics.norms import Norm, normalised, projected


def read_circuits(weights: Weights, layer: int, offsets: Sequence[int] = (0,), fold_norm: bool = False) -> Circuits:
    """Return one layer's circuits; `fold_norm` folds the norm before attention into the weights.

    For the norm Πx/σ · γ + β, folding gives W′ = Π diag(γ) W and b′ = b + βW; the norm then has scale 1 and bias 0. A
    layer may use the keys and values of an earlier layer: then its key and value projections read the stream there.

    Raises:
        ModelError: a projection is missing.
        UnsupportedModelError: QK or OV of the family's heads is not a fixed matrix.
    """
    check_circuits(weights.anatomy, weights.config.model_type)
    attention, anatomy, sizes = weights.attention(layer), weights.anatomy, weights.dimensions
    norm_after = None if anatomy.post_norm else anatomy.norms.get("attention_output")
    output_norm = None if norm_after is None else weights.norm(layer, "attention_output")
    output = _array(attention.o).transpose(0, 2, 1)
    scale = anatomy.scale_of_attention
    circuits = Circuits(
        query=_array(attention.q),
        key=_array(attention.k),
        value=_array(attention.v),
        output=output,
        written=_written(output, output_norm, scale),
        kv_head_of=np.arange(sizes.n_heads) // (sizes.n_heads // len(attention.k)),
        rotations=dict(zip(offsets, rotations(weights.config, anatomy, layer, offsets) * attention.scale, strict=True)),
        query_bias=_optional(attention.q_bias),
        key_bias=_optional(attention.k_bias),
        value_bias=_optional(attention.v_bias),
        output_bias=_optional(attention.o_bias),
        input_norm=input_norm(weights, layer),
        source_norm=input_norm(weights, anatomy.keys_of.get(layer, layer)),
        output_norm=output_norm,
        output_scale=scale,
    )
    if fold_norm and circuits.input_norm is not None and circuits.source_norm is not None:
        circuits = _folded(circuits, circuits.input_norm, circuits.source_norm)
    query, query_bias = _through_head_norm(
        circuits.query, circuits.query_bias, attention.q_norm, attention.q_norm_bias, anatomy.norm_kind
    )
    key, key_bias = _through_head_norm(
        circuits.key, circuits.key_bias, attention.k_norm, attention.k_norm_bias, anatomy.norm_kind
    )
    return replace(circuits, query=query, query_bias=query_bias, key=key, key_bias=key_bias)


def input_norm(weights: Weights, layer: int) -> Norm | None:
    """Return the norm between the stream and a layer's attention, or None if attention reads the stream directly."""
    if weights.anatomy.post_norm or "attention" not in weights.anatomy.norms:
        return None
    return weights.norm(layer, "attention")


def notes_on(weights: Weights, fold_norm: bool) -> list[str]:
    """Return notes on the circuits: the choice of `fold_norm`, and parts of attention that the circuits leave out."""
    anatomy, n_layers = weights.anatomy, weights.dimensions.n_layers
    with_heads = anatomy.attention_layers(n_layers)
    attention = weights.attention(with_heads[0])
    if anatomy.post_norm or "attention" not in anatomy.norms:
        notes = ["attention reads the stream directly, without a norm"]
    else:
        folded = "folded into the weights" if fold_norm else "not folded into the weights"
        notes = [f"the norm before attention is {folded}"]
        if anatomy.unnormed_layers:
            layers = ", ".join(map(str, anatomy.unnormed_layers))
            notes.append(f"attention in layer {layers} reads the stream directly, without a norm")
    notes += _notes_on_layers(weights)
    if anatomy.encoder_alone:
        notes.append(
            "only the encoder was surveyed; the language-model head reads the decoder, so copying scores use the "
            "embedding in place of the unembedding, and their logits are no logits of the model"
        )
    if len(with_heads) < n_layers:
        layers = ", ".join(map(str, with_heads))
        notes.append(
            f"{len(with_heads)} of {n_layers} blocks have attention heads (layers {layers}); all numbers of the heads "
            f"of other blocks are missing, because {anatomy.hybrid}"
        )
    if anatomy.block_of:
        count = len(set(anatomy.block_of.values()))
        notes.append(
            f"the {n_layers} layers share the weights of {count} block{'s' * (count > 1)}, so layers with the same "
            "block have the same circuits"
        )
    if fold_norm:
        notes.append(
            "copying scores use embeddings after the norm before attention, and an unembedding with the linear part of "
            "the final norm"
        )
    if attention.q_norm is not None:
        notes.append("queries and keys are normalised, so QK gives scores up to a positive factor for each token")
    if anatomy.normed_values:
        notes.append("values are normalised, so OV gives outputs up to a positive factor for each head and token")
    if attention.q_norm_bias is not None:
        notes.append("query and key biases are the norm's bias plus the normalised bias of the projection")
    if "attention_output" in anatomy.norms and not anatomy.post_norm:
        notes.append(
            "attention's output is normalised, so OV gives this output only up to a positive factor for each token"
        )
    if attention.soft_cap is not None:
        notes.append(f"QK leaves out the soft cap of scores, {attention.soft_cap:g}·tanh(score/{attention.soft_cap:g})")
    if attention.clip is not None:
        notes.append(f"queries, keys and values are clipped to ±{attention.clip:g}; the circuits leave this out")
    (rotary, *_) = [*rotary_settings(weights.config), {}]
    if beta := rotary.get("llama_4_scaling_beta"):
        length = rotary["original_max_position_embeddings"]
        notes.append(f"queries at position p are multiplied by 1 + {beta:g}·log(1 + ⌊p/{length}⌋); QK leaves this out")
    if getattr(weights.config, "attn_temperature_tuning", False) and anatomy.layers_without_rotary:
        scale, length = weights.config.attn_scale, weights.config.floor_scale
        notes.append(
            f"in layers without rotary positions, queries at position p are multiplied by "
            f"1 + {scale:g}·log(1 + ⌊(p + 1)/{length:g}⌋); QK leaves this out"
        )
    if attention.sinks is not None:
        notes.append("the softmax adds a learned score of each head that belongs to no token; QK leaves this sink out")
    if attention.gate is not None:
        notes.append(
            "a gate, the sigmoid of a projection of the token that attends, multiplies each entry of a head's output "
            "before W_O; OV leaves the gate out, so it is the map of a head whose gate is open"
        )
    if attention.q_rotary is not None:
        through = "keys" if latent_sizes(weights.config).query_latent is None else "queries, keys"
        notes.append(
            f"{through} and values pass through normalised latents, so QK and OV give scores and outputs up to a "
            "positive factor for each token"
        )
        notes.append(
            "QK is that of the part of queries and keys without positions; it leaves out the part of "
            f"{attention.q_rotary.shape[2]} entries that rotates (circuit “rotary”), and so does not depend on the "
            "offset"
        )
    elif anatomy.positions.startswith("rotary"):
        notes.append(
            "each QK circuit is computed for one offset between query and key (dimension “offset” of the arrays); "
            "in a layer without rotary positions the offset changes nothing"
        )
    elif anatomy.positions not in ("learned", "sinusoidal", "none"):
        notes.append(f"QK leaves out the terms that {anatomy.positions} positions add to the scores")
    return notes


def _notes_on_layers(weights: Weights) -> Iterator[str]:
    """Yield notes on layers whose heads have another width, or keys or values of another kind."""
    anatomy, widths = weights.anatomy, weights.head_widths
    if len(widths) > 1:
        texts = (f"{width} ({_named(layers)})" for width, layers in sorted(widths.items()))
        yield (
            f"the width of heads differs: {' and '.join(texts)}; singular values and vectors beyond the width of a "
            "layer's heads are missing, and the random circuits that its numbers are compared with have its width"
        )
    for source in sorted(set(anatomy.keys_of.values())):
        layers = [layer for layer, one in anatomy.keys_of.items() if one == source]
        yield (
            f"the keys and values of {_named(layers)} are those of layer {source}; so QK key, OV read and the null "
            f"space of keys read the stream at layer {source}, and are compared with it"
        )
    if anatomy.keys_as_values:
        yield (
            f"in {_named(anatomy.keys_as_values)}, values are the keys before their norm and positions, so W_V is the "
            "stored W_K"
        )


def _named(layers: Sequence[int]) -> str:
    return f"layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}"


def folded(stored: NDArray[np.floating], norm: Norm) -> NDArray[np.float64]:
    """Return W′ = Π diag(γ) W of each head, (head, d_model, width), for a norm that W reads through."""
    scaled = stored * norm.scale[:, None]
    return projected(scaled.transpose(0, 2, 1), norm).transpose(0, 2, 1)


def _folded(circuits: Circuits, norm: Norm, source: Norm) -> Circuits:
    def bias(
        projection: NDArray[np.floating], own: NDArray[np.float64] | None, norm: Norm
    ) -> NDArray[np.float64] | None:
        if own is None and not norm.bias.any():
            return None
        added: NDArray[np.float64] = np.einsum("d,hdk->hk", norm.bias, projection)
        return added if own is None else own + added

    return replace(
        circuits,
        query=folded(circuits.query, norm),
        key=folded(circuits.key, source),
        value=folded(circuits.value, source),
        query_bias=bias(circuits.query, circuits.query_bias, norm),
        key_bias=bias(circuits.key, circuits.key_bias, source),
        value_bias=bias(circuits.value, circuits.value_bias, source),
        input_norm=_without_scale(norm),
        source_norm=_without_scale(source),
    )


def _without_scale(norm: Norm) -> Norm:
    return replace(norm, scale=np.ones_like(norm.scale), bias=np.zeros_like(norm.bias))


def _through_head_norm(
    weight: NDArray[np.floating], bias: NDArray[np.float64] | None, scale: Any, shift: Any, kind: str
) -> tuple[NDArray[np.floating], NDArray[np.float64] | None]:
    """Return a projection and its bias multiplied by the linear part of the norm on queries or keys."""
    if scale is None:
        return weight, bias

    def through(x: NDArray[np.floating], gamma: NDArray[np.float64]) -> NDArray[np.float64]:
        return (x - x.mean(axis=-1, keepdims=True) if kind == "layer" else x) * gamma

    gamma = _array(scale).astype(np.float64)
    new_bias = None if bias is None else through(bias, gamma)
    if shift is not None:
        new_bias = _array(shift).astype(np.float64) + (0.0 if new_bias is None else new_bias)
    return through(weight.astype(np.float64), gamma[:, None]), new_bias


def _written(output: NDArray[np.floating], norm: Norm | None, scale: float) -> NDArray[np.floating]:
    """Return W_Oᵀ with the linear part of the output norm and the residual multiplier folded in."""
    if norm is not None:
        scaled = projected(output.transpose(0, 2, 1), norm) * norm.scale
        output = scaled.transpose(0, 2, 1)
    return output if scale == 1.0 else output * np.float64(scale)


def _array(tensor: Any) -> NDArray[np.floating]:
    return np.asarray(tensor.numpy())


def _optional(tensor: Any) -> NDArray[np.float64] | None:
    return None if tensor is None else _array(tensor).astype(np.float64)


def vectors_digest(heads: HeadsSpec) -> str:
    """Return a digest of the version and options that determine singular vectors at offset 0, besides the weights."""
    version = GROUPS["heads"].version
    return digest_of({"version": version, "fold_norm": heads.fold_norm, "vectors": heads.vectors})


def input_embeddings(weights: Weights) -> Callable[[slice], torch.Tensor]:
    """Return a table of the first block's inputs for each token without positions, scaled and normalised."""
    scale, norm = embedding_scale(weights.config), weights.embedding_norm()

    def rows(some: slice) -> torch.Tensor:
        table = weights.embedding(some) * scale
        return table if norm is None else torch.from_numpy(normalised(table.numpy(), norm).astype(np.float32))

    return rows
