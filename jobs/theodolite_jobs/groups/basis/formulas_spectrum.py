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

from theodolite.groups.basis.record import QUANTILES
from theodolite_jobs.groups.basis.formulas import MIN_SAMPLES, PairGrams, principal_components, ridge_penalty
from theodolite_jobs.statistics.ratio import ratio

_VARIANCE_SHARE = 0.99

_NOISE_SHARE = 0.1  # larger noise spreads the singular values and so increases the isometry defect

_NAN = float("nan")


class Stretch(NamedTuple):
    """Singular values s of a map on k leading principal directions of its inputs.

    Attributes:
        leading_share: share of the variance of the inputs along their first principal direction.
        dimension: k.
        stretch: quantiles of the singular values, for each of QUANTILES.
        isometry_defect: 1 − (Σs)²/(k Σs²); 0 for a multiple of an isometry, at most 1 − 1/k.
        isometry_defect_random: that of the identity plus a random matrix, with steps of the same mean square.
    """

    leading_share: float
    dimension: int
    stretch: tuple[float, ...]
    isometry_defect: float
    isometry_defect_random: float


def stretch(grams: PairGrams, d_model: int) -> Stretch:
    """Return the singular values of the map from inputs to outputs.

    The k directions hold 99 % of the variance of the inputs. They are fewer if k would exceed a fifth of the number of
    samples, or if noise/Λ_k would exceed a tenth of the median squared singular value. The singular values are NaN if
    k = 0 or with fewer than MIN_SAMPLES samples, and the defects also if k = 1.
    """
    components = principal_components(grams.xx, float(np.trace(grams.xx)))
    if len(grams.xx) < MIN_SAMPLES or not len(components.values):
        return _undefined(_NAN)
    shares = np.cumsum(components.values) / components.values.sum()
    at_most = min(int(np.searchsorted(shares, _VARIANCE_SHARE)) + 1, len(grams.xx) // 5)
    coefficients = components.vectors[:, :at_most] / np.sqrt(components.values[:at_most])
    products = coefficients.T @ grams.yy @ coefficients
    noise = ridge_penalty(components, grams.ss)[1] / components.values[:at_most]
    k = _n_determined(products, noise)
    if k == 0:
        return _undefined(float(shares[0]))
    singular = np.sqrt(np.maximum(np.linalg.eigvalsh(products[:k, :k] - np.diag(noise[:k])), 0.0))
    defect, random = _NAN, _NAN
    if k > 1:
        squares = np.diag(coefficients[:, :k].T @ grams.ss @ coefficients[:, :k]) - noise[:k]
        defect = isometry_defect(singular)
        random = isometry_defect_of_random_steps(k, d_model, max(float(squares.mean()), 0.0))
    return Stretch(float(shares[0]), k, tuple(np.quantile(singular, QUANTILES).tolist()), defect, random)


def _undefined(leading_share: float) -> Stretch:
    return Stretch(leading_share, 0, (_NAN,) * len(QUANTILES), _NAN, _NAN)


def _n_determined(products: Float64[np.ndarray, "k k"], noise: Float64[np.ndarray, " k"]) -> int:
    """Return the largest number of leading directions whose noise is small against their median squared singular value.

    The median and not each ‖a_j‖²: one output feature with a huge variance makes all of these large.
    """
    k, n_small = 0, len(noise)
    while k != n_small:
        k = n_small
        n_small = int((noise[:k] <= _NOISE_SHARE * np.median(np.linalg.eigvalsh(products[:k, :k]))).sum()) if k else 0
    return k


def isometry_defect(singular: Float64[np.ndarray, " k"]) -> float:
    """Return 1 − (Σs)²/(k Σs²) of singular values: their variance over their mean square; NaN if all are 0."""
    return float(1 - ratio(singular.sum() ** 2, len(singular) * (singular**2).sum()))


def isometry_defect_of_random_steps(k: int, d: int, squared: float) -> float:
    """Return the expected isometry defect of k orthonormal inputs plus random steps, for k well below d.

    A = (1 0) + R with independent Gaussians of variance σ²/d in the (k, d) matrix R. The eigenvalues s² of AAᵀ have the
    mean 1 + σ² and the variance (2σ² + σ⁴)·k/d: R + Rᵀ in the first k columns adds 2σ²k/d (Wigner 1958), and RRᵀ adds
    σ⁴k/d (Marchenko and Pastur 1967). To first order the variance of s is that of s² over 4(1 + σ²).

    Args:
        k: number of inputs.
        d: number of features.
        squared: mean squared length σ² of the steps.
    """
    return k / (4 * d) * (2 * squared + squared**2) / (1 + squared) ** 2
