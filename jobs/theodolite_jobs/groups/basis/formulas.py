"""How well maps from the input of a sublayer predict its output for samples outside of the fit. Pure, in float64.

A sublayer adds a step s to its input x, and its output is y = x + s. Three maps are fitted to the samples of four folds
and predict the fifth. Each has a free translation, so x, s and y are relative to their training means.

- identity: ŷ = x.
- affine: ŷ = x + xB, where B is the ridge regression of s on x.
- orthogonal: ŷ = c·xW with WWᵀ = I on the span of the training inputs, fitted to the training predictions of the affine
  map: Procrustes with a scale (Schönemann 1966). A fit to the outputs themselves would follow their noise, and so would
  lose against the affine map even where the true map is orthogonal.

With fewer samples than features, the training samples do not determine a map of the whole space. All three maps leave
the component of x outside of the span of the training inputs as it is. Otherwise a fitted map would lose against the
identity only because the training samples lack some directions. The ridge penalty ‖B‖² has the same effect in
directions with little variance.

All errors follow from the Gram matrices of x and s; the number of features does not enter. The matrices of y would give
s as a difference of large numbers.
"""

from collections import defaultdict
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from numpy.typing import NDArray

from theodolite_jobs.statistics.estimates import Estimate
from theodolite_jobs.statistics.folds import FOLDS, jackknife
from theodolite_jobs.statistics.gram_matrices import centred
from theodolite_jobs.statistics.ratio import ratio

MIN_SAMPLES = 10
"""The smallest number of samples with which maps are fitted."""

_ROUNDING = 1e-13  # of the sum of squared norms; smaller eigenvalues and sums are zero

_PENALTIES = 10.0 ** np.arange(-10, 4.25, 0.25)
"""The ridge penalties that cross-validation compares, relative to the mean eigenvalue."""

_SEED = 0

Gram = Float64[np.ndarray, "sample sample"]


class PairGrams(NamedTuple):
    """Dot products of all pairs of samples: inputs with inputs, inputs (rows) with steps, and steps with steps."""

    xx: Gram
    xs: Gram
    ss: Gram

    @property
    def yy(self) -> Gram:
        """Dot products of outputs with outputs."""
        return np.asarray(self.xx + self.xs + self.xs.T + self.ss)

    def centred(self, training: Bool[np.ndarray, " sample"]) -> "PairGrams":
        """Return the dot products after subtraction of the training samples' means from all samples."""
        return PairGrams(*(_centred(matrix, training) for matrix in self))


def pair_grams(x: Float[np.ndarray, "sample d_model"], y: Float[np.ndarray, "sample d_model"]) -> PairGrams:
    """Return the dot products of inputs x and steps y − x, relative to their means; equal samples give exact zeros."""
    inputs = x.astype(np.float64)
    inputs, steps = centred(inputs), centred(y - inputs)
    return PairGrams(inputs @ inputs.T, inputs @ steps.T, steps @ steps.T)


def _centred(matrix: Gram, training: Bool[np.ndarray, " sample"]) -> Gram:
    rows, columns = matrix[:, training].mean(axis=1), matrix[training].mean(axis=0)
    return np.asarray(matrix - rows[:, None] - columns + rows[training].mean())


class Components(NamedTuple):
    """Principal components of inputs: eigenvalues of their Gram matrix, descending and positive, and eigenvectors.

    `values` are (component,), `vectors` are (sample, component) with unit columns.
    """

    values: Float64[np.ndarray, " component"]
    vectors: Float64[np.ndarray, "sample component"]


def principal_components(xx: Gram, squares: float) -> Components:
    """Return the principal components of centred inputs.

    Args:
        xx: Gram matrix of the inputs.
        squares: a sum of squared norms; eigenvalues that are rounding errors relative to it are left out.
    """
    values, vectors = np.linalg.eigh(xx)
    kept = values > _ROUNDING * squares
    return Components(values[kept][::-1], vectors[:, kept][:, ::-1])


def ridge_penalty(components: Components, ss: Gram) -> tuple[float, float]:
    """Return the ridge penalty λ of s on x, and the variance of the noise of s, summed over features.

    λ has the smallest generalised cross-validation error n·RSS/(n − 1 − df)² on a grid, df = Σ Λ/(Λ + λ). The noise is
    RSS/(n − 1 − df). Source: Golub, Heath and Wahba 1979.

    Args:
        components: of the inputs, with eigenvalues Λ.
        ss: Gram matrix of the centred steps.
    """
    values, vectors = components
    freedom = len(ss) - 1
    along = np.vecdot(vectors.T, (ss @ vectors).T)
    full_rank = len(values) == freedom  # then the rest is exactly 0, and rounding must not hide a small RSS
    rest = 0.0 if full_rank else max(float(np.trace(ss) - along.sum()), 0.0)
    penalties = _PENALTIES * values.sum() / freedom
    left = penalties[:, None] / (values + penalties[:, None])
    residual = left**2 @ along + rest
    residual_freedom = freedom - len(values) + left.sum(axis=1)
    best = int(np.argmin(residual / residual_freedom**2))
    return float(penalties[best]), float(residual[best] / residual_freedom[best])


def r_squared(grams: PairGrams, folds: Int64[np.ndarray, " sample"]) -> dict[str, Estimate]:
    """Return R² of held-out outputs and steps by name, with 95 % intervals.

    R² = 1 − Σ‖y − ŷ‖²/Σ‖y − mean of the training samples‖², over all held-out samples.

    - `affine`, `orthogonal`, `identity`: of the outputs, for the three maps.
    - `gain`: R² of `affine` minus R² of `orthogonal`.
    - `step`: of the steps, for the affine map; the identity gives 0. 1 − affine = (1 − identity)(1 − step).
    - `permuted`: as `step`, after a random permutation of the steps over the samples; about 0.

    The intervals are Student's with the jackknife error over folds: each fold is left out of both fit and test. They
    are for maps that are fitted to four fifths of the samples. NaN with fewer than MIN_SAMPLES samples or with an empty
    fold, and where the outputs or steps do not vary.

    Args:
        grams: of all samples.
        folds: fold of each sample.
    """
    if len(folds) < MIN_SAMPLES or len(np.unique(folds)) < FOLDS:
        return dict.fromkeys(_FRACTIONS, Estimate(*(np.full((), np.nan) for _ in range(3))))
    order = np.random.default_rng(_SEED).permutation(len(folds))
    permuted = grams.ss[np.ix_(order, order)]
    # Over the samples of one fold, for maps that are fitted without this and the other fold.
    sums: dict[str, NDArray[np.float64]] = defaultdict(lambda: np.empty((FOLDS, FOLDS)))
    for one, other in combinations_with_replacement(range(FOLDS), 2):
        training = (folds != one) & (folds != other)
        for name, errors in _squared_errors(grams, permuted, training).items():
            sums[name][one, other] = errors[folds[~training] == one].sum()
            sums[name][other, one] = errors[folds[~training] == other].sum()
    rounding = _ROUNDING * float(np.trace(grams.xx) + np.trace(grams.ss))
    sums["gain"] = sums["outputs"] + sums["affine"] - sums["orthogonal"]
    return {name: _estimate(sums[errors], sums[totals], rounding) for name, (errors, totals) in _FRACTIONS.items()}


_FRACTIONS = {
    "affine": ("affine", "outputs"),
    "orthogonal": ("orthogonal", "outputs"),
    "identity": ("steps", "outputs"),
    "gain": ("gain", "outputs"),  # 1 − gain/outputs = (orthogonal − affine)/outputs
    "step": ("affine", "steps"),
    "permuted": ("permuted", "permuted steps"),
}
"""The squared errors and squared deviations of each R²."""


def _estimate(
    errors: Float64[np.ndarray, "fold other"], totals: Float64[np.ndarray, "fold other"], rounding: float
) -> Estimate:
    """Return 1 − Σ errors/Σ totals and its interval; totals that are rounding errors are zero."""
    total = np.trace(totals)
    value = np.asarray(1 - ratio(np.trace(errors), np.where(total > rounding, total, 0.0)))
    others = 1 - np.eye(FOLDS)
    return jackknife(value, 1 - ratio((errors * others).sum(axis=0), (totals * others).sum(axis=0)))


def _squared_errors(
    grams: PairGrams, permuted: Gram, training: Bool[np.ndarray, " sample"]
) -> dict[str, Float64[np.ndarray, " held_out"]]:
    """Return the squared errors of the maps for each held-out sample, and squared deviations from the training mean.

    `permuted` is the Gram matrix of the permuted steps.
    """
    centred, steps = grams.centred(training), _centred(permuted, training)
    squares = float(np.trace(centred.xx))
    components = principal_components(centred.xx[np.ix_(training, training)], squares)
    penalty, _ = ridge_penalty(components, centred.ss[np.ix_(training, training)])
    penalty_permuted, _ = ridge_penalty(components, steps[np.ix_(training, training)])
    return {
        "affine": _ridge_errors(components, penalty, centred.xx, centred.ss, training),
        "orthogonal": _orthogonal_errors(components, penalty, centred, training),
        "outputs": np.diag(centred.yy)[~training],
        "steps": np.diag(centred.ss)[~training],
        "permuted": _ridge_errors(components, penalty_permuted, centred.xx, steps, training),
        "permuted steps": np.diag(steps)[~training],
    }


def _ridge_errors(
    components: Components, penalty: float, xx: Gram, ss: Gram, training: Bool[np.ndarray, " sample"]
) -> Float64[np.ndarray, " held_out"]:
    """Return ‖s − xB‖² of the held-out samples, for the ridge regression B of s on x.

    The prediction for x is a weighted sum of the training steps; the weights are x·X (XXᵀ + λ)⁻¹.
    """
    values, vectors = components
    across, steps = np.ix_(~training, training), ss[np.ix_(training, training)]
    weights = (xx[across] @ vectors / (values + penalty)) @ vectors.T
    return np.asarray(np.diag(ss)[~training] - 2 * np.vecdot(weights, ss[across]) + np.vecdot(weights @ steps, weights))


def _orthogonal_errors(
    components: Components, penalty: float, grams: PairGrams, training: Bool[np.ndarray, " sample"]
) -> Float64[np.ndarray, " held_out"]:
    """Return ‖y − ŷ‖² of the held-out samples, for the scaled orthogonal map of the training samples.

    x = zV + x⊥, where the rows of V are the principal directions of the training inputs. The training inputs have the
    coordinates U√Λ. The affine map predicts F = X + U f UᵀS for them, with the shrinkage f = Λ/(Λ + λ). ŷ = c·zQ + x⊥
    with the polar factor Q = (MMᵀ)^(−½) M of M = √Λ UᵀF, whose rows are orthonormal, and c = Σσ/ΣΛ with the singular
    values σ of M. Where σ = 0, rows of Q are directions that no prediction has.
    Since y − x⊥ = s + zV, the error is ‖s‖² + 2 s·zV + ‖z‖² − 2c (s + zV)·zQ + c²‖z‖².
    """
    inside, across = np.ix_(training, training), np.ix_(~training, training)
    values, vectors = components
    roots, shrinkage = np.sqrt(values), values / (values + penalty)
    inputs_with_steps = vectors.T @ grams.xs[inside] @ vectors * shrinkage
    steps_with_steps = vectors.T @ grams.ss[inside] @ vectors * np.outer(shrinkage, shrinkage)
    predictions = np.diag(values) + inputs_with_steps + inputs_with_steps.T + steps_with_steps  # UᵀFFᵀU
    squares, axes = np.linalg.eigh(predictions * np.outer(roots, roots))
    kept = squares > _ROUNDING * squares.max(initial=0.0)
    sigma, axes = np.sqrt(squares[kept]), axes[:, kept]
    scale = sigma.sum() / values.sum() if len(sigma) else 0.0
    z, steps_along = grams.xx[across] @ vectors / roots, grams.xs.T[across] @ vectors / roots  # s·V
    # (s + zV)·UᵀF; the rows of Q are weighted sums of those of UᵀF
    along = roots * (steps_along + z) + shrinkage * (grams.ss[across] @ vectors) + z / roots @ inputs_with_steps
    rotated = np.vecdot(z @ (axes / sigma), (along * roots) @ axes)
    lengths = np.vecdot(z, z)
    rest = np.diag(grams.ss)[~training] + 2 * np.vecdot(steps_along, z) + lengths
    return np.asarray(rest - 2 * scale * rotated + scale**2 * lengths)
