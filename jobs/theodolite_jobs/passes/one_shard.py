"""Dask tasks on one shard: the first pass, and the second pass, which needs the means of the first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.schema import Output
from theodolite.sites import Site
from theodolite.store.runs import Run
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.norms_and_steps import cached_reader, captured_blocks, measure_norms, travel_outputs
from theodolite_jobs.passes.samples import Samples, SampleSelection, SelectedShard
from theodolite_jobs.passes.stream_arrays import FoldArrays, StreamArrays
from theodolite_jobs.statistics import norm_quantities
from theodolite_jobs.statistics.folds import FOLDS, Folds, fold_scores
from theodolite_jobs.statistics.kernels import row_lengths
from theodolite_jobs.statistics.moments import (
    Extremes,
    Moments,
    extremes,
    merge,
    merge_extremes,
    moments,
    sphere_factors,
)
from theodolite_jobs.statistics.scatter import Scatter, mean_dots, no_sums, scatter
from theodolite_jobs.statistics.step_products import StepProducts, merge_products

Means = Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Means of a contrast's two sets by space, each (site, position, layer, d_model)."""

Axes = tuple[NDArray[np.float64], NDArray[np.float64]]
"""What `fold_directions` returns: directions, (fold, site, position, layer, d_model), and projected midpoints."""

Dots = tuple[tuple[NDArray[np.float64], ...], tuple[NDArray[np.float64], ...]]
"""Arrays of (sample, 2, site, position, layer) for samples of P, and for samples of N."""

BAND_SAMPLES = 512
"""Number of first samples of a set that give the correlations between depths, for simultaneous bands."""


@dataclass(frozen=True)
class FirstPass:
    """Outputs of the first pass over some samples.

    Attributes:
        moments: by name. For `stream`: `raw` and `sphere` (site, position, layer, d_model), `norm` (site, position,
            layer). For `norms`: `norms` (position, norm, quantity), and `final` (position, d_model) of `resid_final`
            if it was captured. For `travel`: `steps` (position, layer, step), `path` (position, quantity).
        extremes: minimum and maximum of `raw` and of `norms`.
        folds: moments of each fold, (fold, site, position, layer, d_model), over the samples whose activations are
            stored; None unless requested.
        n_groups: number of samples whose activations are stored, plus the number of reduced shards with samples.
        products: for `travel`: sums of products of deviations of the stream and its steps; None unless requested.
        stored: the outputs over the samples whose activations are stored, if these are not all.
    """

    moments: dict[str, Moments]
    extremes: dict[str, Extremes]
    folds: Folds | None
    n_groups: int
    products: StepProducts | None = None
    stored: "FirstPass | None" = None

    @property
    def count(self) -> int:
        """Number of samples."""
        return next((part.count for part in self.moments.values()), 0)

    def merged(self, other: "FirstPass") -> "FirstPass":
        """Return the outputs for the samples of both parts."""
        return FirstPass(
            {name: merge(part, other.moments[name]) for name, part in self.moments.items()},
            {name: merge_extremes(part, other.extremes[name]) for name, part in self.extremes.items()},
            self.folds + other.folds if self.folds and other.folds else self.folds or other.folds,
            self.n_groups + other.n_groups,
            merge_products(self.products, other.products) if self.products and other.products else None,
        )


@dataclass(frozen=True)
class SecondPass:
    """Outputs of the second pass over some samples of a contrast; `+` merges those of disjoint samples.

    Attributes:
        scatter: sums for the cosine's interval, by space.
        dots: what `mean_dots` returns for the first samples, by space.
        positive: scores of P, arrays of (sample, site, position, layer).
        negative: scores of N, arrays of (sample, site, position, layer).
    """

    scatter: dict[str, Scatter]
    dots: dict[str, Dots]
    positive: tuple[NDArray[np.float64], ...]
    negative: tuple[NDArray[np.float64], ...]

    def __add__(self, other: "SecondPass") -> "SecondPass":
        sums = {space: part + other.scatter[space] for space, part in self.scatter.items()}
        dots = {space: (p + other.dots[space][0], q + other.dots[space][1]) for space, (p, q) in self.dots.items()}
        return SecondPass(sums, dots, self.positive + other.positive, self.negative + other.negative)


def first_pass(
    run: Run, selection: SampleSelection, shard_index: int, outputs: frozenset[Output], norms: Sequence[NormLayer]
) -> FirstPass:
    """Return the requested outputs for the selected samples of one shard, whose activations are stored."""
    return measure(run, SelectedShard(run, selection, shard_index), outputs, norms)


def measure(run: Run, shard: Samples, outputs: frozenset[Output], norms: Sequence[NormLayer]) -> FirstPass:
    """Return the requested outputs for samples that are stored or in memory."""
    at = cached_reader(shard)
    sites, n_layers, d_model = run.record.spec.capture.stream_sites, len(run.record.layers), run.record.model.d_model
    n_samples, n_positions = len(shard.samples), shard.n_positions
    shape = (len(sites), n_positions, n_layers)
    stream = StreamArrays(shape, n_samples, d_model) if "stream" in outputs else None
    folds = FoldArrays(shape, shard.samples % FOLDS, d_model) if "folds" in outputs else None
    quantities = np.full((n_samples * n_positions, len(norms), len(norm_quantities.QUANTITIES)), np.nan)

    def visit(index: int) -> None:
        for (number, site), arrays in product(enumerate(sites), (stream, folds)):
            if arrays is not None and run.record.has_site_at(site, index):
                arrays.put(number, index, at(site, index))
            elif arrays is not None:
                arrays.leave_out(number, index)
        if "norms" in outputs:
            measure_norms(quantities, norms, at, index, last=index == n_layers - 1)

    parts: dict[str, Moments] = {}
    ends: dict[str, Extremes] = {}
    products = None
    if "travel" in outputs:
        parts, products = travel_outputs(run, captured_blocks(run, sites, at, visit), n_samples, n_positions)
    else:
        for index in range(n_layers):
            visit(index)
    if stream is not None:
        parts |= stream.moments()
        ends["raw"] = stream.extremes
    if "norms" in outputs:
        measured = quantities.reshape(n_samples, n_positions, *quantities.shape[1:])
        parts["norms"], ends["norms"] = moments(measured), extremes(measured)
        if Site.RESID_FINAL in run.record.spec.capture.all_sites:
            parts["final"] = moments(shard.layer(Site.RESID_FINAL).astype(np.float64))
    return FirstPass(parts, ends, folds.folds() if folds is not None else None, n_samples, products)


def second_pass(
    run: Run,
    positive: SampleSelection | None,
    negative: SampleSelection | None,
    shard_index: int,
    means_and_axes: tuple[Means, Axes | None],
    paired: bool,
) -> SecondPass:
    """Return one shard's part of a contrast's sums in each space of the means, and its scores along the axes.

    For paired sets the task reads the shards of both sides with that index; otherwise one side is None.
    """
    means, axes = means_and_axes
    sides = [SelectedShard(run, side, shard_index) if side is not None else None for side in (positive, negative)]
    n_positions = next(len(side.selection.positions) for side in sides if side is not None)
    n_layers, d_model = len(run.record.layers), run.record.model.d_model
    shape = len(run.record.spec.capture.stream_sites), n_positions, n_layers
    sums = {space: no_sums(shape) for space in means}
    scores = [np.empty((0 if side is None else len(side.samples), *shape)) for side in sides]
    first = [0 if side is None else int((side.samples < BAND_SAMPLES).sum()) for side in sides]
    dots = {space: [np.empty((count, 2, *shape)) for count in first] for space in means}
    for (number, site), index in product(enumerate(run.record.spec.capture.stream_sites), range(n_layers)):
        if not run.record.has_site_at(site, index):
            _leave_out(sums, dots, scores, (number, slice(None), index))
            continue
        nothing = np.empty((0, n_positions, d_model), dtype=np.float32)
        layers = [nothing if side is None else side.layer(site, index) for side in sides]
        for position in range(n_positions):
            at = number, position, index
            p, q = (np.ascontiguousarray(layer[:, position]) for layer in layers)
            for space, (a, b) in means.items():
                factors = (_factors(p), _factors(q)) if space == "sphere" else (np.ones(len(p)), np.ones(len(q)))
                sums[space].put(at, scatter(p, q, a[at], b[at], paired=paired, factors=factors))
                ends = (a[at], b[at]), (b[at], a[at])
                for some, one, both, factor, count in zip(dots[space], (p, q), ends, factors, first, strict=True):
                    some[:, :, *at] = mean_dots(one[:count], *both, factor[:count])
            for side, one, own in zip(sides, (p, q), scores, strict=True):
                if axes is not None and side is not None:
                    own[:, *at] = fold_scores(one, side.samples % FOLDS, axes[0][:, *at], axes[1][:, *at])
    of_sides: dict[str, Dots] = {space: ((p,), (q,)) for space, (p, q) in dots.items()}
    return SecondPass(sums, of_sides, *(() if axes is None else (own,) for own in scores))


def _leave_out(
    sums: Mapping[str, Scatter],
    dots: Mapping[str, list[NDArray[np.float64]]],
    scores: Sequence[NDArray[np.float64]],
    at: tuple[int, slice, int],
) -> None:
    """Fill in NaN at a layer without the site."""
    nan = np.asarray(np.nan)
    for space, some in sums.items():
        some.put(at, Scatter(nan, nan, nan, nan))
        for of_side in dots[space]:
            of_side[:, :, *at] = np.nan
    for of_side in scores:
        of_side[:, *at] = np.nan


def _factors(samples: NDArray[Any]) -> NDArray[np.float64]:
    return sphere_factors(row_lengths(samples), samples.shape[1])
