"""How far the affine map of a sublayer stretches its inputs, from Gram matrices. Pure, in float64.

Let Λ_j and u_j be the eigenvalues and eigenvectors of the Gram matrix of the inputs x. The linear regression of the
outputs on principal direction j of x has the coefficients a_j = u_jᵀY/√Λ_j. Coordinates along different directions are
uncorrelated, so this is the ridge regression of the steps, divided by its shrinkage Λ_j/(Λ_j + λ), plus the identity.

Noise of the outputs lengthens the coefficients: E‖a_j‖² exceeds the true value by noise/Λ_j, where noise is the
variance summed over features. The stretches are the singular values of the coefficients after subtraction of this term.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from theodolite_jobs.statistics.basis import (
    MIN_SAMPLES,
    Components,
    PairGrams,
    principal_components,
    ridge_penalty,
)
from theodolite_jobs.statistics.ratio import ratio

_VARIANCE_SHARE = 0.99

_NOISE_SHARE = 0.1

_QUANTILES = (0.05, 0.5, 0.95)


class Stretch(NamedTuple):
    """Singular values s of a map on k leading principal directions of its inputs.

    Attributes:
        dimension: k.
        stretch_low: 5 % quantile of the singular values.
        stretch_median: their median.
        stretch_high: their 95 % quantile.
        isometry_defect: 1 − (Σs)²/(k Σs²); 0 for a multiple of an isometry, at most 1 − 1/k.
        isometry_defect_random: the isometry defect of a random matrix with the same numbers of inputs and outputs.
    """

    dimension: int
    stretch_low: float
    stretch_median: float
    stretch_high: float
    isometry_defect: float
    isometry_defect_random: float


def stretch(grams: PairGrams, d_model: int) -> Stretch:
    """Return the singular values of the map from inputs to outputs.

    The k directions hold 99 % of the variance of the inputs. They are fewer if k would exceed a fifth of the number of
    samples, or if noise would be more than a tenth of a direction's ‖a_j‖². All values are NaN if k = 0 or with fewer
    than MIN_SAMPLES samples, and the defects also if k = 1.
    """
    components = principal_components(grams.xx, float(np.trace(grams.xx)))
    k, noise = _dimension(grams, components)
    if k == 0:
        return Stretch(0, *(float("nan") for _ in range(5)))
    values, coefficients = components.values[:k], components.vectors[:, :k] / np.sqrt(components.values[:k])
    squares = np.linalg.eigvalsh(coefficients.T @ grams.yy @ coefficients - np.diag(noise / values))
    singular = np.sqrt(np.maximum(squares, 0.0))
    defects = (isometry_defect(singular), k / (4 * d_model)) if k > 1 else (float("nan"), float("nan"))
    return Stretch(k, *np.quantile(singular, _QUANTILES).tolist(), *defects)


def _dimension(grams: PairGrams, components: Components) -> tuple[int, float]:
    """Return the number of principal directions by the rule of `stretch`, and the noise of the steps."""
    values, vectors = components
    if len(grams.xx) < MIN_SAMPLES or not len(values):
        return 0, float("nan")
    _, noise = ridge_penalty(components, grams.ss)
    shares = np.cumsum(values) / values.sum()
    lengths = np.vecdot(vectors.T, (grams.yy @ vectors).T) / values
    determined = np.logical_and.accumulate(noise / values <= _NOISE_SHARE * lengths)
    n_held = int(np.searchsorted(shares, _VARIANCE_SHARE)) + 1
    return min(n_held, len(grams.xx) // 5, int(determined.sum())), noise


def isometry_defect(singular: Float64[np.ndarray, " k"]) -> float:
    """Return 1 − (Σs)²/(k Σs²) of singular values: their variance over their mean square; NaN if all are 0.

    For a (k, d) matrix of independent Gaussians with k ≤ d/2 the defect is about k/4d: s²/d has the mean 1 and the
    variance k/d (Marchenko and Pastur 1967), so s/√d has a variance of about k/4d.
    """
    return float(1 - ratio(singular.sum() ** 2, len(singular) * (singular**2).sum()))
