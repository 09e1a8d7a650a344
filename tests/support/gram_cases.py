"""Definitions of CKA and of the spaces of `gram`, from the samples themselves."""

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def in_spaces(x: Float64) -> dict[str, Float64]:
    """Return samples as they are, on the sphere, and over each feature's spread, by space."""
    lengths = np.sqrt((x**2).sum(axis=1, keepdims=True))
    varies = np.ptp(x, axis=0) > 0
    spread = np.std(x[:, varies], axis=0, ddof=1) if len(x) > 1 else 1.0
    return {"raw": x, "sphere": x / lengths * np.sqrt(x.shape[1]), "standardised": x[:, varies] / spread}


def cka(x: Float64, y: Float64) -> float:
    """Return plain linear CKA on features (Kornblith et al. 2019)."""
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    return float(np.linalg.norm(x.T @ y) ** 2 / np.linalg.norm(x.T @ x) / np.linalg.norm(y.T @ y))


def hsic(x: Float64, y: Float64) -> float:
    """Return Song's unbiased HSIC, but for a factor, from Gram matrices without their diagonals."""
    n, k, m = len(x), x @ x.T, y @ y.T
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    return float((k * m).sum() + k.sum() * m.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * k.sum(axis=0) @ m.sum(axis=0))


def debiased_cka(x: Float64, y: Float64) -> float:
    """Return linear CKA with unbiased HSIC."""
    return float(hsic(x, y) / np.sqrt(hsic(x, x) * hsic(y, y)))
