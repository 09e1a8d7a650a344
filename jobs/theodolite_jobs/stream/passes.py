"""What one Dask task does with one shard: the first pass, and the second, which needs the means of the first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from theodolite.sites import Site
from theodolite.store.runs import Run
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
    stream_moments,
)
from theodolite_jobs.statistics.separation import FOLDS, Folds, fold_scores
from theodolite_jobs.statistics.travel import Block, travel
from theodolite_jobs.stream.norm_places import NormPlace
from theodolite_jobs.stream.reading import Selection, read_selected, selected_samples

SPACES = ("raw", "sphere")
"""Activations as they are, and scaled to norm √d_model."""

STREAM, FOLDED, NORMS, TRAVEL = "stream", "folds", "norms", "travel"
"""What a first pass can be asked for."""


@dataclass(frozen=True)
class FirstPass:
    """What the first pass knows of some samples; parts of different samples are merged.

    Attributes:
        moments: by name. Of `stream`: `raw` and `sphere` (site, position, layer, d_model), `norm` (site, position,
            layer). Of `norms`: `norms` (position, norm, quantity), `final` (position, d_model). Of `travel`: `steps`
            (position, layer, step), `path` (position, quantity).
        extremes: of `raw` and of `norms`.
        folds: sums of each fold, (fold, site, position, layer, d_model).
    """

    moments: dict[str, Moments]
    extremes: dict[str, Extremes]
    folds: Folds | None

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
    run: Run, selection: Selection, shard_index: int, kinds: frozenset[str], norms: Sequence[NormPlace]
) -> FirstPass:
    """Return what is asked of one shard's selected samples."""
    sites = tuple(run.record.spec.capture.sites)
    final = (Site.RESID_FINAL,) if kinds & {NORMS, TRAVEL} else ()
    shard = {site: read_selected(run, selection, shard_index, site) for site in (*sites, *final)}
    found: dict[str, Moments] = {}
    ends: dict[str, Extremes] = {}
    folds = None
    if STREAM in kinds:
        raw = {site: shard[site] for site in sites}
        found, ends["raw"] = _stream(raw)
    if FOLDED in kinds:
        of_folds = selected_samples(run, selection, shard_index) % FOLDS
        folds = _fold_sums([shard[site] for site in sites], of_folds)
    if NORMS in kinds:
        quantities = _norm_quantities(shard, norms)
        found["norms"], ends["norms"] = moments(quantities), extremes(quantities)
        found["final"] = moments(shard[Site.RESID_FINAL][:, :, 0].astype(np.float64))
    if TRAVEL in kinds:
        steps, path = _travel(run, shard)
        found["steps"], found["path"] = moments(steps), moments(path)
    return FirstPass(found, ends, folds)


def second_pass(
    run: Run,
    positive: Selection | None,
    negative: Selection | None,
    shard_index: int,
    against: tuple[Mapping[str, Means], Axes | None],
    paired: bool,
) -> SecondPass:
    """Return one shard's part of a contrast's sums in each space that has means, and its scores where there are axes.

    Where the sets are paired, both shards of that index are read together; otherwise one side is None.
    """
    means, axes = against
    chosen = [side for side in (positive, negative) if side is not None]
    of_folds = {side.prompt_set: selected_samples(run, side, shard_index) % FOLDS for side in chosen}
    sites = run.record.spec.capture.sites
    shape = len(sites), len(chosen[0].positions), len(run.record.layers)
    sums = {space: _no_scatter(shape) for space in means}
    scores: list[tuple[NDArray[np.float64], ...]] = [
        () if axes is None or side is None else (np.empty((len(of_folds[side.prompt_set]), *shape)),)
        for side in (positive, negative)
    ]
    for index, site in enumerate(sites):  # one after the other: two sets' shards are large
        sides = [
            read_selected(run, side, shard_index, site) if side is not None else None for side in (positive, negative)
        ]
        for space, of_space in means.items():
            _scatter_site(sums[space], index, sides, of_space, space, paired)
        for side, values, of_side in zip((positive, negative), sides, scores, strict=True):
            if axes is not None and side is not None and values is not None:
                _score_site(of_side[0], index, values, of_folds[side.prompt_set], axes)
    return SecondPass(sums, *scores)


def _stream(shard: Mapping[Site, NDArray[np.float32]]) -> tuple[dict[str, Moments], Extremes]:
    """Reduce one site, position and layer at a time: the float64 copies stay small, and in the cache."""
    arrays = list(shard.values())
    count, shape = len(arrays[0]), (len(arrays), *arrays[0].shape[1:])
    raw_mean, raw_m2, sphere_mean, sphere_m2, least, largest = (np.empty(shape) for _ in range(6))
    norms = np.empty((count, *shape[:-1]))
    for site, position, layer in np.ndindex(*shape[:-1]):
        place = site, position, layer
        stored = arrays[site][:, position, layer]
        of_place = stream_moments(stored.astype(np.float64))
        raw_mean[place], raw_m2[place] = of_place.raw.mean, of_place.raw.m2
        sphere_mean[place], sphere_m2[place] = of_place.sphere.mean, of_place.sphere.m2
        ends = extremes(stored)
        least[place], largest[place] = ends.minimum, ends.maximum
        norms[:, *place] = of_place.norms
    found = {"raw": Moments(count, raw_mean, raw_m2), "sphere": Moments(count, sphere_mean, sphere_m2)}
    return {**found, "norm": moments(norms)}, Extremes(least, largest)


def _fold_sums(arrays: Sequence[NDArray[np.float32]], of_folds: NDArray[np.int64]) -> Folds:
    inside = (of_folds == np.arange(FOLDS)[:, None]).astype(np.float64)
    sums = np.empty((FOLDS, len(arrays), *arrays[0].shape[1:]))
    for site, position, layer in np.ndindex(*sums.shape[1:-1]):
        sums[:, site, position, layer] = inside @ arrays[site][:, position, layer].astype(np.float64)
    return Folds(inside.sum(axis=1).astype(np.int64), sums)


def _norm_quantities(shard: Mapping[Site, NDArray[np.float32]], norms: Sequence[NormPlace]) -> NDArray[np.float64]:
    """Return what is measured at each norm, (sample, position, norm, quantity); NaN where nothing was captured."""
    count, n_positions = shard[Site.RESID_FINAL].shape[:2]
    quantities = np.full((count, n_positions, len(norms), len(sphere.QUANTITIES)), np.nan)
    for index, place in enumerate(norms):
        if not place.sites:
            continue
        measure = sphere.of_inputs if place.reads else sphere.of_outputs
        for position in range(n_positions):
            parts = [shard[site][:, position, place.layer_index].astype(np.float64) for site in place.sites]
            quantities[:, position, index] = measure(sum(parts[1:], parts[0]), place.norm)
    return quantities


def _travel(run: Run, shard: Mapping[Site, NDArray[np.float32]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each sample's steps, (sample, position, layer, step), and its way, (sample, position, quantity)."""
    entering = shard[Site.RESID_PRE]
    count, n_positions, n_layers = entering.shape[:3]
    found = [travel(_blocks(run, shard, position), count, n_layers) for position in range(n_positions)]
    steps, path = (np.stack(parts, axis=1) for parts in zip(*found, strict=True))
    if n_layers < run.record.model.n_layers:  # only some layers were captured: no whole way
        path[:] = np.nan
    return steps, path


def _blocks(run: Run, shard: Mapping[Site, NDArray[np.float32]], position: int) -> Iterator[Block]:
    """Yield what is known of each captured block; what leaves it enters the next, or is `resid_final`."""

    def at(site: Site, index: int) -> NDArray[np.float64]:
        return shard[site][:, position, index].astype(np.float64)

    layers, sums = run.record.layers, Site.RESID_MID in shard and not run.record.parity.get("post_norm", False)
    for index, layer in enumerate(layers):
        leaving = None
        if layers[index + 1 : index + 2] == [layer + 1]:
            leaving = at(Site.RESID_PRE, index + 1)
        elif layer == run.record.model.n_layers - 1:
            leaving = at(Site.RESID_FINAL, 0)
        entering, middle = at(Site.RESID_PRE, index), at(Site.RESID_MID, index) if sums else None
        attn, mlp = (at(site, index) if site in shard else None for site in (Site.ATTN_OUT, Site.MLP_OUT))
        if attn is None and middle is not None:
            attn = middle - entering
        if mlp is None and middle is not None and leaving is not None:
            mlp = leaving - middle
        yield Block(entering, attn, mlp, leaving)


def _no_scatter(shape: tuple[int, ...]) -> Scatter:
    outer = [np.zeros((*shape, 2, 2)) for _ in range(3)]
    return Scatter(outer[0], outer[1], outer[2], np.zeros(shape))


def _scatter_site(
    into: Scatter,
    site: int,
    sides: Sequence[NDArray[np.float32] | None],
    means: Means,
    space: str,
    paired: bool,
) -> None:
    """Fill in one site's sums."""
    nothing = np.empty((0, means.positive.shape[-1]))
    for position, layer in np.ndindex(*means.positive.shape[1:-1]):
        place = site, position, layer
        p, q = (nothing if side is None else _in_space(side[:, position, layer], space) for side in sides)
        part = scatter(p, q, means.positive[place], means.negative[place], paired=paired)
        for name in ("positive", "negative", "cross", "cross_trace"):
            getattr(into, name)[place] = getattr(part, name)


def _score_site(
    into: NDArray[np.float64], site: int, values: NDArray[np.float32], of_folds: NDArray[np.int64], axes: Axes
) -> None:
    """Fill in one site's scores, (sample, site, position, layer)."""
    for position, layer in np.ndindex(*into.shape[2:]):
        place = site, position, layer
        samples = values[:, position, layer].astype(np.float64)
        into[:, *place] = fold_scores(samples, of_folds, axes.units[:, *place], axes.midpoints[:, *place])


def _in_space(values: NDArray[np.float32], space: str) -> NDArray[np.float64]:
    samples = values.astype(np.float64)
    return on_sphere(samples) if space == "sphere" else samples
