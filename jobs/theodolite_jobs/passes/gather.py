"""What a first pass gathers while it walks through the layers of one shard."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from theodolite.sites import Site, leaving_block
from theodolite.store.runs import Run
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.samples import SelectedShard
from theodolite_jobs.passes.selections import captured_in
from theodolite_jobs.statistics import sphere
from theodolite_jobs.statistics.moments import Extremes, Moments, extremes, lengths, moments, on_sphere
from theodolite_jobs.statistics.separation import FOLDS, Folds, folds_of
from theodolite_jobs.statistics.travel import Block, travel

STREAM_SPACES = ("raw", "sphere")
"""Activations as they are, and scaled to norm √d_model."""

At = Callable[[Site, int], NDArray[np.float64]]
"""Samples and positions at a site and an index into the run's layers, (sample · position, d_model)."""


def remembering(shard: SelectedShard) -> At:
    """Return a reader that remembers the layers just read, which several statistics look at."""

    @lru_cache(maxsize=2 * len(Site))
    def at(site: Site, index: int) -> NDArray[np.float64]:
        values = shard.layer(site, index)
        return values.reshape(-1, values.shape[-1]).astype(np.float64)

    return at


class StreamArrays:
    """Moments of every site, position and layer of one shard, filled in layer by layer."""

    def __init__(self, shape: tuple[int, int, int], n_samples: int, d_model: int) -> None:
        self.n_samples, self.n_positions = n_samples, shape[1]
        self.means = {name: np.empty((*shape, d_model)) for name in STREAM_SPACES}
        self.m2 = {name: np.empty((*shape, d_model)) for name in STREAM_SPACES}
        self.norms = np.empty((n_samples, *shape))
        self.ends = Extremes(np.empty((*shape, d_model)), np.empty((*shape, d_model)))

    def put(self, site: int, layer: int, rows: NDArray[np.float64]) -> None:
        """Fill in one site and layer from (sample · position, d_model)."""
        for position in range(self.n_positions):
            place, samples = (site, position, layer), rows[position :: self.n_positions]
            for name, of_space in (("raw", moments(samples)), ("sphere", moments(on_sphere(samples)))):
                self.means[name][place], self.m2[name][place] = of_space.mean, of_space.m2
            ends = extremes(samples)
            self.norms[:, *place] = lengths(samples)
            self.ends.minimum[place], self.ends.maximum[place] = ends.minimum, ends.maximum

    def moments(self) -> dict[str, Moments]:
        """Return the moments of both spaces, (site, position, layer, d_model), and of norms, without d_model."""
        spaces = {name: Moments(self.n_samples, self.means[name], self.m2[name]) for name in STREAM_SPACES}
        return {**spaces, "norm": moments(self.norms)}


class FoldArrays:
    """Moments of the folds at every site, position and layer of one shard, filled in layer by layer."""

    def __init__(self, shape: tuple[int, int, int], of_folds: NDArray[np.int64], d_model: int) -> None:
        self.of_folds, self.n_positions = of_folds, shape[1]
        self.means = np.empty((FOLDS, *shape, d_model))
        self.deviations = np.empty((FOLDS, *shape))

    def put(self, site: int, layer: int, rows: NDArray[np.float64]) -> None:
        """Fill in one site and layer from (sample · position, d_model)."""
        for position in range(self.n_positions):
            place, samples = (site, position, layer), rows[position :: self.n_positions]
            self.means[:, *place], self.deviations[:, *place] = folds_of(samples, self.of_folds)

    def folds(self) -> Folds:
        """Return the folds."""
        return Folds(np.bincount(self.of_folds, minlength=FOLDS), self.means, self.deviations)


def measure_norms(
    into: NDArray[np.float64], norms: Sequence[NormLayer], at: At, layer_index: int, *, last: bool
) -> None:
    """Fill in what is measured at the norms of one captured layer, (row, norm, quantity); at the last the final one."""
    for number, place in enumerate(norms):
        of_final = place.sites == (Site.RESID_FINAL,)
        if place.sites and (last if of_final else place.layer_index == layer_index):
            parts = [at(site, place.layer_index) for site in place.sites]
            measure = sphere.of_inputs if place.reads else sphere.of_outputs
            into[:, number] = measure(sum(parts[1:], parts[0]), place.norm)


def travel_moments(run: Run, blocks: Iterable[Block], n_samples: int, n_positions: int) -> dict[str, Moments]:
    """Return moments of the steps, (position, layer, step), and of the way, (position, quantity)."""
    steps, path = travel(blocks, n_samples * n_positions, len(run.record.layers))
    if len(run.record.layers) < run.record.model.n_layers:  # only some were captured: no whole way
        path[:] = np.nan
    found = {"steps": steps, "path": path}
    return {name: moments(rows.reshape(n_samples, n_positions, *rows.shape[1:])) for name, rows in found.items()}


def blocks_of(run: Run, sites: Sequence[Site], at: At, visit: Callable[[int], None]) -> Iterator[Block]:
    """Yield what is known of each captured block, after `visit` was called with the block's index."""
    # A certificate of before this was asked does not say; then nothing is taken for what attention added.
    layers, sums = run.record.layers, Site.RESID_MID in sites and not run.record.parity.get("post_norm", True)
    for index, layer in enumerate(layers):
        visit(index)
        captured = captured_in(run, leaving_block(layer, run.record.model.n_layers))
        leaving = None if captured is None else at(*captured)
        entering, middle = at(Site.RESID_PRE, index), at(Site.RESID_MID, index) if sums else None
        attn, mlp = (at(site, index) if site in sites else None for site in (Site.ATTN_OUT, Site.MLP_OUT))
        if attn is None and middle is not None:
            attn = middle - entering
        if mlp is None and middle is not None and leaving is not None:
            mlp = leaving - middle
        yield Block(entering, attn, mlp, leaving, follows=layers[index - 1 : index] == [layer - 1])
