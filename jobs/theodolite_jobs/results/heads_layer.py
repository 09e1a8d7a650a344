"""What one Dask task does with one layer's attention: decompose every head, and hold it against the stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from theodolite.errors import ModelError
from theodolite.spec import HeadsSpec
from theodolite_jobs.results.circuits import read_circuits
from theodolite_jobs.statistics.circuits import Circuits
from theodolite_jobs.statistics.heads import (
    Decomposition,
    Thin,
    copying_score,
    decompose,
    gain,
    null_share,
    numerical_rank,
    thin,
)
from theodolite_jobs.statistics.norms import normalised, projected

if TYPE_CHECKING:
    from theodolite_jobs.models.weights import Weights

CIRCUITS = ("qk", "vo")
PROJECTIONS = ("query", "key")
SIDES = ("qk_query", "qk_key", "vo_read", "vo_write")

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Stream:
    """What a run knows of the stream around one layer's attention; nothing, where it captured none.

    Attributes:
        read: direction of each contrast where attention reads, (contrast, d_model); NaN where it was not measured.
        written: the same where attention has written.
        samples: what entered the block, (sample, d_model), by place among sets and positions.
    """

    read: NDArray[np.float64]
    written: NDArray[np.float64]
    samples: Mapping[tuple[int, int], NDArray[np.float32]] = field(default_factory=dict)


def layer_atlas(
    weights: "Weights",
    layer: int,
    heads: HeadsSpec,
    stream: Stream,
    shape: tuple[int, int],
    vocabulary: NDArray[np.float32] | None,
) -> Arrays:
    """Return one layer's part of the variables of `heads`, by name.

    Args:
        weights: the model's weights on disk.
        layer: which block.
        heads: offsets, folding, and how many vectors.
        stream: directions and samples around this block.
        shape: how many sets and positions there are.
        vocabulary: W_Uᵀ W_E, (d_model, d_model); None leaves copying scores out.

    Raises:
        ModelError: a projection is missing, or a weight is not finite.
    """
    circuits = read_circuits(weights, layer, heads.offsets, heads.fold_norm)
    thins = {name: _thin(circuits, name, layer) for name in ("query", "key", "value", "written")}
    each, kv = np.arange(len(circuits.query)), circuits.kv_head_of
    vectors = min(heads.vectors, weights.dimensions.d_head)
    qk = [
        decompose(thins["query"], thins["key"], vectors, each, kv, circuits.rotations[offset])
        for offset in heads.offsets
    ]
    vo = decompose(thins["value"], thins["written"], vectors, kv, each)
    ranks = numerical_rank(thins["query"]), numerical_rank(thins["key"])[kv]
    copying = np.full(len(each), np.nan)
    if vocabulary is not None:
        copying = copying_score(circuits.value, circuits.written, kv, vocabulary)
    return {
        **_stacked(qk, vo),
        **_against_directions(circuits, thins, qk[0], vo, stream),
        "null_dimension": weights.dimensions.d_model - np.stack(ranks),
        "null_variance": _null_variance(circuits, thins, stream, shape),
        "copying_score": copying,
    }


def _against_directions(
    circuits: Circuits, thins: Mapping[str, Thin], qk: Decomposition, vo: Decomposition, stream: Stream
) -> Arrays:
    """Return how each circuit meets each contrast's direction: alignment (contrast, side, head), and cosines."""
    each, kv, turned = np.arange(len(circuits.query)), circuits.kv_head_of, circuits.rotations[0]
    read = _as_read(stream.read, circuits)
    query, key, value, written = (thins[name] for name in ("query", "key", "value", "written"))
    gains = {
        "qk_query": gain(read, query, key, each, kv, turned),
        "qk_key": gain(read, key, query, kv, each, turned.T),
        "vo_read": gain(read, value, written, kv, each),
        "vo_write": gain(stream.written, written, value, each, kv),
    }
    vectors = {"qk_query": qk.left, "qk_key": qk.right, "vo_read": vo.left, "vo_write": vo.right}
    leading = {"qk": qk.singular_values[:, 0], "vo": vo.singular_values[:, 0]}
    met = {side: stream.written if side == "vo_write" else read for side in SIDES}
    with np.errstate(invalid="ignore"):  # a head of zeros has no alignment
        alignment = np.stack([gains[side] / leading[side[:2]] for side in SIDES], axis=1)
    cosines = [np.einsum("cd,hvd->chv", met[side], vectors[side]) for side in SIDES]
    return {"direction_alignment": alignment, "vector_cosine": np.stack(cosines, axis=1)}


def _null_variance(
    circuits: Circuits, thins: Mapping[str, Thin], stream: Stream, shape: tuple[int, int]
) -> NDArray[np.float64]:
    """Return the share of the variance of what attention reads that no query, or key, sees."""
    kv = circuits.kv_head_of
    found = np.full((*shape, len(PROJECTIONS), len(kv)), np.nan)
    for place, samples in stream.samples.items():
        exact = samples.astype(np.float64)
        seen = exact if circuits.input_norm is None else normalised(exact, circuits.input_norm)
        found[place] = np.stack([null_share(seen, thins["query"]), null_share(seen, thins["key"])[kv]])
    return found


def vocabulary_product(weights: "Weights", block: int = 8192) -> NDArray[np.float32] | None:
    """Return W_Uᵀ W_E, (d_model, d_model), summed over the vocabulary in blocks; None where there is no such product.

    There is none where embeddings are projected into the stream (OPT-350m), or the files hold no head.

    Raises:
        ModelError: a weight is not finite.
    """
    d_model = weights.dimensions.d_model
    if not weights.has_unembedding or weights.embedding(slice(0, 1)).shape[1] != d_model:
        return None
    total = np.zeros((d_model, d_model), dtype=np.float32)
    for start in range(0, weights.vocabulary_size, block):
        rows = slice(start, min(start + block, weights.vocabulary_size))
        total += (weights.unembedding(rows).T @ weights.embedding(rows)).numpy()
    if not np.isfinite(total).all():
        raise ModelError("the embedding, or the language-model head, has a weight that is not finite")
    return total


def _thin(circuits: Circuits, name: str, layer: int) -> Thin:
    try:
        return thin(getattr(circuits, name))
    except ValueError as error:
        projection = f"{name.replace('written', 'output')} projection"
        shared = "key-value " if name in ("key", "value") else ""
        raise ModelError(f"layer {layer}, {projection}: {shared}{error}") from error


def _stacked(qk: Sequence[Decomposition], vo: Decomposition) -> Arrays:
    """Return values and vectors of both circuits as (circuit, offset, head, …); NaN for VO past the first offset."""
    found: Arrays = {}
    for name, attribute, dtype in (
        ("singular_values", "singular_values", np.float64),
        ("left_vectors", "left", np.float32),
        ("right_vectors", "right", np.float32),
    ):
        of_vo = getattr(vo, attribute)
        both = np.empty((len(CIRCUITS), len(qk), *of_vo.shape), dtype=dtype)
        for index, one in enumerate(qk):
            both[0, index] = getattr(one, attribute)
        both[1, 0], both[1, 1:] = of_vo, np.nan
        found[name] = both
    return found


def _as_read(directions: NDArray[np.float64], circuits: Circuits) -> NDArray[np.float64]:
    """Return unit vectors as attention sees them: a norm takes out the mean and scales each feature."""
    norm = circuits.input_norm
    if norm is None:
        return directions
    seen = projected(directions, norm) * norm.scale
    unit: NDArray[np.float64] = seen / np.linalg.norm(seen, axis=-1, keepdims=True)
    return unit
