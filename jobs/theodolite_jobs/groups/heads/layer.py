"""Dask task on one layer's attention: decompose all heads, and compare them with directions and samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from theodolite.errors import UnsupportedModelError
from theodolite.groups.heads.record import CENTRING, CIRCUITS, ROTARY
from theodolite.spec_options import HeadsSpec
from theodolite_jobs.groups.heads.formulas import copying_score, gain, null_share
from theodolite_jobs.groups.heads.rotary import rotary_values
from theodolite_jobs.models.latent import latent_sizes
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.passes.collect import Arrays
from theodolite_jobs.results.circuits import input_embeddings, input_norm, read_circuits
from theodolite_jobs.statistics.factors import Circuits, Decomposition, Thin, decompose, numerical_rank, thin
from theodolite_jobs.statistics.norms import Norm, normalised, projected, standardised, unit

PROJECTIONS = ("query", "key")
SIDES = ("qk_query", "qk_key", "ov_read", "ov_write")


class Vocabulary(NamedTuple):
    """W_Uᵀ W_E, (d_model, d_model), with W_U centred over the vocabulary, and without."""

    centred: NDArray[np.float32]
    uncentred: NDArray[np.float32]


@dataclass(frozen=True)
class Stream:
    """Directions and samples of the stream around one layer's attention.

    Attributes:
        read: direction of each contrast at attention's input, (contrast, d_model); NaN where it was not measured. If
            attention reads through a norm, it is a difference of means after the norm, before its scale.
        written: direction of each contrast after attention's output was added, (contrast, d_model).
        samples: inputs of the block, (sample, d_model), by indices of set and position.
        read_draws: as `read` under permuted labels, (contrast, draw, d_model); None without contrasts.
        written_draws: as `written` under permuted labels.
        source_read: as `read`, at the earlier layer whose keys and values this layer uses; None if they are its own.
        source_draws: as `source_read` under permuted labels.
    """

    read: NDArray[np.float64]
    written: NDArray[np.float64]
    samples: Mapping[tuple[int, int], NDArray[np.float32]] = field(default_factory=dict)
    read_draws: NDArray[np.float64] | None = None
    written_draws: NDArray[np.float64] | None = None
    source_read: NDArray[np.float64] | None = None
    source_draws: NDArray[np.float64] | None = None


def decompose_layer(
    weights: Weights,
    layer: int,
    heads: HeadsSpec,
    stream: Stream,
    shape: tuple[int, int],
    vocabulary: Vocabulary | None,
) -> Arrays:
    """Return one layer's part of the variables of `heads`, by name.

    If the layer uses the keys and values of another, the null variance of keys is that of the other, and here NaN.

    Args:
        weights: the model's weights on disk.
        layer: index of the block.
        heads: offsets, folding, and the number of vectors.
        stream: directions and samples around this block.
        shape: numbers of sets and positions.
        vocabulary: products of unembedding and embedding; without them, copying scores are NaN.

    Raises:
        ModelError: a projection is missing.
        UnsupportedModelError: a weight is not finite.
    """
    if layer in weights.anatomy.layers_without_attention:
        return _missing(weights, heads, stream, shape)
    circuits = read_circuits(weights, layer, heads.offsets, heads.fold_norm)
    thins = {name: _thin(circuits, name, layer) for name in ("query", "key", "value", "written")}
    each, kv = np.arange(len(circuits.query)), circuits.kv_head_of
    vectors = min(heads.vectors, circuits.query.shape[2])
    qk = [
        decompose(thins["query"], thins["key"], vectors, each, kv, circuits.rotations[offset])
        for offset in heads.offsets
    ]
    ov = decompose(thins["value"], thins["written"], vectors, kv, each)
    ranks = numerical_rank(thins["query"]), numerical_rank(thins["key"])[kv]
    copying = np.full((len(each), len(CENTRING)), np.nan)
    if vocabulary is not None:
        scores = [copying_score(circuits.value, circuits.written, kv, product) for product in vocabulary]
        copying = np.stack(scores, axis=-1)
    arrays = {
        **_stacked(qk, ov),
        **_against_directions(circuits, thins, qk[0], ov, stream),
        "null_dimension": weights.dimensions.d_model - np.stack(ranks),
        "null_variance": _null_variance(circuits, thins, stream, shape),
        "copying_score": copying,
    }
    if layer in weights.anatomy.keys_of:
        arrays["null_variance"][:, :, PROJECTIONS.index("key")] = np.nan
    arrays = _widened(arrays, heads, largest_width(weights))
    return _with_rotary(arrays, weights, layer, heads) if weights.anatomy.has_latents else arrays


def circuits_of(weights: Weights) -> tuple[str, ...]:
    """Return the circuits of a model's heads."""
    return (*CIRCUITS, ROTARY) if weights.anatomy.has_latents else CIRCUITS


def largest_width(weights: Weights) -> int:
    """Return the largest number of singular values of a circuit."""
    rotary = latent_sizes(weights.config).rotary if weights.anatomy.has_latents else 0
    return max(*weights.head_widths, rotary)


def _with_rotary(arrays: Arrays, weights: Weights, layer: int, heads: HeadsSpec) -> Arrays:
    """Return the arrays with the rotary part as a third circuit, which has singular values alone."""
    for name in ("singular_values", "left_vectors", "right_vectors"):
        arrays[name] = np.concatenate([arrays[name], np.full_like(arrays[name][:1], np.nan)])
    values = rotary_values(weights, layer, heads.offsets, heads.fold_norm)
    arrays["singular_values"][-1, ..., : values.shape[-1]] = values
    return arrays


def _widened(arrays: Arrays, heads: HeadsSpec, width: int) -> Arrays:
    """Return the arrays as wide as those of the widest layer, with NaN where this layer has no singular values."""
    vectors = min(heads.vectors, width)
    lengths = {"singular_values": (-1, width), "vector_cosine": (-1, vectors)}
    lengths |= {"left_vectors": (-2, vectors), "right_vectors": (-2, vectors)}
    for name, (axis, length) in lengths.items():
        after = np.zeros((arrays[name].ndim, 2), dtype=int)
        after[axis, 1] = length - arrays[name].shape[axis]
        if after.any():
            arrays[name] = np.pad(arrays[name], after, constant_values=np.nan)
    return arrays


def _missing(weights: Weights, heads: HeadsSpec, stream: Stream, shape: tuple[int, int]) -> Arrays:
    """Return the arrays of a layer without attention: NaN, and -1 for whole numbers."""
    sizes, width, n_contrasts = weights.dimensions, largest_width(weights), len(stream.read)
    vectors, n_heads = min(heads.vectors, width), sizes.n_heads
    circuits = (len(circuits_of(weights)), len(heads.offsets), n_heads)
    shapes: dict[str, tuple[int, ...]] = {
        "singular_values": (*circuits, width),
        "direction_alignment": (n_contrasts, len(SIDES), n_heads),
        "vector_cosine": (n_contrasts, len(SIDES), n_heads, vectors),
        "null_variance": (*shape, len(PROJECTIONS), n_heads),
        "copying_score": (n_heads, len(CENTRING)),
    }
    if stream.read_draws is not None:
        shapes["alignment_draws"] = (n_contrasts, len(SIDES), stream.read_draws.shape[1], n_heads)
    arrays = {name: np.full(one, np.nan) for name, one in shapes.items()}
    for name in ("left_vectors", "right_vectors"):
        arrays[name] = np.full((*circuits, vectors, sizes.d_model), np.nan, np.float32)
    return {**arrays, "null_dimension": np.full((len(PROJECTIONS), n_heads), -1)}


def _against_directions(
    circuits: Circuits, thins: Mapping[str, Thin], qk: Decomposition, ov: Decomposition, stream: Stream
) -> Arrays:
    """Return alignments of circuits with directions, (contrast, side, head), and cosines with vectors.

    With permuted labels it also returns the alignments under each draw, (contrast, side, draw, head).
    """
    leading = {"qk": qk.singular_values[:, 0], "ov": ov.singular_values[:, 0]}

    def as_sides_read(
        by_queries: NDArray[np.float64], by_keys: NDArray[np.float64] | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return directions as queries read them, and as keys and values do."""
        read = _as_read(by_queries, circuits.input_norm)
        return read, read if by_keys is None else _as_read(by_keys, circuits.source_norm)

    def alignments(
        read: NDArray[np.float64], source: NDArray[np.float64] | None, written: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the alignments with directions, (side, direction, head)."""
        gains = _gains(circuits, thins, *as_sides_read(read, source), written)
        with np.errstate(invalid="ignore"):  # a head of zeros has no alignment
            return np.stack([gains[side] / leading[side[:2]] for side in SIDES])

    read, source = as_sides_read(stream.read, stream.source_read)
    compared = zip((read, source, source, stream.written), (qk.left, qk.right, ov.left, ov.right), strict=True)
    cosines = [np.einsum("cd,hvd->chv", directions, vectors) for directions, vectors in compared]  # as SIDES
    arrays = {
        "direction_alignment": alignments(stream.read, stream.source_read, stream.written).transpose(1, 0, 2),
        "vector_cosine": np.stack(cosines, axis=1),
    }
    if stream.read_draws is not None and stream.written_draws is not None:
        n_contrasts, n_draws, d_model = stream.read_draws.shape
        read, written = (draws.reshape(-1, d_model) for draws in (stream.read_draws, stream.written_draws))
        by_keys = None if stream.source_draws is None else stream.source_draws.reshape(-1, d_model)
        of_draws = alignments(read, by_keys, written).reshape(len(SIDES), n_contrasts, n_draws, -1)
        arrays["alignment_draws"] = of_draws.swapaxes(0, 1)
    return arrays


def _gains(
    circuits: Circuits,
    thins: Mapping[str, Thin],
    read: NDArray[np.float64],
    source: NDArray[np.float64],
    written: NDArray[np.float64],
) -> dict[str, NDArray[np.float64]]:
    """Return |dᵀM| or |M d| of each direction and head, (direction, head), by side."""
    each, kv, rotation = np.arange(len(circuits.query)), circuits.kv_head_of, circuits.rotations[0]
    query, key, value, output = (thins[name] for name in ("query", "key", "value", "written"))
    return {
        "qk_query": gain(read, query, key, each, kv, rotation),
        "qk_key": gain(source, key, query, kv, each, rotation.T),
        "ov_read": gain(source, value, output, kv, each),
        "ov_write": gain(written, output, value, each, kv),
    }


def _null_variance(
    circuits: Circuits, thins: Mapping[str, Thin], stream: Stream, shape: tuple[int, int]
) -> NDArray[np.float64]:
    """Return the share of the variance of attention's input in the null spaces, (set, position, projection, head)."""
    kv = circuits.kv_head_of
    shares = np.full((*shape, len(PROJECTIONS), len(kv)), np.nan)
    for at, samples in stream.samples.items():
        inputs = samples.astype(np.float64)
        read = inputs if circuits.input_norm is None else normalised(inputs, circuits.input_norm)
        shares[at] = np.stack([null_share(read, thins["query"]), null_share(read, thins["key"])[kv]])
    return shares


def vocabulary_products(
    weights: Weights, fold_norm: bool, device: torch.device, block: int = 8192
) -> Vocabulary | None:
    """Return the products of unembedding and embedding for copying scores, summed in blocks multiplied on a device.

    The softmax ignores a constant that is added to all logits. So the first product subtracts ū, the mean of W_U over
    the vocabulary, from each row. With `fold_norm`, the embedding is the first block's input standardised by the norm
    before attention, whose scale the circuits contain, and the unembedding contains the linear part of the final norm.
    Return None if the model projects embeddings into the stream (OPT-350m), or if its files have no head.

    Raises:
        UnsupportedModelError: a weight is not finite.
    """
    d_model = weights.dimensions.d_model
    if not weights.has_unembedding or not weights.embeds_into_stream:
        return None
    last = weights.anatomy.attention_layers(weights.dimensions.n_layers)[-1]
    before, final = (input_norm(weights, last), weights.final_norm()) if fold_norm else (None, None)
    read = weights.embedding if before is None else input_embeddings(weights)
    total, sum_e, sum_u = np.zeros((d_model, d_model)), np.zeros(d_model), np.zeros(d_model)
    # Products in float32 lose digits to what all rows of W_U share, so the mean of some rows is taken out first.
    shift = weights.unembedding(slice(0, block)).mean(dim=0)
    for start in range(0, weights.vocabulary_size, block):
        rows = slice(start, min(start + block, weights.vocabulary_size))
        e, u = read(rows), weights.unembedding(rows) - shift
        if before is not None:
            e = torch.from_numpy(standardised(e.numpy(), before)).float()
        total += (u.to(device).T @ e.to(device)).cpu().numpy()
        sum_e += e.double().sum(dim=0).numpy()
        sum_u += u.double().sum(dim=0).numpy()
    if not np.isfinite(total).all():
        raise UnsupportedModelError("the embedding or the language-model head has a weight that is not finite")
    products = [total - np.outer(sum_u / weights.vocabulary_size, sum_e), total + np.outer(shift.double(), sum_e)]
    if final is not None:
        products = [projected(product.T * final.scale, final).T for product in products]
    return Vocabulary(*(product.astype(np.float32) for product in products))


def _thin(circuits: Circuits, name: str, layer: int) -> Thin:
    try:
        return thin(getattr(circuits, name))
    except ValueError as error:
        projection = f"{name.replace('written', 'output')} projection"
        shared = "key-value " if name in ("key", "value") else ""
        raise UnsupportedModelError(f"layer {layer}, {projection}: {shared}{error}") from error


def _stacked(qk: Sequence[Decomposition], ov: Decomposition) -> Arrays:
    """Return values and vectors of both circuits, (circuit, offset, head, …); OV is NaN after the first offset."""
    arrays: Arrays = {}
    fields = (
        ("singular_values", "singular_values", np.float64),
        ("left_vectors", "left", np.float32),
        ("right_vectors", "right", np.float32),
    )
    for name, attribute, dtype in fields:
        of_ov = getattr(ov, attribute)
        arrays[name] = np.full((len(CIRCUITS), len(qk), *of_ov.shape), np.nan, dtype)
        arrays[name][1, 0] = of_ov
        for index, one in enumerate(qk):
            arrays[name][0, index] = getattr(one, attribute)
    return arrays


def _as_read(directions: NDArray[np.float64], norm: Norm | None) -> NDArray[np.float64]:
    """Return unit vectors along the directions after the linear part of a norm before attention."""
    return directions if norm is None else unit(projected(directions, norm) * norm.scale)
