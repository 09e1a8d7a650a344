"""Linear CKA between layers from the inner products of their centred Gram matrices. Pure, in float64.

Source: Kornblith et al. 2019, "Similarity of neural network representations revisited". Plain CKA is biased upwards:
for independent Gaussians it is .90 at n = 64 and d = 576. Debiased CKA uses the unbiased HSIC of Song et al. 2012.
"""

import numpy as np
from jaxtyping import Float64

_PERMUTATIONS = 20
_SEED = 0


def packed(matrix: Float64[np.ndarray, "n n"]) -> Float64[np.ndarray, " entry"]:
    """Return a symmetric matrix as a vector of n(n+1)/2 entries, with the inner products of the matrices."""
    rows, columns = np.triu_indices(len(matrix))
    return np.asarray(np.where(rows == columns, 1.0, np.sqrt(2.0)) * matrix[rows, columns])


def linear_cka(products: Float64[np.ndarray, "point point"]) -> Float64[np.ndarray, "point point"]:
    """Return the plain linear CKA ⟨K, L⟩/(‖K‖‖L‖) from the products ⟨K, L⟩ = tr(KL); NaN where a matrix is zero."""
    squares = np.diag(products)
    lengths = np.sqrt(np.where(squares > 0, squares, np.nan))
    return np.asarray(products / np.outer(lengths, lengths))


def linear_cka_debiased(
    products: Float64[np.ndarray, "point point"], diagonals: Float64[np.ndarray, "point n"]
) -> Float64[np.ndarray, "point point"]:
    """Return the linear CKA with unbiased HSIC; NaN with fewer than four samples, or where an estimate is not positive.

    With k and l the diagonals of K and L, whose rows sum to 0, Song's estimator is, up to a constant factor,
    ⟨K,L⟩ − k·l + Σk Σl/((n−1)(n−2)) − 2 k·l/(n−2).
    """
    n = diagonals.shape[1]
    if n < 4:
        return np.full_like(products, np.nan)
    dots, traces = diagonals @ diagonals.T, diagonals.sum(axis=1)
    unbiased = products - dots - 2 * dots / (n - 2) + np.outer(traces, traces) / ((n - 1) * (n - 2))
    # For equal samples the estimate is rounding alone.
    noise = 1e-12 * np.diag(products)
    unbiased[np.diag(unbiased) <= noise] = np.nan
    return linear_cka(unbiased)


def cka_with_permuted_steps(x: Float64[np.ndarray, "n d_model"], steps: Float64[np.ndarray, "n d_model"]) -> float:
    """Return the mean debiased CKA between x and x + steps, over permutations of the steps' samples.

    It is the similarity that the addition alone gives, without a relation between a sample and its step.

    Args:
        x: centred samples.
        steps: centred steps of these samples.
    """
    xx, xs, ss = x @ x.T, x @ steps.T, steps @ steps.T
    random = np.random.default_rng(_SEED)
    values = []
    for _ in range(_PERMUTATIONS):
        order = random.permutation(len(x))
        cross = xs[:, order]
        matrices = np.stack([xx, xx + cross + cross.T + ss[np.ix_(order, order)]])
        entries = np.stack([packed(matrix) for matrix in matrices])
        values.append(linear_cka_debiased(entries @ entries.T, np.diagonal(matrices, axis1=1, axis2=2))[0, 1])
    return float(np.mean(values))
