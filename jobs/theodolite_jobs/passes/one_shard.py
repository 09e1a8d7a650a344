"""Dask tasks on one shard: the first pass, and the second pass, which needs the means of the first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.record import Output
from theodolite.sites import Site
from theodolite.store.runs import Run
from theodolite_jobs.passes.gather import (
    FoldArrays,
    StreamArrays,
    cached_reader,
    captured_blocks,
    measure_norms,
    travel_moments,
)
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.samples import SampleSelection, SelectedShard
from theodolite_jobs.statistics import sphere
from theodolite_jobs.statistics.curves import Scatter, scatter
from theodolite_jobs.statistics.moments import Extremes, Moments, extremes, merge, merge_extremes, moments, on_sphere
from theodolite_jobs.statistics.separation import FOLDS, Folds, fold_scores


@dataclass(frozen=True)
class FirstPass:
    """Outputs of the first pass over some samples.

    Attributes:
        moments: by name. For `stream`: `raw` and `sphere` (site, position, layer, d_model), `norm` (site, position,
            layer). For `norms`: `norms` (position, norm, quantity), `final` (position, d_model). For `travel`: `steps`
            (position, layer, step), `path` (position, quantity).
        extremes: minimum and maximum of `raw` and of `norms`.
        folds: moments of each fold, (fold, site, position, layer, d_model); None unless requested.
    """

    moments: dict[str, Moments]
    extremes: dict[str, Extremes]
    folds: Folds | None

    @property
    def count(self) -> int:
        """Number of samples."""
        if self.folds is not None:
            return int(self.folds.counts.sum())
        return next(iter(self.moments.values())).count

    def merged(self, other: "FirstPass") -> "FirstPass":
        """Return the outputs for the samples of both parts."""
        return FirstPass(
            {name: merge(part, other.moments[name]) for name, part in self.moments.items()},
            {name: merge_extremes(part, other.extremes[name]) for name, part in self.extremes.items()},
            self.folds + other.folds if self.folds and other.folds else None,
        )


@dataclass(frozen=True)
class Means:
    """Means of a contrast's two sets in one space, each (site, position, layer, d_model)."""

    positive: NDArray[np.float64]
    negative: NDArray[np.float64]


@dataclass(frozen=True)
class Axes:
    """The direction along which each fold's samples are scored, and the midpoint's projection on it.

    Attributes:
        units: (fold, site, position, layer, d_model).
        midpoints: (fold, site, position, layer).
    """

    units: NDArray[np.float64]
    midpoints: NDArray[np.float64]


@dataclass(frozen=True)
class SecondPass:
    """Outputs of the second pass over some samples of a contrast; `+` merges those of disjoint samples.

    Attributes:
        scatter: sums for the cosine's interval, by space.
        positive: scores of P, arrays of (sample, site, position, layer).
        negative: scores of N, arrays of (sample, site, position, layer).
    """

    scatter: dict[str, Scatter]
    positive: tuple[NDArray[np.float64], ...]
    negative: tuple[NDArray[np.float64], ...]

    def __add__(self, other: "SecondPass") -> "SecondPass":
        sums = {space: part + other.scatter[space] for space, part in self.scatter.items()}
        return SecondPass(sums, self.positive + other.positive, self.negative + other.negative)


def first_pass(
    run: Run, selection: SampleSelection, shard_index: int, outputs: frozenset[Output], norms: Sequence[NormLayer]
) -> FirstPass:
    """Return the requested outputs for one shard's selected samples; each layer is converted to float64 once."""
    shard = SelectedShard(run, selection, shard_index)
    at = cached_reader(shard)
    sites, n_layers = tuple(run.record.spec.capture.sites), len(run.record.layers)
    shape = len(sites), len(selection.positions), n_layers
    stream = StreamArrays(shape, len(shard.samples), run.record.model.d_model) if "stream" in outputs else None
    folds = FoldArrays(shape, shard.samples % FOLDS, run.record.model.d_model) if "folds" in outputs else None
    rows = len(shard.samples) * len(selection.positions)
    quantities = np.full((rows, len(norms), len(sphere.QUANTITIES)), np.nan)

    def visit(index: int) -> None:
        for number, site in enumerate(sites):
            if stream is not None:
                stream.put(number, index, at(site, index))
            if folds is not None:
                folds.put(number, index, at(site, index))
        if "norms" in outputs:
            measure_norms(quantities, norms, at, index, last=index == n_layers - 1)

    parts: dict[str, Moments] = {}
    bounds: dict[str, Extremes] = {}
    if "travel" in outputs:
        blocks = captured_blocks(run, sites, at, visit)
        parts |= travel_moments(run, blocks, len(shard.samples), len(selection.positions))
    else:
        for index in range(n_layers):
            visit(index)
    if stream is not None:
        parts |= stream.moments()
        bounds["raw"] = stream.extremes
    if "norms" in outputs:
        samples = quantities.reshape(len(shard.samples), len(selection.positions), *quantities.shape[1:])
        parts["norms"], bounds["norms"] = moments(samples), extremes(samples)
        parts["final"] = moments(shard.layer(Site.RESID_FINAL).astype(np.float64))
    return FirstPass(parts, bounds, folds.folds() if folds is not None else None)


def second_pass(
    run: Run,
    positive: SampleSelection | None,
    negative: SampleSelection | None,
    shard_index: int,
    means_and_axes: tuple[Mapping[str, Means], Axes | None],
    paired: bool,
) -> SecondPass:
    """Return one shard's part of a contrast's sums in each space of the means, and its scores along the axes.

    For paired sets the task reads the shards of both sides with that index; otherwise one side is None.
    """
    means, axes = means_and_axes
    selections = [side for side in (positive, negative) if side is not None]
    shape = len(run.record.spec.capture.sites), len(selections[0].positions), len(run.record.layers)
    sides = [SelectedShard(run, side, shard_index) if side is not None else None for side in (positive, negative)]
    sums = {space: _no_scatter(shape) for space in means}
    scores = [() if axes is None or side is None else (np.empty((len(side.samples), *shape)),) for side in sides]
    for number, site in enumerate(run.record.spec.capture.sites):
        for index, position in product(range(shape[2]), range(shape[1])):
            at = number, position, index
            samples = [
                np.empty((0, run.record.model.d_model))
                if side is None
                else side.layer(site, index)[:, position].astype(np.float64)
                for side in sides
            ]
            for space, centre in means.items():
                p, q = (on_sphere(one) if space == "sphere" else one for one in samples)
                part = scatter(p, q, centre.positive[at], centre.negative[at], paired=paired)
                for name in ("positive", "negative", "cross", "cross_trace"):
                    getattr(sums[space], name)[at] = getattr(part, name)
            for side, one, arrays in zip(sides, samples, scores, strict=True):
                for array in arrays:
                    assert axes is not None
                    assert side is not None
                    units, midpoints = axes.units[:, *at], axes.midpoints[:, *at]
                    array[:, *at] = fold_scores(one, side.samples % FOLDS, units, midpoints)
    return SecondPass(sums, *scores)


def _no_scatter(shape: tuple[int, ...]) -> Scatter:
    outer = [np.zeros((*shape, 2, 2)) for _ in range(3)]
    return Scatter(outer[0], outer[1], outer[2], np.zeros(shape))
