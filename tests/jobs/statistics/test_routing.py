import numpy as np
import pytest
from scipy.stats import binomtest, kstest
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.groups.routing.formulas import absolute_differences, differences, shares, used_experts
from theodolite_jobs.statistics.permutations import permutation_test, permuted_labels


def column(successes, n):
    """Return n tokens of which the first ones use the only expert."""
    return (np.arange(n) < successes)[:, None]


def pairs(both, only_first, only_second, neither):
    """Return the choices of two matched sets from the numbers of pairs."""
    first = np.repeat([True, True, False, False], [both, only_first, only_second, neither])
    second = np.repeat([True, False, True, False], [both, only_first, only_second, neither])
    return first[:, None], second[:, None]


def test_four_tokens_by_hand():
    chosen = np.array([[0, 2], [1, 2], [0, 2], [-1, 2]], dtype=np.int16)
    used = used_experts(chosen, 4)
    np.testing.assert_array_equal(used.astype(int), [[1, 0, 1, 0], [0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 1, 0]])
    np.testing.assert_array_equal(shares(used).value, [0.5, 0.25, 1.0, 0.0])
    other = used_experts(np.array([[0, 1], [0, 1]], dtype=np.int16), 4)
    np.testing.assert_array_equal(differences(used, other, paired=False).value, [-0.5, -0.75, 1.0, 0.0])
    labels = np.array([[True, True, False, False], [True, False, True, False]])
    expected = [[0.0, 0.5, 0.0, 0.0], [1.0, 0.5, 0.0, 0.0]]  # tokens 0 and 1 minus 2 and 3, then 0 and 2 minus 1 and 3
    np.testing.assert_array_equal(absolute_differences(used, labels), expected)


@each("successes, n", [(0, 7), (1, 7), (3, 20), (20, 20), (250, 512)])
def test_the_interval_of_a_share_is_that_of_scipy(successes, n):
    value, low, high = (one[0] for one in shares(column(successes, n)))
    expected = binomtest(successes, n).proportion_ci(method="wilson")
    assert value == successes / n
    np.testing.assert_allclose([low, high], [expected.low, expected.high], atol=1e-12)


def test_the_share_of_no_tokens_is_missing():
    assert np.isnan(shares(np.zeros((0, 3), dtype=bool))).all()


def test_the_interval_of_independent_shares_is_that_of_newcombe_s_example():
    found = differences(column(56, 70), column(48, 80), paired=False)
    np.testing.assert_allclose(np.concatenate(found), [0.2, 0.0524, 0.3339], atol=5e-5)


def test_the_interval_of_paired_shares_by_hand():
    """36, 12, 2 and 0 of 50 pairs: φ = (36·0 - 12·2) / √(48·2·38·12), which is negative and so not corrected."""
    found = differences(*pairs(36, 12, 2, 0), paired=True)
    phi = -24 / np.sqrt(48 * 2 * 38 * 12)
    ends = [binomtest(count, 50).proportion_ci(method="wilson") for count in (48, 38)]
    down, up = (0.96 - ends[0].low, ends[1].high - 0.76), (ends[0].high - 0.96, 0.76 - ends[1].low)
    low, high = (np.sqrt(one**2 - 2 * phi * one * other + other**2) for one, other in (down, up))
    np.testing.assert_allclose(np.concatenate(found), [0.2, 0.2 - low, 0.2 + high], atol=1e-12)


def test_the_correlation_of_pairs_narrows_the_interval():
    first, second = pairs(40, 10, 0, 50)
    paired, unpaired = differences(first, second, paired=True), differences(first, second, paired=False)
    assert (paired.high - paired.low)[0] < 0.7 * (unpaired.high - unpaired.low)[0]
    corrected = (40 * 50 - 50) / np.sqrt(50 * 50 * 40 * 60)
    both = [binomtest(count, 100).proportion_ci(method="wilson") for count in (50, 40)]
    one, other = 0.5 - both[0].low, both[1].high - 0.4
    expected = 0.1 - np.sqrt(one**2 - 2 * corrected * one * other + other**2)
    assert paired.low[0] == pytest.approx(expected, abs=1e-12)


@each("paired", [True, False])
@unchecked()
def test_intervals_cover_the_true_difference(paired):
    rng, hits = np.random.default_rng(0), 0
    for _ in range(400):
        common = rng.random((60, 5)) < 0.4
        first = np.where(rng.random((60, 5)) < 0.5, common, rng.random((60, 5)) < 0.6)
        second = np.where(rng.random((60, 5)) < 0.5, common, rng.random((60, 5)) < 0.3)
        if not paired:
            first, second = rng.random((60, 5)) < 0.5, rng.random((60, 5)) < 0.35
        found = differences(first, second, paired=paired)
        hits += int(((found.low <= 0.15) & (found.high >= 0.15)).sum())
    assert 0.94 <= hits / 2000 <= 0.98


def labels_of(n, paired):
    folds = np.arange(n) % 5
    return permuted_labels(folds, folds, paired=paired)


def choices(rng, n, layers=3, experts=8):
    """Return the experts of n tokens that choose two of eight in each layer, the first ones more often."""
    scores = rng.normal(size=(n, layers, experts)) + np.linspace(1, 0, experts)
    chosen = scores.argsort(axis=-1)[..., :2].astype(np.int16)
    return np.stack([used_experts(chosen[:, layer], experts) for layer in range(layers)], axis=1)


def p_family(positive, negative, paired):
    used = np.concatenate([positive, negative])
    labels = labels_of(len(positive), paired)
    draws = np.stack([absolute_differences(used[:, layer], labels) for layer in range(used.shape[1])], axis=1)
    return permutation_test(draws).p_family


@each("paired", [True, False])
@unchecked()
def test_without_a_difference_the_smallest_family_wise_p_is_uniform(paired):
    rng = np.random.default_rng(1)
    smallest = [np.nanmin(p_family(choices(rng, 40), choices(rng, 40), paired)) for _ in range(150)]
    assert kstest(smallest, "uniform").pvalue > 0.01
    assert np.mean(np.array(smallest) <= 0.05) < 0.1


@each("paired", [True, False])
def test_an_expert_that_a_contrast_uses_is_found_alone(paired):
    rng = np.random.default_rng(2)
    positive, negative = choices(rng, 60), choices(rng, 60)
    planted = rng.random(60) < 0.6
    positive[planted, 1, 6] = True
    negative[:, 1, 6] = False
    p = p_family(positive, negative, paired)
    assert p[1, 6] == pytest.approx(1 / 201)
    assert np.nanmin(np.delete(p.ravel(), 8 + 6)) > 0.05


def test_an_expert_that_no_permutation_changes_is_outside_the_family():
    rng = np.random.default_rng(3)
    positive, negative = choices(rng, 30), choices(rng, 30)
    positive[:, 0, 0] = negative[:, 0, 0] = True
    positive[:, 2, 3] = negative[:, 2, 3] = False
    p = p_family(positive, negative, paired=False)
    assert np.isnan(p[0, 0])
    assert np.isnan(p[2, 3])
    assert np.isfinite(p).sum() == 22
