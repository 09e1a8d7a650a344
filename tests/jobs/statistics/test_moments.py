from functools import reduce
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.each import each

from theodolite_jobs.statistics.moments import (
    extremes,
    merge,
    merge_extremes,
    moments,
    on_sphere,
)

SEEDS = st.integers(0, 1000)
CUTS = st.lists(st.integers(0, 30), max_size=6)


def random(*shape, offset=0.0, seed=0):
    return np.random.default_rng(seed).normal(size=shape) + offset


def stored(samples):
    """Return samples as they come from the store: float32 numbers, in float64."""
    return samples.astype(np.float32).astype(np.float64)


def in_both_spaces(samples):
    """Moments of samples as they are, and on the sphere."""
    return {"raw": moments(samples), "sphere": moments(on_sphere(samples))}


def exact(samples):
    """Mean and sum of squared deviations in extended precision, where that of float64 would be the reference's own."""
    samples = samples.astype(np.longdouble)
    mean = samples.mean(axis=0)
    return mean, np.square(samples - mean).sum(axis=0)


def exact_sphere(samples):
    samples = samples.astype(np.longdouble)
    return samples / np.sqrt(np.square(samples).sum(axis=1, keepdims=True)) * np.sqrt(np.longdouble(samples.shape[1]))


def rogue(n, d):
    """One feature of every sample is near 1000, as in trained models."""
    samples = random(n, d)
    samples[:, 3] = 1000 + 1e-3 * random(n, seed=1)
    return samples


def massive(n, d):
    """One feature is 3000 ± 10, and all of the length."""
    samples = random(n, d)
    samples[:, 3] = 3000 + 10 * random(n, seed=1)
    return samples


def with_first(samples, factor):
    samples[0] *= factor
    return samples


CLOUDS = {
    "plain": lambda n, d: random(n, d),
    "far from 0": lambda n, d: random(n, d, offset=50.0),
    "rogue feature": rogue,
    "massive feature": massive,
    "first is 1000 times longer": lambda n, d: with_first(random(n, d), 1e3),
    "first is 1000 times shorter": lambda n, d: with_first(random(n, d), 1e-3),
    "first is 100 times longer, others alike": lambda n, d: with_first(1 + 1e-2 * random(n, d), 100),
    "first points elsewhere": lambda n, d: np.concatenate([-1e3 * np.eye(d)[:1], 5 + random(n - 1, d)]),
    "tiny": lambda n, d: 1e-18 * random(n, d),
    "huge": lambda n, d: 1e18 * random(n, d),
}


@given(CUTS, SEEDS, st.sampled_from([0.0, 1e3, -1e6]))
@settings(deadline=None)
def test_merged_moments_equal_numpy_for_any_split(cuts, seed, offset):
    samples = random(30, 2, 5, offset=offset, seed=seed)
    parts = np.split(samples, sorted(cuts))
    merged, ends = reduce(merge, map(moments, parts)), reduce(merge_extremes, map(extremes, parts))
    assert merged.count == 30
    np.testing.assert_allclose(merged.mean, samples.mean(axis=0), rtol=1e-12, atol=1e-14)  # of samples of size 1
    np.testing.assert_allclose(merged.variance, samples.var(axis=0, ddof=1), rtol=1e-9)
    np.testing.assert_array_equal(ends.minimum, samples.min(axis=0))
    np.testing.assert_array_equal(ends.maximum, samples.max(axis=0))


def test_a_tiny_case_by_hand():
    both = merge(moments(np.array([[1.0], [3.0]])), moments(np.array([[8.0]])))
    assert (both.count, both.mean[0], both.m2[0], both.variance[0]) == (3, 4.0, 26.0, 13.0)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(1, 40), st.integers(1, 40))
@settings(deadline=None)
def test_equal_samples_have_exactly_no_variance_and_their_own_mean(value, first, second):
    merged = merge(moments(np.full((first, 3), value)), moments(np.full((second, 3), value)))
    assert (merged.m2 == 0).all()
    assert (merged.mean == value).all()


def test_values_that_overflow_float16_sums_do_not_overflow_ours():
    samples = np.full((20_000, 1), 10.0, dtype=np.float16)
    assert moments(samples.astype(np.float64)).mean[0] == 10.0


def test_one_sample_has_no_variance_and_zero_samples_no_mean():
    assert np.isnan(moments(random(1, 3)).variance).all()
    assert np.isnan(moments(random(0, 3)).mean).all()


def test_the_sphere_has_radius_root_d_and_zero_gives_nan():
    samples = random(6, 2, 16)
    samples[3, 1] = 0.0
    scaled = on_sphere(samples)
    assert np.isnan(scaled[3, 1]).all()
    lengths = np.delete(np.linalg.norm(scaled, axis=-1).ravel(), 7)
    np.testing.assert_allclose(lengths, 4.0, rtol=1e-12)


@each("d", [5, 64, 577])
@each("cloud", list(CLOUDS))
def test_moments_in_both_spaces_equal_extended_precision(cloud, d):
    samples = stored(CLOUDS[cloud](50, d))
    found = in_both_spaces(samples)
    for part, reference in ((found["raw"], exact(samples)), (found["sphere"], exact(exact_sphere(samples)))):
        mean, m2 = (values.astype(np.float64) for values in reference)
        spread = np.sqrt(m2 / 50)
        assert part.count == 50
        # A mean near 0 is as good as the samples that it is of; a deviation, as float64 holds what it is taken from.
        assert (np.abs(part.mean - mean) <= 1e-10 * np.maximum(np.abs(mean), spread)).all()
        assert (np.abs(part.m2 - m2) <= (1e-10 + 1e-15 * np.abs(mean) / spread) * m2).all()


@given(CUTS, SEEDS, st.sampled_from(["plain", "far from 0", "rogue feature"]))
@settings(deadline=None)
def test_merged_moments_in_both_spaces_equal_those_of_the_whole(cuts, seed, cloud):
    samples = stored(CLOUDS[cloud](30, 7) + random(30, 7, seed=seed))
    whole = in_both_spaces(samples)
    parts = [in_both_spaces(part) for part in np.split(samples, sorted(cuts))]
    for space, expected in whole.items():
        merged = reduce(merge, (part[space] for part in parts))
        np.testing.assert_allclose(merged.mean, expected.mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(merged.m2, expected.m2, rtol=1e-8)


@given(SEEDS, st.integers(-20, 20))
@settings(deadline=None)
def test_moments_scale_with_the_samples_and_sphere_moments_do_not(seed, exponent):
    samples, factor = stored(random(9, 6, offset=1.0, seed=seed)), 2.0**exponent  # exact in binary
    plain, scaled = in_both_spaces(samples), in_both_spaces(samples * factor)
    np.testing.assert_array_equal(scaled["raw"].mean, plain["raw"].mean * factor)
    np.testing.assert_array_equal(scaled["raw"].m2, plain["raw"].m2 * factor**2)
    np.testing.assert_array_equal(scaled["sphere"].m2, plain["sphere"].m2)


@given(SEEDS, st.permutations(range(12)))
@settings(deadline=None)
def test_the_order_of_samples_does_not_matter(seed, order):
    samples = stored(random(12, 6, offset=2.0, seed=seed))
    plain, turned = in_both_spaces(samples), in_both_spaces(samples[list(order)])
    for space in plain:
        np.testing.assert_allclose(turned[space].mean, plain[space].mean, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(turned[space].m2, plain[space].m2, rtol=1e-10)


@given(st.integers(1, 70), st.integers(1, 25), CUTS, SEEDS)
@settings(deadline=None)
def test_equal_samples_have_exactly_no_variance_on_the_sphere_either(d, n, cuts, seed):
    """What all prompts share must not look as if it varied, however they are dealt to shards."""
    sample = stored(random(d, offset=3.0, seed=seed))
    bounds = [0, *sorted(min(cut, n) for cut in cuts), n]
    parts = [in_both_spaces(np.tile(sample, (stop - start, 1))) for start, stop in pairwise(bounds)]
    for space in ("raw", "sphere"):
        merged = reduce(merge, (part[space] for part in parts))
        assert merged.count == n
        assert (merged.m2 == 0).all()
    assert (reduce(merge, (part["raw"] for part in parts)).mean == sample).all()


def test_one_vector_has_no_variance_and_no_vectors_no_mean_in_both_spaces():
    for part in in_both_spaces(random(1, 6)).values():
        assert (part.count, (part.m2 == 0).all(), np.isnan(part.variance).all()) == (1, True, True)
    np.testing.assert_allclose(np.linalg.norm(in_both_spaces(random(1, 6))["sphere"].mean), np.sqrt(6), rtol=1e-14)
    for part in in_both_spaces(random(0, 6)).values():
        assert (part.count, part.mean.shape, np.isnan(part.mean).all()) == (0, (6,), True)


@each("zeros", [[0], [2], [0, 1, 2, 3]])
def test_a_zero_vector_is_nan_on_the_sphere_and_valid_in_raw_space(zeros):
    samples = random(4, 6)
    samples[zeros] = 0
    found = in_both_spaces(samples)
    assert np.isnan(found["sphere"].mean).all()
    assert np.isnan(found["sphere"].m2).all()
    expected = np.square(samples - samples.mean(axis=0)).sum(axis=0)
    np.testing.assert_allclose(found["raw"].mean, samples.mean(axis=0), rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(found["raw"].m2, expected, rtol=1e-13)


def test_moments_leave_the_samples_as_they_were():
    samples = random(5, 6)
    before = samples.copy()
    in_both_spaces(samples)
    np.testing.assert_array_equal(samples, before)


@given(CUTS, SEEDS)
@settings(deadline=None)
def test_extremes_are_those_of_the_whole_in_float64(cuts, seed):
    samples = random(30, 3, seed=seed).astype(np.float32)
    merged = reduce(merge_extremes, map(extremes, np.split(samples, sorted(cuts))))
    assert merged.minimum.dtype == merged.maximum.dtype == np.float64
    np.testing.assert_array_equal(merged.minimum, samples.min(axis=0))
    np.testing.assert_array_equal(merged.maximum, samples.max(axis=0))
    none = extremes(samples[:0])
    assert (none.minimum == np.inf).all()
    assert (none.maximum == -np.inf).all()
