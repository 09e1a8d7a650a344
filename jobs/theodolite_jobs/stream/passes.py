"""What one Dask task does with one shard: read it, refuse what must not be averaged, and reduce it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32
from numpy.typing import NDArray

from theodolite.errors import RunDamagedError
from theodolite.sites import Site
from theodolite.store.activations import read_shard
from theodolite.store.commits import read_commit
from theodolite.store.runs import Run
from theodolite_jobs.statistics.curves import Scatter, scatter
from theodolite_jobs.statistics.moments import Moments, merge, moments, on_sphere

SPACES = ("raw", "sphere")
"""Activations as they are, and scaled to norm √d_model."""


@dataclass(frozen=True)
class StreamMoments:
    """Moments of activations, of the same on the sphere (site, position, layer, d_model), and of norms (… layer)."""

    raw: Moments
    sphere: Moments
    norm: Moments


@dataclass(frozen=True)
class Means:
    """Means of a contrast's two sets in one space, each (site, position, layer, d_model)."""

    positive: NDArray[np.float64]
    negative: NDArray[np.float64]


@dataclass(frozen=True)
class Selection:
    """Which samples of a set take part, and which of its positions.

    Attributes:
        prompt_set: the set's name.
        excluded: samples left out: quarantined, or partners of quarantined ones.
        positions: indices into the set's own positions.
    """

    prompt_set: str
    excluded: frozenset[int]
    positions: tuple[int, ...]


def shard_moments(run: Run, selection: Selection, shard_index: int) -> StreamMoments:
    """Return the moments of one shard's selected samples."""
    parts = []
    for values in _read_sites(run, selection, shard_index):
        layers = [_layer_moments(values[:, :, layer]) for layer in range(values.shape[2])]
        parts.append(StreamMoments(*(_stack_kind(layers, kind, axis=1) for kind in _KINDS)))
    return StreamMoments(*(_stack_kind(parts, kind, axis=0) for kind in _KINDS))


def merge_streams(first: StreamMoments, second: StreamMoments) -> StreamMoments:
    """Return the moments of two parts together."""
    return StreamMoments(*(merge(getattr(first, kind), getattr(second, kind)) for kind in _KINDS))


def shard_scatter(
    run: Run,
    positive: Selection | None,
    negative: Selection | None,
    shard_index: int,
    means: dict[str, Means],
    paired: bool,
) -> dict[str, Scatter]:
    """Return one shard's part of a contrast's sums in each space.

    Where the sets are paired, both shards of that index are read together; otherwise one side is None.
    """
    sides = [list(_read_sites(run, side, shard_index)) if side is not None else None for side in (positive, negative)]
    result: dict[str, Scatter] = {}
    for space in SPACES:
        sites = range(len(means[space].positive))
        result[space] = _stack_scatter(
            [_site_scatter(sides, site, means[space], space, paired) for site in sites], axis=0
        )
    return result


def shard_inputs(
    run: Run, prompt_set: str, shard_index: int, excluded: frozenset[int], layers: Sequence[int]
) -> NDArray[np.float32]:
    """Return `resid_pre` of one shard's usable samples at some layers, (sample, position, layer, d_model)."""
    commit = read_commit(run.location, prompt_set, shard_index)
    keep = np.array([sample not in excluded for sample in range(commit.start, commit.stop)])
    values = read_shard(run, commit, Site.RESID_PRE)[keep]
    _refuse_non_finite(np.isfinite(values).all(axis=-1), run, f"{commit.name}, {Site.RESID_PRE}")
    at: NDArray[np.float32] = values[:, :, [run.record.layers.index(layer) for layer in layers]]
    return at


def _site_scatter(
    sides: list[list[NDArray[np.float32]] | None], site: int, means: Means, space: str, paired: bool
) -> Scatter:
    a, b = means.positive[site], means.negative[site]
    layers = []
    for layer in range(a.shape[1]):
        p, q = (
            np.empty((0, *a[:, layer].shape)) if side is None else _in_space(side[site][:, :, layer], space)
            for side in sides
        )
        layers.append(scatter(p, q, a[:, layer], b[:, layer], paired=paired))
    return _stack_scatter(layers, axis=1)


def _read_sites(run: Run, selection: Selection, shard_index: int) -> Iterable[NDArray[np.float32]]:
    """Yield each block site's selected samples and positions as (sample, position, layer, d_model)."""
    commit = read_commit(run.location, selection.prompt_set, shard_index)
    keep = np.array([sample not in selection.excluded for sample in range(commit.start, commit.stop)])
    for site in run.record.spec.capture.sites:
        values = read_shard(run, commit, site)
        values = values[keep][:, list(selection.positions)]
        _refuse_non_finite(np.isfinite(values).all(axis=-1), run, f"{commit.name}, {site}")
        yield values


def _refuse_non_finite(finite: Bool[np.ndarray, "sample position layer"], run: Run, shard: str) -> None:
    if not finite.all():
        row, _, layer = (int(index) for index in np.argwhere(~finite)[0])
        raise RunDamagedError(
            f"{run.id}: shard {shard}: the activation of its {row}. usable sample at layer "
            f"{run.record.layers[layer]} is not finite, and nothing is averaged over that; "
            f"run `theodolite verify {run.id}`"
        )


_KINDS = ("raw", "sphere", "norm")


def _layer_moments(values: Float32[np.ndarray, "sample position d_model"]) -> StreamMoments:
    """Reduce one layer at a time: the float64 copies stay small, and in the cache."""
    samples = values.astype(np.float64)
    return StreamMoments(moments(samples), moments(on_sphere(samples)), moments(np.linalg.norm(samples, axis=-1)))


def _in_space(values: NDArray[np.float32], space: str) -> NDArray[np.float64]:
    samples = values.astype(np.float64)
    return on_sphere(samples) if space == "sphere" else samples


def _stack_kind(parts: list[StreamMoments], kind: str, axis: int) -> Moments:
    of_kind = [getattr(part, kind) for part in parts]
    arrays = (
        np.stack([getattr(part, name) for part in of_kind], axis) for name in ("mean", "m2", "minimum", "maximum")
    )
    return Moments(of_kind[0].count, *arrays)


def _stack_scatter(parts: list[Scatter], axis: int) -> Scatter:
    names = ("positive", "negative", "cross", "cross_trace")
    return Scatter(*(np.stack([getattr(part, name) for part in parts], axis) for name in names))
