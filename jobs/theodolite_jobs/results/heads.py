"""The result groups of a model's attention heads: its weights, and a run's activations → tasks by layer → results."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from dask.delayed import delayed
from numpy.typing import NDArray

from theodolite.errors import ModelError, SiteNotFoundError
from theodolite.spec import HeadsSpec, digest_of
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group
from theodolite.store.result_writer import (
    build_group,
    check_claim,
    claim_layers,
    drop_groups,
    write_groups,
    write_layer,
)
from theodolite.store.runs import Run
from theodolite_jobs.passes.selections import all_commits, captured_digest
from theodolite_jobs.results.circuits import notes_on, read_circuits
from theodolite_jobs.results.heads_layer import CIRCUITS, PROJECTIONS, SIDES, Stream, layer_atlas, vocabulary_product
from theodolite_jobs.results.heads_stream import Captured, Directions, captured
from theodolite_jobs.statistics.composition import KINDS, composition
from theodolite_jobs.statistics.heads import coverage_rank, effective_rank, stable_rank
from theodolite_jobs.tasks import Progress, in_windows, scheduler

if TYPE_CHECKING:
    from theodolite_jobs.models.weights import Weights

HEADS_VERSION = COMPOSITION_VERSION = 1
"""Raised whenever a number of the group could change."""

BY_LAYER = ("left_vectors", "right_vectors")
"""What is written as it comes, since all layers' would not fit in memory."""

_VECTOR_BYTES = 128 * 2**20  # of vectors that each core may have finished before they are written

Arrays = dict[str, NDArray[Any]]


def stale_heads(run: Run, heads: HeadsSpec) -> dict[str, str]:
    """Return the digests of the groups of heads that are missing or outdated, by name.

    Raises:
        SiteNotFoundError: composition is asked for of layers that the model does not have.
    """
    last = run.record.model.n_layers - 1
    if heads.composition is not None and heads.composition[1] > last:
        raise SiteNotFoundError(
            f"heads.composition: this model has no layer {heads.composition[1]}; it has 0 to {last}"
        )
    finished = finished_groups(run)
    about_stream = {"captured": captured_digest(all_commits(run)), "directions": finished.get("directions")}
    wanted = {"heads": digest_of({"vectors": vectors_digest(heads), "offsets": heads.offsets, **about_stream})}
    if heads.composition is not None:
        layers = {"layers": heads.composition, "fold_norm": heads.fold_norm}
        wanted["composition"] = digest_of({"group": "composition", "version": COMPOSITION_VERSION, **layers})
    return {name: digest for name, digest in wanted.items() if finished.get(name) != digest}


def survey_heads(
    run: Run, weights: "Weights", heads: HeadsSpec, dask_address: str | None, progress: Progress
) -> list[str]:
    """Compute the result groups of heads that are missing or outdated; return their names.

    Where the run has directions and activations, heads are held against them.

    Raises:
        ModelError: a projection is missing, or a weight is not finite.
        SiteNotFoundError: composition is asked for of layers that the model does not have.
        StoreError: somebody else computes the same with other options.
    """
    stale = stale_heads(run, heads)
    # Copying scores are left out where singular values alone are asked for.
    vocabulary = vocabulary_product(weights) if "heads" in stale and heads.vectors else None
    with scheduler(dask_address):
        if digest := stale.get("heads"):
            drop_groups(run, ["heads", *_words_of_other_vectors(run, heads)])
            claim_layers(run, "heads", digest)
            group = _heads(run, weights, heads, vocabulary, digest, progress)
            check_claim(run, "heads", digest)
            write_groups(run, {"heads": group}, {}, {"heads": digest})
        if digest := stale.get("composition"):
            group = _composition(weights, heads, digest, progress)
            write_groups(run, {"composition": group}, {}, {"composition": digest})
    return list(stale)


def vectors_digest(heads: HeadsSpec) -> str:
    """Return a digest of what singular vectors at offset 0 rest on, beside the model's weights."""
    return digest_of({"version": HEADS_VERSION, "fold_norm": heads.fold_norm, "vectors": heads.vectors})


def _words_of_other_vectors(run: Run, heads: HeadsSpec) -> list[str]:
    """Return the group `words` where it is about vectors that will no longer be there."""
    if "words" not in finished_groups(run) or read_group(run, "words").attrs["vectors"] == vectors_digest(heads):
        return []
    return ["words"]


def _heads(
    run: Run,
    weights: "Weights",
    heads: HeadsSpec,
    vocabulary: NDArray[np.float32] | None,
    digest: str,
    progress: Progress,
) -> xr.Dataset:
    sizes, stream, around = weights.dimensions, captured(run), Directions(run, weights.anatomy)
    coordinates: Mapping[str, Sequence[Any]] = {
        "circuit": CIRCUITS,
        "offset": heads.offsets,
        "layer": range(sizes.n_layers),
        "head": range(sizes.n_heads),
        "rank": range(sizes.d_head),
        "vector": range(min(heads.vectors, sizes.d_head)),
        "d_model": range(sizes.d_model),
        "projection": PROJECTIONS,
        "set": stream.sets,
        "position": stream.positions,
        "contrast": around.contrasts,
        "side": SIDES,
    }
    lengths = {dim: len(labels) for dim, labels in coordinates.items()}
    parts: list[Arrays] = []
    for part in _layer_parts(weights, heads, stream, around, vocabulary, progress):
        for name in BY_LAYER:
            write_layer(run, "heads", name, lengths, len(parts), part.pop(name))
        parts.append(part)
    arrays = _over_layers(parts)
    values = arrays["singular_values"]
    arrays |= {"coverage_99": coverage_rank(np.nan_to_num(values)), "effective_rank": effective_rank(values)}
    arrays |= {"stable_rank": stable_rank(values), "n_samples": stream.counts()}
    attributes = {
        "digest": digest,
        "version": HEADS_VERSION,
        "options": heads.model_dump(mode="json"),
        "notes": notes_on(weights, heads.fold_norm),
        "direction_position": around.position,
    }
    return build_group("heads", arrays, coordinates, attributes)


def _layer_parts(
    weights: "Weights",
    heads: HeadsSpec,
    stream: Captured,
    around: Directions,
    vocabulary: NDArray[np.float32] | None,
    progress: Progress,
) -> Iterator[Arrays]:
    """Yield what each layer's task returns, in order; a bounded number of them is held at once."""
    sizes = weights.dimensions
    vector_bytes = 4 * 4 * len(heads.offsets) * sizes.n_heads * min(heads.vectors, sizes.d_head) * sizes.d_model
    rounds = max(1, min(8, _VECTOR_BYTES // (vector_bytes + 1)))
    shape = len(stream.sets), len(stream.positions)
    task, shared = delayed(layer_atlas, pure=False), delayed(vocabulary, pure=False)

    def say(before: int, count: int) -> None:
        progress("heads", before + count, sizes.n_layers)

    for layers, samples in stream.by_layer(sizes.n_layers):
        known = [Stream(around.read(layer), around.written(layer), samples.get(layer, {})) for layer in layers]
        tasks = [task(weights, layer, heads, of, shape, shared) for layer, of in zip(layers, known, strict=True)]
        yield from in_windows(tasks, partial(say, layers[0]), rounds)


def _over_layers(parts: Sequence[Arrays]) -> Arrays:
    """Stack the parts of all layers where each variable has its layers: before its heads."""
    before_heads = {"singular_values": 2, "null_dimension": 1, "null_variance": 3, "copying_score": 0}
    before_heads |= {"direction_alignment": 2, "vector_cosine": 2}
    return {name: np.stack([part[name] for part in parts], axis) for name, axis in before_heads.items()}


def _composition(weights: "Weights", heads: HeadsSpec, digest: str, progress: Progress) -> xr.Dataset:
    assert heads.composition is not None
    layers = list(range(heads.composition[0], heads.composition[1] + 1))
    n_heads = weights.dimensions.n_heads
    score = np.full((len(KINDS), len(layers), n_heads, len(layers), n_heads), np.nan)
    pairs = [(first, second) for second in range(len(layers)) for first in range(second)]
    task = delayed(_pair_composition, pure=False)
    tasks = [task(weights, layers[first], layers[second], heads.fold_norm) for first, second in pairs]
    found = in_windows(tasks, lambda count: progress("composition", count, len(tasks)), rounds=1)
    for (first, second), values in zip(pairs, found, strict=True):
        score[:, first, :, second] = values
    coordinates: Mapping[str, Sequence[Any]] = {
        "composition": KINDS,
        "layer": layers,
        "head": range(n_heads),
        "layer_other": layers,
        "head_other": range(n_heads),
    }
    attributes = {"digest": digest, "version": COMPOSITION_VERSION, "fold_norm": int(heads.fold_norm)}
    return build_group("composition", {"score": score}, coordinates, attributes)


def _pair_composition(weights: "Weights", writer: int, reader: int, fold_norm: bool) -> NDArray[np.float64]:
    circuits = [read_circuits(weights, layer, fold_norm=fold_norm) for layer in (writer, reader)]
    try:
        return composition(*circuits)
    except ValueError as error:
        raise ModelError(f"layer {writer} or {reader}: {error}") from error
