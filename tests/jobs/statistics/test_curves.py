from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import pytest
from scipy.stats import t
from support.each import each
from support.nightly import at_night
from support.shapes import unchecked

from theodolite.bands import simultaneous_quantile
from theodolite_jobs.groups.curves.formulas import CosineCurve, cosine_curve, cosine_terms, top_share, variance_curves
from theodolite_jobs.groups.directions.formulas import direction
from theodolite_jobs.statistics.estimates import NORMAL_QUANTILE, Estimate
from theodolite_jobs.statistics.scatter import Groups, Scatter, mean_dots, scatter


def curve_of(p, q, paired, splits=1):
    """Compute the curve of one site and layer from whole arrays (sample, d_model), in several shards."""
    a, b = p.mean(axis=0), q.mean(axis=0)
    none = np.empty((0, len(a)))
    if paired:
        shards = zip(np.array_split(p, splits), np.array_split(q, splits), strict=True)
        parts = [scatter(x, y, a, b, paired=True) for x, y in shards]
    else:
        parts = [scatter(x, none, a, b, paired=False) for x in np.array_split(p, splits)]
        parts += [scatter(none, y, a, b, paired=False) for y in np.array_split(q, splits)]
    trace = [np.array([x.var(axis=0, ddof=1).sum() if len(x) > 1 else np.nan]) for x in (p, q)]
    curves = [Scatter(**{name: values[None] for name, values in vars(part).items()}) for part in parts]
    curve = cosine_curve(a[None], b[None], *trace, len(p), len(q), reduce(add, curves), paired=paired)
    return one_of(curve)


def one_of(curve):
    """Return a curve of one place, each number as a scalar."""
    return CosineCurve(curve.plain[0], Estimate(*(end[0] for end in curve.debiased)), curve.distance[0])


def reference(p, q, paired):
    """The formulas of docs/science/curves.md written out sample by sample."""
    n_p, n_q = len(p), len(q)
    a, b = p.mean(axis=0), q.mean(axis=0)
    cov = ((p - a) * (q - b)).sum() / (n_p - 1) if paired else 0.0
    big_a = a @ a - p.var(axis=0, ddof=1).sum() / n_p
    big_b = b @ b - q.var(axis=0, ddof=1).sum() / n_q
    c = (a @ b - (cov / n_p if paired else 0.0)) / np.sqrt(big_a * big_b)
    psi_p = (p - a) @ (b / np.sqrt(big_a * big_b) - c * a / big_a)
    psi_q = (q - b) @ (a / np.sqrt(big_a * big_b) - c * b / big_b)
    variance = (psi_p + psi_q).var(ddof=1) / n_p if paired else psi_p.var(ddof=1) / n_p + psi_q.var(ddof=1) / n_q
    half = NORMAL_QUANTILE * np.sqrt(variance)
    return c, c - half, c + half


def draws(rng, n, cosine, signal=1.0, paired=False, spectrum="flat", d=576):
    """Two sets around means of a given cosine and length, with noise of trace 1 that pairs share in part."""
    scales = np.ones(d) if spectrum == "flat" else np.arange(1, d + 1) ** -0.5
    scales /= np.linalg.norm(scales)
    u, v = np.linalg.qr(rng.normal(size=(d, 2)))[0].T
    shared = rng.normal(size=(n, d)) * scales * np.sqrt(0.8 if paired else 0.0)
    own = scales * np.sqrt(0.2 if paired else 1.0)
    p = signal * u + shared + own * rng.normal(size=(n, d))
    return p, signal * (cosine * u + np.sqrt(1 - cosine**2) * v) + shared + own * rng.normal(size=(n, d))


@each("paired", [True, False])
@each("splits", [1, 3, 7])
def test_curve_equals_the_formulas_written_out(paired, splits):
    p, q = draws(np.random.default_rng(1), 40, 0.8, paired=paired, d=30)
    if not paired:
        q = q[:25]
    curve = curve_of(p, q, paired, splits)
    expected = reference(p, q, paired)
    np.testing.assert_allclose(curve.debiased, expected, rtol=1e-12)
    a, b = p.mean(axis=0), q.mean(axis=0)
    np.testing.assert_allclose(curve.plain, a @ b / np.linalg.norm(a) / np.linalg.norm(b), rtol=1e-14)
    np.testing.assert_allclose(curve.distance, np.linalg.norm(a - b), rtol=1e-14)


def test_a_tiny_case_by_hand():
    p, q = np.array([[3.0, 1.0], [3.0, -1.0]]), np.array([[0.0, 2.0], [2.0, 2.0]])
    # a = (3, 0), b = (1, 2); traces 2 and 2, n = 2: A = 9 − 1, B = 5 − 1; ĉ = 3 / √32
    curve = curve_of(p, q, paired=False)
    np.testing.assert_allclose(curve.debiased.value, 3 / np.sqrt(32), rtol=1e-15)
    # p·q per pair: (0,1)·(−1,0) = 0 and (0,−1)·(1,0) = 0, so pairing changes nothing here
    np.testing.assert_allclose(curve_of(p, q, paired=True).debiased.value, 3 / np.sqrt(32), rtol=1e-15)


@each("spectrum", ["flat", "power law"])
@each("paired", [True, False])
@each("n, cosine", [(64, 0.9), (256, 0.5)])
@unchecked()
def test_intervals_cover_the_truth(spectrum, paired, n, cosine):
    rng = np.random.default_rng(7)
    curves = [curve_of(*draws(rng, n, cosine, paired=paired, spectrum=spectrum, d=96), paired) for _ in range(200)]
    covered = np.mean([curve.debiased.low <= cosine <= curve.debiased.high for curve in curves])
    # 95 % nominal; 200 draws scatter by 1.5 % (one sigma), and the delta method is a little too wide at small n
    assert 0.92 <= covered <= 0.995
    assert abs(np.mean([curve.debiased.value for curve in curves]) - cosine) < 0.005


def terms_of(p, q, paired, curve):
    """The terms of the error of a curve's cosine, (row,)."""
    a, b, one = p.mean(axis=0), q.mean(axis=0), np.ones(max(len(p), len(q)))
    traces = [x.var(axis=0, ddof=1).sum(keepdims=True) for x in (p, q)]
    dots = [mean_dots(*args)[..., None] for args in ((p, a, b, one[: len(p)]), (q, b, a, one[: len(q)]))]
    debiased = np.array([curve.debiased.value])
    return cosine_terms(debiased, a[None], b[None], *traces, len(p), len(q), *dots, paired=paired)[:, 0]


@pytest.mark.parametrize("paired", [True, False])
def test_the_squares_of_the_terms_sum_to_the_squared_error_of_the_cosine(paired):
    p, q = draws(np.random.default_rng(1), 40, 0.8, paired=paired, d=30)
    q = q if paired else q[:25]
    curve = curve_of(p, q, paired)
    error = np.sqrt((terms_of(p, q, paired, curve) ** 2).sum())
    np.testing.assert_allclose(NORMAL_QUANTILE * error, curve.debiased.high - curve.debiased.value, rtol=1e-9)


@pytest.mark.parametrize("paired", [True, False])
@unchecked()
def test_a_band_over_depths_covers_all_cosines_at_once(paired):
    """Six depths whose noise is correlated; 200 draws scatter by 1.5 % (one sigma)."""
    rng, n, depths, covered = np.random.default_rng(11), 100, 6, []
    for _ in range(200):
        p, q = draws(rng, n, 0.9, paired=paired, d=48)
        curves, terms = [], []
        for _ in range(depths):
            sides = [np.sqrt(0.9) * x + np.sqrt(0.1 / 48) * rng.normal(size=x.shape) for x in (p, q)]
            curves.append(curve_of(*sides, paired))
            terms.append(terms_of(*sides, paired, curves[-1]))
        quantile = simultaneous_quantile(np.stack(terms, axis=1))
        inside = []
        for curve in curves:
            half = (curve.debiased.high - curve.debiased.value) * quantile / NORMAL_QUANTILE
            inside.append(abs(curve.debiased.value - 0.9) <= half)
        covered.append(all(inside))
    assert 0.92 <= np.mean(covered) <= 0.99


@unchecked()
def test_the_plain_cosine_is_biased_towards_zero():
    rng = np.random.default_rng(3)
    strong = [curve_of(*draws(rng, 64, 0.9), paired=False).plain for _ in range(100)]
    weak = [curve_of(*draws(rng, 64, 0.9, signal=1 / 3), paired=False) for _ in range(100)]
    assert abs(np.mean(strong) - 0.886) < 0.003  # 0.9 / (1 + 1/64)
    assert abs(np.mean([curve.plain for curve in weak]) - 0.79) < 0.01  # 0.9 / (1 + 9/64)
    assert abs(np.mean([curve.debiased.value for curve in weak]) - 0.9) < 0.01


@unchecked()
def test_the_unpaired_formula_overshoots_on_paired_draws():
    rng = np.random.default_rng(3)
    pairs = [draws(rng, 16, 0.9, signal=0.5, paired=True) for _ in range(100)]
    assert np.mean([curve_of(p, q, paired=False).debiased.value for p, q in pairs]) > 0.95
    assert abs(np.mean([curve_of(p, q, paired=True).debiased.value for p, q in pairs]) - 0.9) < 0.02


@pytest.mark.parametrize("paired", [True, False])
def test_equal_constant_sets_have_cosine_one_and_an_interval_of_no_width(paired):
    same = np.tile(np.random.default_rng(0).normal(size=24).astype(np.float32).astype(np.float64), (10, 1))
    curve = curve_of(same, same.copy(), paired)
    for value in (curve.plain, *curve.debiased):
        assert abs(value - 1) < 1e-12
    assert curve.distance == 0


def test_the_debiased_cosine_is_nan_if_noise_exceeds_the_means():
    rng = np.random.default_rng(0)
    p = rng.normal(size=(8, 100))
    p -= p.mean(axis=0) * 0.999
    curve = curve_of(p, rng.normal(size=(8, 100)), paired=False)
    assert np.isnan(curve.debiased).all()
    assert np.isfinite(curve.plain)


def test_one_sample_gives_only_a_plain_cosine():
    curve = curve_of(np.array([[1.0, 0.0]]), np.array([[1.0, 1.0]]), paired=True)
    np.testing.assert_allclose(curve.plain, np.sqrt(0.5))
    assert np.isnan(curve.debiased).all()


def test_variance_curves_name_the_largest_feature():
    mean, largest, feature = variance_curves(np.array([[1.0, 5.0, 3.0], [2.0, 0.0, 1.0]]))
    np.testing.assert_allclose(mean, [3.0, 1.0])
    assert (largest.tolist(), feature.tolist()) == ([5.0, 2.0], [1, 0])
    assert variance_curves(np.full((1, 3), np.nan))[2].tolist() == [-1]


def test_the_share_of_the_largest_variances_is_that_by_hand():
    variances = np.array([[8.0, 1.0, 4.0, 2.0, 5.0], [1.0, 1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 3.0, 0.0, 0.0]])
    np.testing.assert_allclose(top_share(variances, 3), [17 / 20, 3 / 5, 1.0])
    np.testing.assert_allclose(top_share(variances[:, :2], 3), [1.0, 1.0, np.nan])
    assert np.isnan(top_share(np.array([1.0, np.nan, 2.0]), 3))


def test_directions_are_unit_vectors_and_nan_for_equal_means():
    a, b = np.array([[3.0, 4.0], [1.0, 1.0]]), np.array([[0.0, 0.0], [1.0, 1.0]])
    result = direction(a, b)
    np.testing.assert_allclose(result[0], [0.6, 0.8])
    assert np.isnan(result[1]).all()


def grouped_curve_of(p, q, paired, n_known, size):
    """Compute the curve from the first samples and the means of groups of the others."""
    a, b = p.mean(axis=0), q.mean(axis=0)
    none, whole = np.empty((0, len(a))), range(n_known, len(p), size)
    sides = [(p, a), (q, b)]
    known = [x[:n_known] for x, _ in sides]
    groups = [[x[i : i + size] for i in whole] for x, _ in sides]
    means = [
        np.array([m + np.sqrt(len(group)) * (group.mean(axis=0) - m) for group in own]).reshape(-1, len(a))
        for own, (_, m) in zip(groups, sides, strict=True)
    ]
    if paired:
        parts = [scatter(*known, a, b, paired=True), scatter(*means, a, b, paired=True)]
    else:
        parts = [scatter(x, none, a, b, paired=False) for x in (known[0], means[0])]
        parts += [scatter(none, y, a, b, paired=False) for y in (known[1], means[1])]
    sums = reduce(add, (Scatter(**{name: values[None] for name, values in vars(part).items()}) for part in parts))
    sums = replace(sums, cross_trace=parts[0].cross_trace[None])
    numbers = [n_known + len(own) for own in groups]
    sizes = Groups(*numbers, *(np.array([((x - m)[:n_known] ** 2).sum()]) for x, m in sides))
    trace = [np.array([x.var(axis=0, ddof=1).sum()]) for x, _ in sides]
    curve = cosine_curve(a[None], b[None], *trace, len(p), len(q), sums, paired=paired, groups=sizes)
    return one_of(curve)


@pytest.mark.parametrize("paired", [True, False])
def test_groups_of_one_sample_change_only_the_quantile(paired):
    p, q = draws(np.random.default_rng(2), 40, 0.8, paired=paired, d=30)
    grouped, single = grouped_curve_of(p, q, paired, 40, 1), curve_of(p, q, paired)
    widths = [curve.debiased.high - curve.debiased.low for curve in (grouped, single)]
    np.testing.assert_allclose(widths[0] / widths[1], t.ppf(0.975, 39) / NORMAL_QUANTILE, rtol=1e-12)
    values = [(curve.plain, curve.debiased.value, curve.distance) for curve in (grouped, single)]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


@pytest.mark.parametrize("spectrum", ["flat", "steep"])
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(
    ("n", "n_known", "size"), [(150, 30, 10), *at_night([(600, 40, 56), (600, 300, 60), (100, 20, 64), (128, 64, 64)])]
)
@unchecked()
def test_intervals_from_means_of_groups_cover_the_cosine_as_often_as_they_promise(n, n_known, size, paired, spectrum):
    rng = np.random.default_rng(3)
    curves = [
        grouped_curve_of(*draws(rng, n, 0.6, 0.5, paired, spectrum, d=40), paired, n_known, size) for _ in range(200)
    ]
    covered = np.mean([curve.debiased.low <= 0.6 <= curve.debiased.high for curve in curves])
    assert 0.91 <= covered <= 0.99  # binomial standard error 0.015
    bias = np.mean([curve.debiased.value for curve in curves]) - 0.6
    assert abs(bias) < 0.01


def test_the_correlation_is_not_known_without_a_known_pair():
    p, q = draws(np.random.default_rng(4), 60, 0.6, paired=True, d=3)
    curve = grouped_curve_of(p, q, True, 0, 10)
    assert np.isnan(curve.debiased).all()
    assert np.isfinite(curve.plain)


def test_pairs_of_equal_samples_have_the_cosine_one():
    p, _ = draws(np.random.default_rng(4), 60, 0.6, d=3)
    curve = grouped_curve_of(p, p, True, 10, 10)
    np.testing.assert_allclose(curve.debiased.value, 1, rtol=1e-12)
