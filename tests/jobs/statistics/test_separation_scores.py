from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, norm
from sklearn.metrics import roc_auc_score
from support.each import each

from theodolite_jobs.statistics import scores
from theodolite_jobs.statistics.scores import accuracy, auroc, paired_accuracy

SEEDS = st.integers(0, 1000)
Z = 1.959963984540054  # of the normal distribution, two-sided 95 %


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def only(estimate):
    """The one curve's value and interval."""
    return SimpleNamespace(**{name: values.item() for name, values in estimate._asdict().items()})


def area_of(p, q, paired=False):
    return only(auroc(p[:, None], q[:, None], paired=paired))


def accuracy_of(p, q, paired=False):
    return only(accuracy(p[:, None], q[:, None], paired=paired))


def order_of(p, q):
    return only(paired_accuracy(p[:, None], q[:, None], paired=True))


def ends(area, error, n):
    """The ends of the interval on the scale of log-odds, and of Clopper and Pearson for n successes in n trials."""
    bound = binomtest(n, n).proportion_ci(method="exact").low
    if area in (0, 1):
        return (bound, 1) if area == 1 else (0, 1 - bound)
    odds, half = np.log(area / (1 - area)), Z * error / (area * (1 - area))
    low, high = (1 / (1 + np.exp(-(odds + side * half))) for side in (-1, 1))
    return min(low, bound), max(high, 1 - bound)


def scores_of_pairs(rng, n, distance, correlation):
    """Return normal scores of n pairs with unit variance, whose means are that far apart."""
    p, q = rng.normal(size=(2, n))
    return p + distance / 2, correlation * p + np.sqrt(1 - correlation**2) * q - distance / 2


def delong(p, q):
    """AUROC and DeLong's variance of it pair by pair."""
    wins = np.array([[1.0 if x > y else 0.5 if x == y else 0.0 for y in q] for x in p])
    return wins.mean(), wins.mean(axis=1).var(ddof=1) / len(p) + wins.mean(axis=0).var(ddof=1) / len(q)


@given(SEEDS, st.integers(2, 30), st.integers(2, 30), st.sampled_from([0, 1, 3]))
@settings(deadline=None)
def test_auroc_and_its_interval_equal_the_definition_pair_by_pair(seed, n_p, n_q, decimals):
    """Rounded, so that there are ties."""
    p, q = np.round(random(n_p, seed=seed) + 0.7, decimals), np.round(random(n_q, seed=seed + 1), decimals)
    found, (value, variance) = area_of(p, q), delong(p, q)
    np.testing.assert_allclose(found.value, value, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(value, roc_auc_score([1] * n_p + [0] * n_q, np.concatenate([p, q])), atol=1e-12)
    np.testing.assert_allclose([found.low, found.high], ends(value, np.sqrt(variance), min(n_p, n_q)), atol=1e-12)


@given(SEEDS)
@settings(deadline=None)
def test_auroc_depends_on_the_order_of_scores_only_and_flips_with_the_sets(seed):
    p, q = random(9, seed=seed), random(12, seed=seed + 1)
    plain, grown, turned = area_of(p, q), area_of(np.exp(3 * p), np.exp(3 * q)), area_of(q, p)
    for name in ("value", "low", "high"):
        assert getattr(grown, name) == getattr(plain, name)
    found, expected = [turned.value, turned.low, turned.high], [1 - plain.value, 1 - plain.high, 1 - plain.low]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_each_curve_has_its_own_auroc_and_accuracy():
    p, q = random(8, 2, 3) + 0.5, random(11, 2, 3, seed=1)
    whole = {"auroc": auroc(p, q, paired=False), "accuracy": accuracy(p, q, paired=False)}
    for at in np.ndindex(2, 3):
        alone = {"auroc": area_of(p[:, *at], q[:, *at]), "accuracy": accuracy_of(p[:, *at], q[:, *at])}
        for statistic, name in ((a, b) for a in whole for b in ("value", "low", "high")):
            assert getattr(whole[statistic], name)[at] == getattr(alone[statistic], name)


def test_separated_sets_have_auroc_one_and_an_interval_that_depends_on_their_size():
    found = area_of(random(5) ** 2 + 1, -(random(7) ** 2))
    assert (found.value, found.high) == (1, 1)
    np.testing.assert_allclose(found.low, binomtest(5, 5).proportion_ci(method="exact").low, rtol=1e-12)
    equal = area_of(np.zeros(5), np.zeros(7))
    assert (equal.value, equal.low, equal.high) == pytest.approx((0.5, 0.025**0.2, 1 - 0.025**0.2))


def test_no_area_below_one_has_a_higher_lower_end_than_one():
    """One wrong comparison of 64 · 64: the estimated error is tiny, although 64 pairs cannot show so much."""
    p, q = np.arange(64.0) + 100, np.arange(64.0)
    p[0] = 62.5
    assert area_of(p, q).value == 1 - 1 / 64**2
    assert area_of(p, q).low <= area_of(p + 1e3, q).low


@each("right, n", [(0, 7), (1, 7), (40, 41), (30, 100), (41, 41)])
def test_accuracy_has_wilsons_interval(right, n):
    n_p = n // 2
    sides = np.where(np.arange(n) < right, 1.0, -1.0)
    p, q = sides[:n_p] * 0.3, -sides[n_p:] * 2
    found = accuracy_of(p, q)
    interval = binomtest(right, n).proportion_ci(confidence_level=0.95, method="wilson")
    assert found.value == right / n
    np.testing.assert_allclose([found.low, found.high], [interval.low, interval.high], atol=1e-12)


def test_a_score_of_zero_counts_as_wrong():
    assert accuracy_of(np.array([0.0, 1.0]), np.array([0.0, -1.0])).value == 0.5


def test_one_score_against_several_has_an_auroc_and_no_interval():
    found = area_of(np.array([0.5]), np.array([0.0, 1.0, 0.2, 0.1]))
    assert found.value == 0.75
    assert np.isnan([found.low, found.high]).all()


def test_a_nan_score_makes_only_its_own_curve_nan():
    p, q = random(6, 3), random(7, 3, seed=1)
    p[2, 1] = np.nan
    for found in (auroc(p, q, paired=False), accuracy(p, q, paired=False)):
        for values in (found.value, found.low, found.high):
            assert np.isnan(values).tolist() == [False, True, False]


@given(SEEDS, st.integers(2, 20), st.sampled_from([0, 1, 3]))
@settings(deadline=None)
def test_the_area_of_pairs_has_the_error_of_a_mean_over_pairs(seed, n, decimals):
    """Obuchowski's variance, pair by pair; the value is that of independent sets."""
    p, q = np.round(random(n, seed=seed) + 0.7, decimals), np.round(random(n, seed=seed + 1), decimals)
    wins = np.array([[1.0 if x > y else 0.5 if x == y else 0.0 for y in q] for x in p])
    both = wins.mean(axis=1) + wins.mean(axis=0)
    found, value = area_of(p, q, paired=True), wins.mean()
    np.testing.assert_allclose(found.value, area_of(p, q).value, rtol=1e-12)
    expected = ends(value, np.sqrt(both.var(ddof=1) / n), n)
    np.testing.assert_allclose([found.low, found.high], expected, atol=1e-7)


def test_pairs_that_move_together_have_a_narrower_area_interval_than_independent_prompts():
    p, q = scores_of_pairs(np.random.default_rng(0), 200, 0.5, 0.95)
    wide, narrow = area_of(p, q), area_of(p, q, paired=True)
    assert wide.high - wide.low > 1.3 * (narrow.high - narrow.low)


@each("right, n", [(0, 6), (3, 7), (29, 30), (40, 41), (41, 41)])
def test_the_order_of_pairs_has_the_exact_interval(right, n):
    p, q = np.where(np.arange(n) < right, 1.0, -1.0), np.zeros(n)
    found, expected = order_of(p, q), binomtest(right, n).proportion_ci(method="exact")
    assert found.value == right / n
    np.testing.assert_allclose([found.low, found.high], [expected.low, expected.high], rtol=1e-12, atol=1e-15)


def test_a_tie_counts_half_and_widens_the_interval_of_the_order():
    found = order_of(np.array([1.0, 1.0, 0.0, -1.0]), np.zeros(4))
    assert found.value == 2.5 / 4
    assert found.low == order_of(np.array([1.0, 1.0, -1.0, -1.0]), np.zeros(4)).low
    assert found.high == order_of(np.array([1.0, 1.0, 1.0, -1.0]), np.zeros(4)).high


def test_sets_without_pairs_have_no_order():
    p, q = random(6, 3), random(6, 3, seed=1)
    found = paired_accuracy(p, q, paired=False)
    assert np.isnan([found.value, found.low, found.high]).all()
    assert np.isnan(order_of(np.array([np.nan, 1.0]), np.zeros(2)).low)


def test_the_accuracy_of_pairs_has_the_interval_of_agresti_and_min():
    """Both prompts of a pair right, one of them, none: half a pair is added to each outcome, up to 1.96²/8 = 0.48."""
    p = np.array([1.0] * 20 + [1.0] * 9 + [-1.0] * 4 + [-1.0] * 3)
    q = np.array([-1.0] * 20 + [1.0] * 9 + [-1.0] * 4 + [1.0] * 3)
    cells = np.array([20, 9, 4, 3]) + Z**2 / 8
    share, correct = cells / cells.sum(), np.array([1, 0.5, 0.5, 0])
    centre = share @ correct
    half = Z * np.sqrt(share @ (correct - centre) ** 2 / cells.sum())
    found = accuracy_of(p, q, paired=True)
    assert found.value == (20 + 13 / 2) / 36
    np.testing.assert_allclose([found.low, found.high], [centre - half, centre + half], rtol=1e-12)


@each("paired", [False, True])
def test_the_squares_of_the_terms_sum_to_the_squared_error(paired):
    p, q = random(14, 3) + 1, random(14, 3, seed=1)
    found = scores.auroc(p, q, paired=paired)
    errors = np.sqrt((scores.auroc_terms(p, q, paired=paired) ** 2).sum(axis=0))
    expected = [ends(area, error, 14)[0] for area, error in zip(found.value, errors, strict=True)]
    np.testing.assert_allclose(found.low, expected, rtol=1e-9)
    correct = np.stack([p > 0, q < 0]).astype(float)
    variance = (correct.mean(axis=0) if paired else correct).var(axis=-2, ddof=1) / 14
    of_accuracy = (scores.accuracy_terms(p, q, paired=paired) ** 2).sum(axis=0)
    np.testing.assert_allclose(of_accuracy, variance if paired else variance.sum(axis=0) / 4, rtol=1e-12)
    of_order = (scores.paired_accuracy_terms(p, q, paired=paired) ** 2).sum(axis=0)
    expected = (p > q).var(axis=0, ddof=1) / 14 if paired else np.zeros(3)
    np.testing.assert_allclose(of_order, expected, rtol=1e-12)


@pytest.mark.nightly
@each("paired", [False, True])
@each("n", [40, 64, 256])
@each("area", [0.7, 0.95, 0.98, 0.995])
def test_the_interval_of_the_area_covers_areas_near_one(area, n, paired):
    rng, distance = np.random.default_rng(3), np.sqrt(2) * norm.ppf(area)
    draws = np.stack([np.stack(scores_of_pairs(rng, n, distance, 0.5 if paired else 0)) for _ in range(1500)], axis=-1)
    found = auroc(*draws, paired=paired)
    assert 0.91 <= np.mean((found.low <= area) & (area <= found.high)) <= 0.99
    assert np.mean(found.low > area) <= 0.05  # sets are seldom taken for better separated than they are


@each("correlation", [-0.5, 0.0, 0.9])
@each("n, distance", [(40, 1.0), (256, 0.3)])
def test_the_intervals_of_pairs_cover_the_truth(n, distance, correlation):
    """2,000 draws have a standard error of 0.5 %; the exact interval covers more than 95 %, as it must."""
    rng = np.random.default_rng(7)
    draws = np.stack([np.stack(scores_of_pairs(rng, n, distance, correlation)) for _ in range(2000)], axis=-1)
    truths = {
        "auroc": norm.cdf(distance / np.sqrt(2)),
        "accuracy": norm.cdf(distance / 2),
        "paired_accuracy": norm.cdf(distance / np.sqrt(2 * (1 - correlation))),
    }
    for name, truth in truths.items():
        found = getattr(scores, name)(*draws, paired=True)
        covered = np.mean((found.low <= truth) & (truth <= found.high))
        assert 0.92 <= covered <= (0.995 if name == "paired_accuracy" else 0.98), (name, covered)
