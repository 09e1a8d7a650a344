"""From one layer's weights to the thin factors of its circuits: scale, norms, groups and rotations as the family has.

What depends on the data, and so is no part of a matrix, is left out and said in `notes_on`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from theodolite.sites import Site
from theodolite_jobs.models.rotary import rotation
from theodolite_jobs.statistics.circuits import Circuits
from theodolite_jobs.statistics.norms import Norm, norm_of, projected

if TYPE_CHECKING:
    from theodolite_jobs.models.weights import Weights


def read_circuits(weights: "Weights", layer: int, offsets: Sequence[int] = (0,), fold_norm: bool = False) -> Circuits:
    """Read one layer's weights as circuits; with `fold_norm` the norm that attention reads through is in them.

    Folded is W′ = Π diag(γ) W and b′ = b + βW for the norm Πx/σ · γ + β; the norm then has no scale and no bias left.

    Raises:
        ModelError: a projection is missing.
    """
    attention, anatomy, sizes = weights.attention(layer), weights.anatomy, weights.dimensions
    norm_after = None if anatomy.post_norm else anatomy.norms.get("attention_output")
    output_norm = None if norm_after is None else norm_of(weights.norm(layer, "attention_output"), sizes.d_model)
    output = _array(attention.o).transpose(0, 2, 1)
    scale = anatomy.taps[Site.ATTN_OUT].scale
    found = Circuits(
        query=_array(attention.q),
        key=_array(attention.k),
        value=_array(attention.v),
        output=output,
        written=_written(output, output_norm, scale),
        kv_head_of=np.arange(sizes.n_heads) // (sizes.n_heads // sizes.n_kv_heads),
        rotations={offset: rotation(weights.config, anatomy, layer, offset) * attention.scale for offset in offsets},
        query_bias=_optional(attention.q_bias),
        key_bias=_optional(attention.k_bias),
        value_bias=_optional(attention.v_bias),
        output_bias=_optional(attention.o_bias),
        input_norm=input_norm(weights, layer),
        output_norm=output_norm,
        output_scale=scale,
    )
    if fold_norm and found.input_norm is not None:
        found = _folded(found, found.input_norm)
    query, query_bias = _through_head_norm(
        found.query, found.query_bias, attention.q_norm, attention.q_norm_bias, anatomy.norm_kind
    )
    key, key_bias = _through_head_norm(
        found.key, found.key_bias, attention.k_norm, attention.k_norm_bias, anatomy.norm_kind
    )
    return replace(found, query=query, query_bias=query_bias, key=key, key_bias=key_bias)


def input_norm(weights: "Weights", layer: int) -> Norm | None:
    """Return the norm that a layer's attention reads the stream through; None where it reads the stream itself."""
    if weights.anatomy.post_norm or "attention" not in weights.anatomy.norms:
        return None
    return norm_of(weights.norm(layer, "attention"), weights.dimensions.d_model)


def notes_on(weights: "Weights", fold_norm: bool) -> list[str]:
    """Say what of this model's attention depends on the data and is in no circuit, and what was chosen."""
    attention, anatomy = weights.attention(0), weights.anatomy
    if anatomy.post_norm or "attention" not in anatomy.norms:
        notes = ["attention reads the stream itself: no norm is between"]
    else:
        folded = "folded into the weights" if fold_norm else "not folded: the weights are as they are stored"
        notes = [f"the norm that attention reads through is {folded}"]
    if attention.q_norm is not None:
        notes.append("queries and keys are normalised, so scores are known up to a positive factor for each token")
    if attention.q_norm_bias is not None:
        notes.append("their biases are those of that norm, which are not divided, and the projections', which are")
    if "attention_output" in anatomy.norms and not anatomy.post_norm:
        notes.append("attention's output is normalised, so W_VO is known up to a positive factor for each token")
    if attention.soft_cap is not None:
        notes.append(f"scores then go through {attention.soft_cap:g}·tanh(score/{attention.soft_cap:g})")
    if attention.clip is not None:
        notes.append(f"queries, keys and values are then clipped to ±{attention.clip:g}")
    if anatomy.positions.startswith("rotary"):
        notes.append("QK is at the stated offset between query and key; some families do not rotate every layer")
    elif anatomy.positions != "learned":
        notes.append(f"{anatomy.positions} positions add to the scores what is in no circuit")
    return notes


def _folded(found: Circuits, norm: Norm) -> Circuits:
    def weight(of: NDArray[np.floating]) -> NDArray[np.float64]:
        scaled = of * norm.scale[:, None]
        return projected(scaled.transpose(0, 2, 1), norm).transpose(0, 2, 1)

    def bias(of: NDArray[np.floating], own: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
        if own is None and not norm.bias.any():
            return None
        moved: NDArray[np.float64] = np.einsum("d,hdk->hk", norm.bias, of)
        return moved if own is None else own + moved

    return replace(
        found,
        query=weight(found.query),
        key=weight(found.key),
        value=weight(found.value),
        query_bias=bias(found.query, found.query_bias),
        key_bias=bias(found.key, found.key_bias),
        value_bias=bias(found.value, found.value_bias),
        input_norm=replace(norm, scale=np.ones_like(norm.scale), bias=np.zeros_like(norm.bias)),
    )


def _through_head_norm(
    weight: NDArray[np.floating], bias: NDArray[np.float64] | None, scale: Any, shift: Any, kind: str
) -> tuple[NDArray[np.floating], NDArray[np.float64] | None]:
    """Return a projection and its bias after the linear part of the norm on queries or keys."""
    if scale is None:
        return weight, bias

    def through(x: NDArray[np.floating], gamma: NDArray[np.float64]) -> NDArray[np.float64]:
        return (x - x.mean(axis=-1, keepdims=True) if kind == "layer" else x) * gamma

    gamma = _array(scale).astype(np.float64)
    moved = None if bias is None else through(bias, gamma)
    if shift is not None:
        moved = _array(shift).astype(np.float64) + (0.0 if moved is None else moved)
    return through(weight.astype(np.float64), gamma[:, None]), moved


def _written(output: NDArray[np.floating], norm: Norm | None, scale: float) -> NDArray[np.floating]:
    """Return W_Oᵀ with the linear part of what the family does to attention's output."""
    if norm is not None:
        along = projected(output.transpose(0, 2, 1), norm) * norm.scale
        output = along.transpose(0, 2, 1)
    return output if scale == 1.0 else output * np.float64(scale)


def _array(tensor: Any) -> NDArray[np.floating]:
    found: NDArray[np.floating] = tensor.numpy()
    return found


def _optional(tensor: Any) -> NDArray[np.float64] | None:
    return None if tensor is None else _array(tensor).astype(np.float64)
