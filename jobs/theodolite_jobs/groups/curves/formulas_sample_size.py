"""The plain cosine of means that a number of prompts is expected to give. Pure, in float64.

Sampling noise lengthens both means, so the plain cosine depends on the number of prompts. To compare a run with a plain
cosine that was measured on other numbers of prompts, this module predicts the latter. Source:
docs/science/curves.md, "Plain cosine of other numbers of prompts".
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from theodolite_jobs.groups.curves.formulas import cosine_quantile, group_numbers, influence_variances
from theodolite_jobs.statistics.estimates import Estimate
from theodolite_jobs.statistics.folds import Folds
from theodolite_jobs.statistics.scatter import Groups, Scatter, pair_noise


def expected_cosines(
    sizes: Sequence[int],
    a: Float64[np.ndarray, "*dims d_model"],
    b: Float64[np.ndarray, "*dims d_model"],
    trace_p: Float64[np.ndarray, "*dims"],
    trace_q: Float64[np.ndarray, "*dims"],
    n_p: int,
    n_q: int,
    sums: Scatter,
    squares: tuple[Float64[np.ndarray, "*dims"], Float64[np.ndarray, "*dims"]],
    *,
    paired: bool,
    groups: Groups | None = None,
) -> Estimate:
    """Return the expected plain cosine of two independent sets of m other prompts each, (…, size), for each m of sizes.

    The cosine of new sets falls into its interval with 95 % probability.
    With A′ = |a|² − tr Σ_P/n_P + tr Σ_P/m and B′ likewise, the expected cosine is c = (a·b − t)/√(A′B′). The influence
    of a sample on c, whether it is one of ours or one of the new sets, is ψ(x) = (x−a)·(b/√(A′B′) − c·a/A′). So the
    variance of the difference is Var ψ_P (1/n_P + 1/m) + Var ψ_N (1/n_N + 1/m), plus the covariance of our pairs.
    Products of two noise terms add `_product_variance`. It matters if m is much smaller than n.

    `squares` are estimates of tr Σ² of P and of N. The other arguments are those of `cosine_curve`. NaN where A′ or B′
    is not positive, or without samples of a set.
    """
    if min(n_p, n_q) == 0:
        return Estimate(*np.full((3, *trace_p.shape, len(sizes)), np.nan))
    noise = pair_noise(sums, trace_p, trace_q, n_p, groups) if paired else np.zeros(trace_p.shape)
    dot = np.vecdot(a, b) - noise
    # The means of pairs share much of their noise, which then has little effect on ψ.
    noisy = (np.inf, np.inf) if paired else (np.float64(n_p), np.float64(n_q))
    each = []
    for size in sizes:
        big_a = np.vecdot(a, a) - trace_p / n_p + trace_p / size
        big_b = np.vecdot(b, b) - trace_q / n_q + trace_q / size
        with np.errstate(invalid="ignore", divide="ignore"):
            scale = np.sqrt(np.where((big_a > 0) & (big_b > 0), big_a * big_b, np.nan))
            cosine = dot / scale
            own = cosine / big_a, cosine / big_b
            influence = influence_variances(sums, own, scale, *group_numbers(n_p, n_q, groups))
            relative_p, relative_q = np.maximum(squares[0], 0) / big_a**2, np.maximum(squares[1], 0) / big_b**2
            variance = (
                influence.of_mean(n_p, n_q)
                + (influence.positive + influence.negative) / size
                + _product_variance(cosine, relative_p, relative_q, size, noisy)
            )
            half_width = cosine_quantile(groups) * np.sqrt(np.maximum(variance, 0.0))
        each.append((cosine, cosine - half_width, cosine + half_width))
    return Estimate(*(np.stack(values, axis=-1) for values in zip(*each, strict=True)))


def _product_variance(
    cosine: NDArray[np.float64],
    relative_p: NDArray[np.float64],
    relative_q: NDArray[np.float64],
    size: int,
    known: tuple[float, float],
) -> NDArray[np.float64]:
    """Return the variance from products of two noise terms that the variances of ψ do not contain.

    In sets of m and k prompts, the noise of a·b, |a|² and |b|² adds X/(mk) + Y_P/m² + Y_N/k², with
    X = tr(Σ_PΣ_N)/(A′B′) and Y_P = c²·tr Σ_P²/(2A′²). Our n and the new m both add this. But our variances of ψ use a
    and b with their noise, so they are too large by X/n_N + 2Y_P/n_P for P, and likewise for N. Cauchy and Schwarz
    bound X by √(tr Σ_P² · tr Σ_N²)/(A′B′). Each of the three parts is at least 0, so that a bound is never subtracted.

    The arguments are c, tr Σ²/A′² of P and of N, m, and our numbers of prompts, infinite without that excess.
    """
    n_p, n_q = known
    cross = np.sqrt(relative_p * relative_q) * (1 / size**2 - 1 / (n_p * n_q) - 1 / (n_q * size) - 1 / (n_p * size))
    own = [
        cosine**2 / 2 * relative * (1 / size**2 - 1 / n**2 - 2 / (n * size))
        for relative, n in ((relative_p, n_p), (relative_q, n_q))
    ]
    return sum((np.maximum(part, 0.0) for part in own), np.maximum(cross, 0.0))


def squared_covariance_trace(folds: Folds) -> Float64[np.ndarray, "*dims"]:
    """Return an estimate of tr Σ² from the means of folds, unbiased for normal samples; NaN for fewer than three folds.

    The means of F folds give a covariance S with f = F − 1 degrees of freedom, and the estimate is
    f²/((f−1)(f+2))·(tr S² − (tr S)²/f). It can be negative. Source: Bai and Saranadasa (1996).
    """
    used = folds.counts > 0
    free = int(used.sum()) - 1
    if free < 2:
        return np.full(folds.means.shape[1:-1], np.nan)
    weights = np.sqrt(folds.counts[used]).reshape(-1, *[1] * (folds.means.ndim - 1))
    deviations = weights * (folds.means[used] - folds.mean)
    gram = np.einsum("f...d,g...d->...fg", deviations, deviations)
    squares, trace = (gram**2).sum(axis=(-2, -1)) / free**2, np.trace(gram, axis1=-2, axis2=-1) / free
    return np.asarray(free**2 / ((free - 1) * (free + 2)) * (squares - trace**2 / free))
