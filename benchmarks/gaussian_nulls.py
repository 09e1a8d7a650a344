"""Compare both Gaussian references with the Gaussians that they stand for, over a grid of simulated sets.

Each cell draws Gaussian samples in 576 dimensions many times: with a flat, a power-law or a one-direction spectrum, and
with a mean of length 0, 1 or 3 along the first or the last feature; the variances have the sum 1.

- Spread of the norm: the mean over fits of `fitted_spreads`, relative to the spread of many norms of the same Gaussian.
- TwoNN dimension: the mean over sets of the samples' own estimate, of that of their rotations, and of that of Gaussian
  samples with the sample covariance, which spreads the eigenvalues further.

The script prints the grid as a table. The last line is one JSON object.

Usage: python benchmarks/gaussian_nulls.py --help
"""

from itertools import product
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
from numpy.typing import NDArray

from theodolite_jobs.groups.gram.formulas import eigenvalues, intrinsic_dimension
from theodolite_jobs.groups.gram.formulas_rotations import intrinsic_dimension_of_rotations
from theodolite_jobs.groups.sphere.formulas_gaussian import fitted_spreads
from theodolite_jobs.statistics.gram_matrices import Gram, gram

D_MODEL = 576
SAMPLES = (32, 256)
NORMS = 20_000
"""Norms of the reference of each cell; its spread has an error of 0.5 %."""

_RANKS = np.arange(1, D_MODEL + 1)
SPECTRA = {
    "flat": np.ones(D_MODEL),
    "k^-0.5": _RANKS**-0.5,
    "k^-1": _RANKS**-1.0,
    "k^-2": _RANKS**-2.0,
    "one direction": np.where(_RANKS == 1, 1.0, 1e-6),
}
MEANS = ((0, 0.0), (0, 1.0), (-1, 1.0), (0, 3.0), (-1, 3.0))
"""The feature and the length of the mean of each cell."""


def main() -> None:
    options = measuring.read_options(
        "Compare both Gaussian references with the Gaussians that they stand for; print tables and JSON.",
        draws=(12, "sets of samples in each cell"),
        seed=(0, "seed of all draws"),
    )
    rng = np.random.default_rng(options.seed)
    spreads = [spread_cell(rng, options.draws, *cell) for cell in product(SPECTRA, MEANS, SAMPLES)]
    dimensions = [dimension_cell(rng, options.draws, *cell) for cell in product(SPECTRA, SAMPLES)]
    for one in spreads:
        measuring.say(
            f"{one['spectrum']:>13}  mean {one['mean']:.0f} on feature {one['feature']:>2}  n {one['n']:>3}   spread "
            f"{one['spread']:.4f}   error {one['error']:+.3f} ± {one['standard_error']:.3f}"
        )
    for one in dimensions:
        measuring.say(
            f"{one['spectrum']:>13}  n {one['n']:>3}   TwoNN {one['own']:.1f} ± {one['standard_error']:.1f}   "
            f"rotations {one['rotations']:.1f}   sample covariance {one['sample_covariance']:.1f}"
        )
    result = {
        "draws": options.draws,
        "largest_error_of_spread_at_256": max(abs(one["error"]) for one in spreads if one["n"] == 256),
        "largest_error_of_spread_at_32": max(abs(one["error"]) for one in spreads if one["n"] == 32),
        "largest_error_of_rotations_at_256": max(
            abs(one["rotations"] / one["own"] - 1) for one in dimensions if one["n"] == 256
        ),
        "largest_error_of_sample_covariance_at_256": max(
            abs(one["sample_covariance"] / one["own"] - 1) for one in dimensions if one["n"] == 256
        ),
        "spreads": spreads,
        "dimensions": dimensions,
    }
    measuring.publish(result, options.out)


def spread_cell(
    rng: np.random.Generator, n_draws: int, spectrum: str, mean: tuple[int, float], n: int
) -> dict[str, Any]:
    """Return the relative error of the mean fitted spread of one cell, and its standard error."""
    norms = np.linalg.norm(draw(rng, spectrum, mean, NORMS), axis=1)
    spread = float(norms.std() / norms.mean())
    errors = [fitted_spreads(draw(rng, spectrum, mean, n))[0] / spread - 1 for _ in range(n_draws)]
    return {
        "spectrum": spectrum,
        "feature": mean[0],
        "mean": mean[1],
        "n": n,
        "spread": spread,
        "error": float(np.mean(errors)),
        "standard_error": float(np.std(errors, ddof=1) / np.sqrt(n_draws)),
    }


def dimension_cell(rng: np.random.Generator, n_draws: int, spectrum: str, n: int) -> dict[str, Any]:
    """Return the mean TwoNN estimates of one cell: of samples, of rotations, and of their sample covariance."""
    own, rotated, redrawn = [], [], []
    for _ in range(n_draws):
        matrix = centred_gram(draw(rng, spectrum, (0, 0.0), n))
        values = eigenvalues(matrix)
        own.append(intrinsic_dimension(matrix)[0])
        rotated.append(intrinsic_dimension_of_rotations(values)[0])
        samples = rng.normal(size=(n, n)) * np.sqrt(values / (n - 1))
        redrawn.append(intrinsic_dimension(centred_gram(samples))[0])
    return {
        "spectrum": spectrum,
        "n": n,
        "own": float(np.mean(own)),
        "standard_error": float(np.std(own, ddof=1) / np.sqrt(n_draws)),
        "rotations": float(np.mean(rotated)),
        "sample_covariance": float(np.mean(redrawn)),
    }


def draw(rng: np.random.Generator, spectrum: str, mean: tuple[int, float], n: int) -> NDArray[np.float64]:
    """Return Gaussian samples, (n, d_model)."""
    variances = SPECTRA[spectrum] / SPECTRA[spectrum].sum()
    samples = rng.normal(size=(n, D_MODEL)) * np.sqrt(variances)
    samples[:, mean[0]] += mean[1]
    return samples


def centred_gram(samples: NDArray[np.float64]) -> Gram:
    """Return the centred Gram matrix of samples."""
    return gram(samples - samples.mean(axis=0))


if __name__ == "__main__":
    main()
