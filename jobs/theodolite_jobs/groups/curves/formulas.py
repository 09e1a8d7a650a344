"""The three curves: cosine between two sets' means, mean variance and largest variance, by depth. Pure, in float64.

Sampling noise lengthens both means, so the plain cosine is biased towards 0, strongly at small n. The debiased cosine
subtracts the expected noise from a·b, |a|² and |b|². The delta method gives its interval.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from scipy.stats import t

from theodolite_jobs.statistics.estimates import NORMAL_QUANTILE, Estimate
from theodolite_jobs.statistics.ratio import ratio
from theodolite_jobs.statistics.scatter import Groups, Scatter, pair_noise


class CosineCurve(NamedTuple):
    """Plain and debiased cosine between two means, the 95 % interval of the debiased one, and the means' distance."""

    plain: NDArray[np.float64]
    debiased: Estimate
    distance: NDArray[np.float64]


def cosine_curve(
    a: Float64[np.ndarray, "*dims d_model"],
    b: Float64[np.ndarray, "*dims d_model"],
    trace_p: Float64[np.ndarray, "*dims"],
    trace_q: Float64[np.ndarray, "*dims"],
    n_p: int,
    n_q: int,
    sums: Scatter,
    *,
    paired: bool,
    groups: Groups | None = None,
) -> CosineCurve:
    """Return the cosine between two means, its debiased form and the 95 % interval around that.

    With A = |a|² − tr Σ_P/n_P and B likewise, ĉ = (a·b − t)/√(AB), where t is 0 for independent sets and tr Σ_PN/n
    for paired ones. The influence of x in P is ψ(x) = (x−a)·(b/√(AB) − ĉ·a/A), likewise for N; the variance of ĉ is
    the variance of the mean influence. ĉ is not clipped. It is NaN if A or B is not positive, since n is then too
    small to resolve the means. Source: docs/science/curves.md, "Debiased cosine".

    The arguments are the means of P and N, the traces of their covariances (n−1), their numbers of samples, and the sum
    over all shards of what `scatter` returns. If paired, row i of P belongs to row i of N.

    If only the means of some groups are known, `sums` contains each of them as one sample that deviates by
    √(size)·(mean − a). The expected sum of the squares of G groups is then σ²(G − 1), and the interval is that of
    Student's t with G − 1 degrees of freedom, the smaller G of both sets. The known pairs give the correlation
    tr Σ_PN / √(tr Σ_P tr Σ_N).
    """
    noise = pair_noise(sums, trace_p, trace_q, n_p, groups) if paired else np.zeros(trace_p.shape)
    dot, a_squared, b_squared = _dot(a, b), _dot(a, a), _dot(b, b)
    big_a, big_b = _signal(a, trace_p, n_p), _signal(b, trace_q, n_q)
    with np.errstate(invalid="ignore", divide="ignore"):
        plain = dot / np.sqrt(a_squared * b_squared)
        scale = _scale(big_a, big_b)
        debiased = (dot - noise) / scale
        influence = influence_variances(
            sums, (debiased / big_a, debiased / big_b), scale, *group_numbers(n_p, n_q, groups)
        )
        # Rounding can make a variance of zero slightly negative.
        half_width = cosine_quantile(groups) * np.sqrt(np.maximum(influence.of_mean(n_p, n_q), 0.0))
    estimate = Estimate(debiased, debiased - half_width, debiased + half_width)
    return CosineCurve(plain, estimate, np.linalg.norm(a - b, axis=-1))


class Influence(NamedTuple):
    """Variances over prompts of a cosine's influence ψ, for P and N, and the covariance over pairs."""

    positive: NDArray[np.float64]
    negative: NDArray[np.float64]
    pairs: NDArray[np.float64]

    def of_mean(self, n_p: int, n_q: int) -> NDArray[np.float64]:
        """Return the variance of the cosine, which is that of the mean influence of n_p and n_q prompts."""
        return self.positive / n_p + self.negative / n_q + 2 * self.pairs / n_p


def influence_variances(
    sums: Scatter,
    own: tuple[Float64[np.ndarray, "*dims"], Float64[np.ndarray, "*dims"]],
    scale: Float64[np.ndarray, "*dims"],
    groups_p: int,
    groups_q: int,
) -> Influence:
    """Return the variances of ψ(x) = (x−a)·(b/scale − own·a) over P, and likewise over N.

    `own` are the factors of P and of N, and the last arguments are their numbers of groups; NaN for one group.
    """
    weights_p, weights_q = _influence_weights(own, scale)
    free_p, free_q = (groups - 1 if groups > 1 else np.nan for groups in (groups_p, groups_q))
    return Influence(
        _quadratic(weights_p, sums.positive, weights_p) / free_p,
        _quadratic(weights_q, sums.negative, weights_q) / free_q,
        _quadratic(weights_p, sums.cross, weights_q) / free_p,
    )


def group_numbers(n_p: int, n_q: int, groups: Groups | None) -> tuple[int, int]:
    """Return the numbers of groups of P and of N; without groups, every sample is a group of one."""
    return (groups.n_p, groups.n_q) if groups else (n_p, n_q)


def cosine_quantile(groups: Groups | None) -> float:
    """Return the half width of the cosine's 95 % interval in standard errors."""
    return float(t.ppf(0.975, degrees_of_freedom(groups))) if groups else NORMAL_QUANTILE


def degrees_of_freedom(groups: Groups | None) -> float:
    """Return the degrees of freedom of the cosine's standard error; infinite if all samples are known."""
    return float(min(groups.n_p, groups.n_q) - 1) if groups else float("inf")


def cosine_terms(
    debiased: Float64[np.ndarray, "*dims"],
    a: Float64[np.ndarray, "*dims d_model"],
    b: Float64[np.ndarray, "*dims d_model"],
    trace_p: Float64[np.ndarray, "*dims"],
    trace_q: Float64[np.ndarray, "*dims"],
    n_p: int,
    n_q: int,
    dots_p: Float64[np.ndarray, "p 2 *dims"],
    dots_q: Float64[np.ndarray, "q 2 *dims"],
    *,
    paired: bool,
) -> Float64[np.ndarray, "row *dims"]:
    """Return independent terms of the error of the debiased cosine, from some samples of each set.

    The sum over rows of the products of two curves' terms is the covariance of their errors. The arguments are those of
    `cosine_curve`, its debiased cosine, and the `mean_dots` of the samples; if paired, of the same pairs.
    """
    big_a, big_b = _signal(a, trace_p, n_p), _signal(b, trace_q, n_q)
    with np.errstate(invalid="ignore", divide="ignore"):
        weights = _influence_weights((debiased / big_a, debiased / big_b), _scale(big_a, big_b))
    influences = [
        np.einsum("si...,...i->s...", dots, weight) / np.sqrt(n * max(len(dots) - 1, 1))
        for dots, weight, n in zip((dots_p, dots_q), weights, (n_p, n_q), strict=True)
    ]
    return influences[0] + influences[1] if paired else np.concatenate(influences)


def _signal(mean: NDArray[np.float64], trace: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Return the squared length of a mean without the expected noise."""
    return np.asarray(_dot(mean, mean) - trace / n)


def _scale(big_a: NDArray[np.float64], big_b: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.sqrt(np.where((big_a > 0) & (big_b > 0), big_a * big_b, np.nan)))


def _influence_weights(
    own: tuple[NDArray[np.float64], NDArray[np.float64]], scale: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the factors of both products of `mean_dots` in the influence of a sample of P and of N, (…, 2)."""
    weights_p, weights_q = (np.stack([-factor, 1 / scale], axis=-1) for factor in own)
    return weights_p, weights_q


def variance_curves(
    variance: Float64[np.ndarray, "*dims d_model"],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return the mean and the largest variance over features, and the index of the largest (−1 if one is NaN)."""
    undefined = np.isnan(variance).any(axis=-1)
    feature = np.where(undefined, -1, np.where(np.isnan(variance), -np.inf, variance).argmax(axis=-1))
    return variance.mean(axis=-1), variance.max(axis=-1), feature.astype(np.int64)


def top_share(variance: Float64[np.ndarray, "*dims d_model"], count: int) -> Float64[np.ndarray, "*dims"]:
    """Return the share of the total variance that the features with the largest variances have; NaN without variance.

    Fewer than `count` features have all of it.
    """
    largest = np.sort(variance, axis=-1)[..., -count:]
    return ratio(largest.sum(axis=-1), variance.sum(axis=-1))


def _dot(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = np.einsum("...d,...d->...", x, y)
    return result


def _quadratic(x: NDArray[np.float64], matrix: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = np.einsum("...i,...ij,...j->...", x, matrix, y)
    return result
