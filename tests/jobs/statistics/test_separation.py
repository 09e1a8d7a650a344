from functools import reduce
from operator import add
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import t
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.groups.separation.formulas import fisher_ratio
from theodolite_jobs.statistics.folds import FOLDS, Folds, fold_directions, fold_moments, fold_scores
from theodolite_jobs.statistics.scores import accuracy, auroc

SEEDS = st.integers(0, 1000)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def folded(samples, indices=None):
    """Moments of each fold, by index modulo 5, of (sample, …, d_model)."""
    of_folds = (np.arange(len(samples)) if indices is None else np.asarray(indices)) % FOLDS
    inside = [samples[of_folds == fold] for fold in range(FOLDS)]
    means = [part.mean(axis=0) if len(part) else np.zeros(samples.shape[1:]) for part in inside]
    deviations = [np.square(part - mean).sum(axis=(0, -1)) for part, mean in zip(inside, means, strict=True)]
    return Folds(np.array([len(part) for part in inside]), np.stack(means), np.stack(deviations))


def only(estimate):
    """The one curve's value and interval."""
    return SimpleNamespace(**{name: values.item() for name, values in estimate._asdict().items()})


def area_of(p, q):
    return only(auroc(p[:, None], q[:, None], paired=False))


def accuracy_of(p, q):
    return only(accuracy(p[:, None], q[:, None], paired=False))


def ratio_of(p, q):
    return only(fisher_ratio(folded(p[:, None]), folded(q[:, None])))


def scored(p, q, of_p=None, of_q=None):
    units, midpoints = fold_directions(folded(p, of_p), folded(q, of_q))
    indices = [np.arange(len(x)) if of is None else np.asarray(of) for x, of in ((p, of_p), (q, of_q))]
    return [fold_scores(x, of % FOLDS, units, midpoints) for x, of in zip((p, q), indices, strict=True)]


def scores_by_hand(p, q, of_p, of_q):
    """Each sample along the direction of all samples of other folds, beyond their midpoint, one by one."""
    found = []
    for samples, indices in ((p, of_p), (q, of_q)):
        for sample, index in zip(samples, indices, strict=True):
            a = np.mean([x for x, of in zip(p, of_p, strict=True) if of % 5 != index % 5], axis=0)
            b = np.mean([y for y, of in zip(q, of_q, strict=True) if of % 5 != index % 5], axis=0)
            unit = (a - b) / np.sqrt(((a - b) ** 2).sum())
            found.append((sample - (a + b) / 2) @ unit)
    return np.array(found[: len(p)]), np.array(found[len(p) :])


@given(SEEDS, st.integers(2, 14), st.integers(2, 14))
@settings(deadline=None, max_examples=50)
def test_scores_use_the_direction_of_the_other_folds(seed, n_p, n_q):
    p, q = random(n_p, 6, seed=seed) + 1, random(n_q, 6, seed=seed + 1)
    rng = np.random.default_rng(seed)
    of_p, of_q = (np.sort(rng.choice(40, size=n, replace=False)) for n in (n_p, n_q))  # some were quarantined
    assume(min(len(set(of_p % 5)), len(set(of_q % 5))) > 1)  # there is another fold
    expected = scores_by_hand(p, q, of_p, of_q)
    for found, by_hand in zip(scored(p, q, of_p, of_q), expected, strict=True):
        np.testing.assert_allclose(found, by_hand, rtol=1e-10, atol=1e-12)


def test_the_direction_of_a_fold_does_not_depend_on_its_samples():
    p, q = random(20, 6) + 1, random(20, 6, seed=1)
    before = scored(p, q)
    p[7] += 100  # fold 2
    after = scored(p, q)
    own = np.arange(20) % 5 == 2
    for old, new in zip(before, after, strict=True):
        kept = [2, 12, 17]
        np.testing.assert_allclose(new[kept], old[kept], rtol=1e-12)
        assert (np.abs(old[~own] - new[~own]) > 1e-3).all()


def test_pairs_stay_in_one_fold():
    """A pair's common part, which only one partner's fold would leak, does not tell the sets apart."""
    shared = 50 * random(40, 30)
    p, q = shared + random(40, 30, seed=1), shared + random(40, 30, seed=2)
    assert abs(area_of(*scored(p, q)).value - 0.5) < 0.2
    shifted = np.arange(40) + 1  # as if partners sat in neighbouring folds: what P is pulled to, Q is pushed from
    leaked = area_of(*scored(p, q, of_q=shifted)).value
    assert abs(leaked - 0.5) > 0.2


def fisher_by_hand(p, q, of_p, of_q):
    """The mean over folds of Δμ_fold · Δμ_rest, over both traces."""
    products = []
    for fold in sorted(set(of_p % 5)):
        in_p, in_q = of_p % 5 == fold, of_q % 5 == fold
        own, rest = p[in_p].mean(axis=0) - q[in_q].mean(axis=0), p[~in_p].mean(axis=0) - q[~in_q].mean(axis=0)
        products.append(own @ rest)
    return np.mean(products) / (np.trace(np.cov(p.T)) + np.trace(np.cov(q.T)))


def fisher_interval_by_hand(p, q, of_p, of_q):
    """Student's over the jackknife that leaves out one fold at a time, traces and all."""
    kept = [(of_p % 5 != fold, of_q % 5 != fold) for fold in range(5)]
    left_out = np.array([fisher_by_hand(p[in_p], q[in_q], of_p[in_p], of_q[in_q]) for in_p, in_q in kept])
    error = np.sqrt(4 / 5 * ((left_out - left_out.mean()) ** 2).sum())
    value = fisher_by_hand(p, q, of_p, of_q)
    return value - t.ppf(0.975, 4) * error, value + t.ppf(0.975, 4) * error


@given(SEEDS, st.integers(5, 17), st.integers(5, 17))
@settings(deadline=None)
def test_the_fisher_ratio_equals_its_definition(seed, n_p, n_q):
    p, q = random(n_p, 6, seed=seed) + 0.7, random(n_q, 6, seed=seed + 1)
    found, sets = ratio_of(p, q), (p, q, np.arange(n_p), np.arange(n_q))
    np.testing.assert_allclose(found.value, fisher_by_hand(*sets), rtol=1e-10, atol=1e-13)
    if min(n_p, n_q) > 6:  # what a fold leaves has a spread
        np.testing.assert_allclose([found.low, found.high], fisher_interval_by_hand(*sets), rtol=1e-9, atol=1e-12)


def draws(rng, n_p, n_q, distance, spectrum="flat", paired=False, d=64):
    """Two sets whose means are that far apart, each of covariance trace 1."""
    scales = np.ones(d) if spectrum == "flat" else np.arange(1, d + 1) ** -0.5
    scales = scales / np.linalg.norm(scales)
    unit = rng.normal(size=d)
    unit *= distance / np.linalg.norm(unit)
    shared = rng.normal(size=(max(n_p, n_q), d)) * scales * np.sqrt(0.6 if paired else 0.0)
    own = scales * np.sqrt(0.4 if paired else 1.0)
    p, q = (shared[:n] + own * rng.normal(size=(n, d)) for n in (n_p, n_q))
    return p + unit, q


@each("paired", [True, False])
@each("distance", [0.0, 1.0])
@unchecked()
def test_the_fisher_ratio_is_unbiased(distance, paired):
    rng, n_q = np.random.default_rng(5), 20 if paired else 13
    found = [ratio_of(*draws(rng, 20, n_q, distance, paired=paired)).value for _ in range(250)]
    truth, plain_bias = distance**2 / 2, (1 / 20 + 1 / n_q) * (0.4 if paired else 1.0) / 2
    error = np.std(found) / np.sqrt(250)
    # 4 standard errors, and what the ratio of two unbiased numbers is off at this n: a few hundredths of itself at most
    assert abs(np.mean(found) - truth) < 4 * error + 0.02 * truth
    assert 4 * error < plain_bias  # the plain ratio would fail


@each(
    "distance, paired, spectrum",
    [(0.3, False, "flat"), (1.0, True, "power law"), (3.0, False, "flat"), (3.0, True, "power law")],
)
@unchecked()
def test_the_fisher_ratios_interval_covers_the_truth(distance, paired, spectrum):
    rng = np.random.default_rng(5)
    found = [ratio_of(*draws(rng, 50, 50, distance, spectrum, paired)) for _ in range(150)]
    covered = np.mean([one.low <= distance**2 / 2 <= one.high for one in found])
    # 95 % nominal; 150 draws scatter by 1.8 % (one sigma), and four degrees of freedom are few
    assert covered >= 0.88


def test_the_fisher_ratio_is_invariant_under_a_common_offset():
    """A feature that is large in all samples, as in trained models, takes no digits from the spread of others."""
    rng = np.random.default_rng(0)
    p, q = (0.1 * rng.normal(size=(20, 6)) + mean for mean in (0.1, 0.0))
    moved = np.zeros(6)
    moved[2] = 1e4
    found, expected = ratio_of(p + moved, q + moved), ratio_of(p, q)
    # the sum of 1e4 and 0.1 is itself rounded by 1e-12
    for name in ("value", "low", "high"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-10)


@given(SEEDS, st.integers(-20, 20))
@settings(deadline=None)
def test_the_unit_of_activations_does_not_matter_to_separation(seed, exponent):
    factor = 2.0**exponent
    p, q = random(11, 6, seed=seed) + 1, random(12, 6, seed=seed + 1)
    plain, scaled = scored(p, q), scored(p * factor, q * factor)
    for old, new in zip(plain, scaled, strict=True):
        np.testing.assert_array_equal(new, old * factor)
    found, expected = ratio_of(p * factor, q * factor), ratio_of(p, q)
    for name in ("value", "low", "high"):
        assert getattr(found, name) == getattr(expected, name)


@given(st.permutations(range(11)), SEEDS)
@settings(deadline=None)
def test_folds_of_shards_merge_to_those_of_the_whole(order, seed):
    samples, indices = random(11, 1, 4, seed=seed) + 3, np.arange(11)
    parts = [folded(samples[[index]], indices[[index]]) for index in order]
    whole, added = folded(samples), reduce(add, parts)
    np.testing.assert_array_equal(added.counts, whole.counts)
    np.testing.assert_allclose(added.means, whole.means, rtol=1e-12)
    np.testing.assert_allclose(added.deviations, whole.deviations, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(whole.means[3], samples[[3, 8]].mean(axis=0), rtol=1e-12)
    kept = np.delete(samples, [3, 8], axis=0)
    for folds, of in ((added, samples), (added.without(3), kept)):
        np.testing.assert_allclose(folds.mean, of.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(folds.trace, np.trace(np.cov(of[:, 0].T)), rtol=1e-10)


@given(SEEDS, st.integers(0, 12))
@settings(deadline=None)
def test_folds_of_samples_are_their_moments(seed, n):
    samples, of_folds = random(n, 4, seed=seed), np.random.default_rng(seed).integers(0, 5, size=n)
    means, deviations = fold_moments(samples, of_folds)
    expected = folded(samples, of_folds)
    np.testing.assert_allclose(means, expected.means, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(deviations, expected.deviations, rtol=1e-10, atol=1e-14)


@each("n", [2, 3, 4])
def test_fewer_samples_than_folds_are_scored_and_have_no_fisher_ratio(n):
    p, q = random(n, 6) + 1, random(9, 6, seed=1)
    scores = scored(p, q)
    for found, by_hand in zip(scores, scores_by_hand(p, q, np.arange(n), np.arange(9)), strict=True):
        np.testing.assert_allclose(found, by_hand, rtol=1e-10)
    assert np.isfinite([area_of(*scores).value, accuracy_of(*scores).value]).all()
    ratio = ratio_of(p, q)
    assert np.isnan([ratio.value, ratio.low, ratio.high]).all()


def test_one_sample_has_no_other_fold_and_gives_nan():
    scores = scored(random(1, 6) + 1, random(9, 6, seed=1))
    for found in (area_of(*scores), accuracy_of(*scores)):
        assert np.isnan([found.value, found.low, found.high]).all()


@pytest.mark.parametrize("empty", [0, 1])
def test_an_empty_set_gives_nan(empty):
    sets = [random(6, 4), random(7, 4, seed=1)]
    sets[empty] = np.empty((0, 4))
    scores = scored(*sets)
    for found in (area_of(*scores), accuracy_of(*scores)):
        assert np.isnan([found.value, found.low, found.high]).all()


@each("n", [1, 5, 12])
def test_a_set_against_itself_has_no_direction(n):
    p = random(n, 6).astype(np.float32).astype(np.float64)
    scores = scored(p, p.copy())
    assert np.isnan(np.concatenate(scores)).all()
    for found in (area_of(*scores), accuracy_of(*scores)):
        assert np.isnan([found.value, found.low, found.high]).all()
    if n >= FOLDS:
        ratio = ratio_of(p, p.copy())
        assert (ratio.value, ratio.low, ratio.high) == (0, 0, 0)


@each("d", [6, 48, 577])
@each("n_p, n_q", [(5, 5), (7, 12), (33, 50)])
def test_two_sets_of_the_same_vector_have_no_direction(n_p, n_q, d):
    """What all prompts share: sums of equal float32 numbers are exact, so nothing is made of rounding."""
    same = random(d).astype(np.float32).astype(np.float64)
    p, q = np.tile(same, (n_p, 1)), np.tile(same, (n_q, 1))
    assert np.isnan(np.concatenate(scored(p, q))).all()
    ratio = ratio_of(p, q)
    assert np.isnan([ratio.value, ratio.low, ratio.high]).all()  # 0/0


@each("d", [2, 48, 577])
def test_two_sets_of_one_distinct_vector_each_have_auroc_one_and_no_fisher_ratio(d):
    p, q = (np.tile(random(d, seed=seed).astype(np.float32).astype(np.float64), (7, 1)) for seed in (0, 1))
    half = np.linalg.norm(p[0] - q[0]) / 2
    scores = scored(p, q)
    np.testing.assert_allclose(np.concatenate(scores), [half] * 7 + [-half] * 7, rtol=1e-12)
    assert (area_of(*scores).value, accuracy_of(*scores).value) == (1, 1)
    assert not np.isfinite(ratio_of(p, q).value)
