"""What one Dask task does with one shard: the first pass, and the second, which needs the means of the first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.record import Gathered
from theodolite.sites import Site
from theodolite.store.runs import Run
from theodolite_jobs.passes.gather import (
    FoldArrays,
    StreamArrays,
    blocks_of,
    measure_norms,
    remembering,
    travel_moments,
)
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.samples import SampleSelection, SelectedShard
from theodolite_jobs.statistics import sphere
from theodolite_jobs.statistics.curves import Scatter, scatter
from theodolite_jobs.statistics.moments import (
    Extremes,
    Moments,
    extremes,
    merge,
    merge_extremes,
    moments,
    on_sphere,
)
from theodolite_jobs.statistics.separation import FOLDS, Folds, fold_scores


@dataclass(frozen=True)
class FirstPass:
    """What the first pass knows of some samples; parts of different samples are merged.

    Attributes:
        moments: by name. Of `stream`: `raw` and `sphere` (site, position, layer, d_model), `norm` (site, position,
            layer). Of `norms`: `norms` (position, norm, quantity), `final` (position, d_model). Of `travel`: `steps`
            (position, layer, step), `path` (position, quantity).
        extremes: of `raw` and of `norms`.
        folds: moments of each fold, (fold, site, position, layer, d_model).
    """

    moments: dict[str, Moments]
    extremes: dict[str, Extremes]
    folds: Folds | None

    @property
    def count(self) -> int:
        """How many samples it is about."""
        if self.folds is not None:
            return int(self.folds.counts.sum())
        return next(iter(self.moments.values())).count

    def merged(self, other: "FirstPass") -> "FirstPass":
        """Return what is known of both parts' samples together."""
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
    """The direction that each fold's samples are scored along, and the midpoint on it.

    Attributes:
        units: (fold, site, position, layer, d_model).
        midpoints: (fold, site, position, layer).
    """

    units: NDArray[np.float64]
    midpoints: NDArray[np.float64]


@dataclass(frozen=True)
class SecondPass:
    """What the second pass knows of some samples of a contrast; parts of different samples are added.

    Attributes:
        scatter: sums of the interval, by space.
        positive: scores of P, arrays of (sample, site, position, layer).
        negative: the same of N.
    """

    scatter: dict[str, Scatter]
    positive: tuple[NDArray[np.float64], ...]
    negative: tuple[NDArray[np.float64], ...]

    def __add__(self, other: "SecondPass") -> "SecondPass":
        sums = {space: part + other.scatter[space] for space, part in self.scatter.items()}
        return SecondPass(sums, self.positive + other.positive, self.negative + other.negative)


def first_pass(
    run: Run, selection: SampleSelection, shard_index: int, kinds: frozenset[Gathered], norms: Sequence[NormLayer]
) -> FirstPass:
    """Return what is asked of one shard's selected samples; each layer is unpacked and widened to float64 once."""
    shard = SelectedShard(run, selection, shard_index)
    at = remembering(shard)
    sites, n_layers = tuple(run.record.spec.capture.sites), len(run.record.layers)
    shape = len(sites), len(selection.positions), n_layers
    stream = StreamArrays(shape, len(shard.samples), run.record.model.d_model) if "stream" in kinds else None
    folds = FoldArrays(shape, shard.samples % FOLDS, run.record.model.d_model) if "folds" in kinds else None
    rows = len(shard.samples) * len(selection.positions)
    quantities = np.full((rows, len(norms), len(sphere.QUANTITIES)), np.nan)

    def visit(index: int) -> None:
        for number, site in enumerate(sites):
            if stream is not None:
                stream.put(number, index, at(site, index))
            if folds is not None:
                folds.put(number, index, at(site, index))
        if "norms" in kinds:
            measure_norms(quantities, norms, at, index, last=index == n_layers - 1)

    found: dict[str, Moments] = {}
    ends: dict[str, Extremes] = {}
    if "travel" in kinds:
        found |= travel_moments(run, blocks_of(run, sites, at, visit), len(shard.samples), len(selection.positions))
    else:
        for index in range(n_layers):
            visit(index)
    if stream is not None:
        found |= stream.moments()
        ends["raw"] = stream.ends
    if "norms" in kinds:
        of_samples = quantities.reshape(len(shard.samples), len(selection.positions), *quantities.shape[1:])
        found["norms"], ends["norms"] = moments(of_samples), extremes(of_samples)
        found["final"] = moments(shard.layer(Site.RESID_FINAL).astype(np.float64))
    return FirstPass(found, ends, folds.folds() if folds is not None else None)


def second_pass(
    run: Run,
    positive: SampleSelection | None,
    negative: SampleSelection | None,
    shard_index: int,
    against: tuple[Mapping[str, Means], Axes | None],
    paired: bool,
) -> SecondPass:
    """Return one shard's part of a contrast's sums in each space that has means, and its scores where there are axes.

    Where the sets are paired, both shards of that index are read together; otherwise one side is None.
    """
    means, axes = against
    chosen = [side for side in (positive, negative) if side is not None]
    shape = len(run.record.spec.capture.sites), len(chosen[0].positions), len(run.record.layers)
    sides = [SelectedShard(run, side, shard_index) if side is not None else None for side in (positive, negative)]
    sums = {space: _no_scatter(shape) for space in means}
    scores = [() if axes is None or side is None else (np.empty((len(side.samples), *shape)),) for side in sides]
    for number, site in enumerate(run.record.spec.capture.sites):
        for index, position in product(range(shape[2]), range(shape[1])):
            place = number, position, index
            samples = [
                np.empty((0, run.record.model.d_model))
                if side is None
                else side.layer(site, index)[:, position].astype(np.float64)
                for side in sides
            ]
            for space, of_space in means.items():
                p, q = (on_sphere(one) if space == "sphere" else one for one in samples)
                part = scatter(p, q, of_space.positive[place], of_space.negative[place], paired=paired)
                for name in ("positive", "negative", "cross", "cross_trace"):
                    getattr(sums[space], name)[place] = getattr(part, name)
            for side, one, arrays in zip(sides, samples, scores, strict=True):
                for array in arrays:
                    assert axes is not None
                    assert side is not None
                    units, midpoints = axes.units[:, *place], axes.midpoints[:, *place]
                    array[:, *place] = fold_scores(one, side.samples % FOLDS, units, midpoints)
    return SecondPass(sums, *scores)


def _no_scatter(shape: tuple[int, ...]) -> Scatter:
    outer = [np.zeros((*shape, 2, 2)) for _ in range(3)]
    return Scatter(outer[0], outer[1], outer[2], np.zeros(shape))
