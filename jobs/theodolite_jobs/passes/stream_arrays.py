"""Moments of the residual stream, of all samples and of the folds, filled in layer by layer for one shard."""

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.schema import SPACES
from theodolite_jobs.statistics.folds import FOLDS, Folds, fold_moments
from theodolite_jobs.statistics.kernels import row_lengths
from theodolite_jobs.statistics.moments import Extremes, Moments, extremes, moments, scaled_moments, sphere_factors


class StreamArrays:
    """Moments of every site, position and layer of one shard, filled in layer by layer."""

    def __init__(self, shape: tuple[int, int, int], n_samples: int, d_model: int) -> None:
        self.n_samples, self.n_positions = n_samples, shape[1]
        self.means = {name: np.empty((*shape, d_model)) for name in SPACES}
        self.m2 = {name: np.empty((*shape, d_model)) for name in SPACES}
        self.norms = np.empty((n_samples, *shape))
        self.extremes = Extremes(np.empty((*shape, d_model)), np.empty((*shape, d_model)))

    def put(self, site: int, layer: int, rows: NDArray[np.float32]) -> None:
        """Fill in one site and layer from (sample · position, d_model)."""
        for position in range(self.n_positions):
            at, samples = (site, position, layer), np.ascontiguousarray(rows[position :: self.n_positions])
            self.norms[:, *at] = norms = row_lengths(samples)
            for name, factors in (("raw", np.ones_like(norms)), ("sphere", sphere_factors(norms, rows.shape[1]))):
                part = scaled_moments(samples, factors)
                self.means[name][at], self.m2[name][at] = part.mean, part.m2
            bounds = extremes(samples)
            self.extremes.minimum[at], self.extremes.maximum[at] = bounds.minimum, bounds.maximum

    def leave_out(self, site: int, layer: int) -> None:
        """Fill in NaN at a layer without the site."""
        at = (site, slice(None), layer)
        for array in (*self.means.values(), *self.m2.values(), self.extremes.minimum, self.extremes.maximum):
            array[at] = np.nan
        self.norms[:, *at] = np.nan

    def moments(self) -> dict[str, Moments]:
        """Return moments of both spaces, (site, position, layer, d_model), and of norms, (site, position, layer)."""
        spaces = {name: Moments(self.n_samples, self.means[name], self.m2[name]) for name in SPACES}
        return {**spaces, "norm": moments(self.norms)}


class FoldArrays:
    """Moments of the folds at every site, position and layer of one shard, filled in layer by layer."""

    def __init__(self, shape: tuple[int, int, int], fold_of: NDArray[np.int64], d_model: int) -> None:
        self.fold_of, self.n_positions = fold_of, shape[1]
        self.means = np.empty((FOLDS, *shape, d_model))
        self.deviations = np.empty((FOLDS, *shape))

    def put(self, site: int, layer: int, rows: NDArray[np.float32]) -> None:
        """Fill in one site and layer from (sample · position, d_model)."""
        for position in range(self.n_positions):
            at, samples = (site, position, layer), np.ascontiguousarray(rows[position :: self.n_positions])
            self.means[:, *at], self.deviations[:, *at] = fold_moments(samples, self.fold_of)

    def leave_out(self, site: int, layer: int) -> None:
        """Fill in NaN at a layer without the site."""
        self.means[:, site, :, layer] = self.deviations[:, site, :, layer] = np.nan

    def folds(self) -> Folds:
        """Return the moments of all folds."""
        return Folds(np.bincount(self.fold_of, minlength=FOLDS), self.means, self.deviations)
