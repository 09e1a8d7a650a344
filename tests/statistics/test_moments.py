from functools import reduce

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from theodolite_jobs.statistics.moments import merge, moments, on_sphere


def random(*shape, offset=0.0, seed=0):
    return np.random.default_rng(seed).normal(size=shape) + offset


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(0, 1000), st.sampled_from([0.0, 1e3, -1e6]))
def test_merged_moments_equal_numpy_for_any_split(cuts, seed, offset):
    samples = random(30, 2, 5, offset=offset, seed=seed)
    merged = reduce(merge, map(moments, np.split(samples, sorted(cuts))))
    assert merged.count == 30
    np.testing.assert_allclose(merged.mean, samples.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(merged.variance, samples.var(axis=0, ddof=1), rtol=1e-9)
    np.testing.assert_array_equal(merged.minimum, samples.min(axis=0))
    np.testing.assert_array_equal(merged.maximum, samples.max(axis=0))


def test_a_tiny_case_by_hand():
    both = merge(moments(np.array([[1.0], [3.0]])), moments(np.array([[8.0]])))
    assert (both.count, both.mean[0], both.m2[0], both.variance[0]) == (3, 4.0, 26.0, 13.0)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(1, 40), st.integers(1, 40))
def test_equal_samples_have_exactly_no_variance_and_their_own_mean(value, first, second):
    merged = merge(moments(np.full((first, 3), value)), moments(np.full((second, 3), value)))
    assert (merged.m2 == 0).all()
    assert (merged.mean == value).all()


def test_values_that_overflow_float16_sums_do_not_overflow_ours():
    samples = np.full((20_000, 1), 10.0, dtype=np.float16)
    assert moments(samples.astype(np.float64)).mean[0] == 10.0


def test_one_sample_has_no_variance_and_none_at_all_no_mean():
    assert np.isnan(moments(random(1, 3)).variance).all()
    assert np.isnan(moments(random(0, 3)).mean).all()


def test_the_sphere_has_radius_root_d_and_zero_has_no_place_on_it():
    samples = random(6, 2, 16)
    samples[3, 1] = 0.0
    scaled = on_sphere(samples)
    assert np.isnan(scaled[3, 1]).all()
    lengths = np.delete(np.linalg.norm(scaled, axis=-1).ravel(), 7)
    np.testing.assert_allclose(lengths, 4.0, rtol=1e-12)
