"""Compiled loops against NumPy in float64."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.each import each

from theodolite_jobs.statistics import kernels

N, WIDTH = 7, 600  # more features than one round has


def random(*shape, seed=0, dtype=np.float32):
    return (3 + np.random.default_rng(seed).normal(size=shape)).astype(dtype)


@pytest.fixture(params=["float32", "float64", "rows apart", "columns apart"])
def samples(request):
    """Samples of both precisions, and views that are not contiguous."""
    if request.param == "rows apart":
        return random(2 * N, WIDTH)[::2]
    if request.param == "columns apart":
        return random(N, 2 * WIDTH)[:, ::2]
    return random(N, WIDTH, dtype=request.param)


def test_lengths_and_sums_of_rows(samples):
    exact, centres = samples.astype(np.float64), np.linspace(-1, 3, N)
    np.testing.assert_allclose(kernels.row_lengths(samples), np.linalg.norm(exact, axis=1), rtol=1e-14)
    sums, squares = kernels.row_sums(samples, centres)
    np.testing.assert_allclose(sums, (exact - centres[:, None]).sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(squares, ((exact - centres[:, None]) ** 2).sum(axis=1), rtol=1e-13)


@each("n_positions", [1, 2])
def test_means_of_positions(samples, n_positions):
    rows = samples[: N - N % n_positions]
    expected = rows.astype(np.float64).reshape(-1, n_positions, WIDTH).mean(axis=0)
    np.testing.assert_allclose(kernels.position_means(rows, n_positions), expected, rtol=1e-14)
    assert np.isnan(kernels.position_means(rows[:0], n_positions)).all()


def test_products_of_the_steps_of_a_block(samples):
    states = (samples, random(N, WIDTH, seed=1), random(N, WIDTH, seed=2))
    centres = tuple(np.random.default_rng(1).normal(size=(3, 3, WIDTH)))
    products, deviations = kernels.block_products(states, centres)
    exact = [state.astype(np.float64) for state in states]
    changes = [state - centre[np.arange(N) % 3] for state, centre in zip(exact, centres, strict=True)]
    for found, three in ((products, exact), (deviations, changes)):
        for branch, (start, end) in enumerate(((0, 1), (1, 2), (0, 2))):
            x, y = three[start], three[end]
            expected = [np.vecdot(*pair) for pair in ((x, x), (x, y - x), (y - x, y - x), (y, y))]
            np.testing.assert_allclose(found[:, branch], np.stack(expected, axis=1), rtol=1e-12, atol=1e-11)


def test_dots_of_two_steps(samples):
    others, centres = [random(N, WIDTH, seed=seed) for seed in (1, 2, 3)], random(2, 3, WIDTH, dtype=np.float64)
    start, end, other_start, other_end = (one.astype(np.float64) for one in (samples, *others))
    dots, deviations = kernels.step_dots(samples, *others, *centres)
    step, other = end - start, other_end - other_start
    np.testing.assert_allclose(dots, np.vecdot(step, other), rtol=1e-11, atol=1e-11)
    step, other = (one - centre[np.arange(N) % 3] for one, centre in zip((step, other), centres, strict=True))
    np.testing.assert_allclose(deviations, np.vecdot(step, other), rtol=1e-11, atol=1e-11)


def test_scaled_sums(samples):
    factors = np.linspace(0.5, 2, N)
    scaled = samples.astype(np.float64) * factors[:, None]
    mean, m2 = kernels.scaled_sums(samples, factors)
    np.testing.assert_allclose(mean, scaled.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(m2, ((scaled - scaled.mean(axis=0)) ** 2).sum(axis=0), rtol=1e-13)


def test_dots_of_deviations(samples):
    factors, (centre, first, second) = np.linspace(0.5, 2, N), np.random.default_rng(1).normal(size=(3, WIDTH))
    changes = samples.astype(np.float64) * factors[:, None] - centre
    found = kernels.deviation_dots(samples, factors, centre, first, second)
    np.testing.assert_allclose(found, changes @ np.stack([first, second], axis=1), rtol=1e-11, atol=1e-11)


def test_trace_of_pairs(samples):
    other, factors = random(N, WIDTH, seed=1), (np.linspace(0.5, 2, N), np.linspace(2, 1, N))
    centres = tuple(np.random.default_rng(1).normal(size=(2, WIDTH)))
    p, q = (x.astype(np.float64) * f[:, None] - c for x, f, c in zip((samples, other), factors, centres, strict=True))
    np.testing.assert_allclose(kernels.pair_trace(samples, other, factors, centres), (p * q).sum(), rtol=1e-13)


def test_dots_with_the_vector_of_a_fold(samples):
    units, folds = np.random.default_rng(1).normal(size=(5, WIDTH)), np.arange(N) % 5
    expected = np.vecdot(samples.astype(np.float64), units[folds])
    np.testing.assert_allclose(kernels.fold_dots(samples, units, folds), expected, rtol=1e-11, atol=1e-11)


def test_equal_samples_have_exactly_their_own_mean_and_no_deviation():
    same = np.tile(random(1, WIDTH), (N, 1))
    for factors in (np.ones(N), np.full(N, 1 / 3)):
        mean, m2 = kernels.scaled_sums(same, factors)
        np.testing.assert_array_equal(mean, same[0] * factors[0])
        np.testing.assert_array_equal(m2, 0)
    np.testing.assert_array_equal(kernels.position_means(same, 1)[0], same[0])


@given(st.integers(1, 64), st.floats(0, 1e8), st.integers(0, 100))
@settings(deadline=None)
def test_a_distant_first_sample_costs_few_digits(n, distance, seed):
    samples = random(n, 3, seed=seed, dtype=np.float64)
    samples[0] += distance
    exact = samples.astype(np.longdouble)
    expected = ((exact - exact.mean(axis=0)) ** 2).sum(axis=0).astype(np.float64)
    mean, m2 = kernels.scaled_sums(samples, np.ones(n))
    epsilon = np.finfo(np.float64).eps
    largest = np.abs(samples).max()
    np.testing.assert_allclose(mean, exact.mean(axis=0).astype(np.float64), rtol=0, atol=4 * epsilon * largest)
    # A sum of n numbers is known to about √n units in the last place, and the difference of two such sums costs n.
    np.testing.assert_allclose(m2, expected, rtol=4 * n**1.5 * epsilon, atol=0)


def test_a_number_that_is_not_finite_stays_in_its_feature():
    samples = random(N, 5)
    samples[2, 3] = np.nan
    mean, m2 = kernels.scaled_sums(samples, np.ones(N))
    assert np.isnan(mean).tolist() == np.isnan(m2).tolist() == [False, False, False, True, False]
    assert np.isnan(kernels.row_lengths(samples)).tolist() == [row == 2 for row in range(N)]


def test_loops_compile_where_no_folder_can_be_written(tmp_path):
    """As in a container whose file system is read-only: the compiled code is then not kept."""
    code = (
        "import numba.core.caching as caching; caching.CacheImpl._locator_classes = []; "
        "import numpy as np; from theodolite_jobs.statistics.kernels import row_lengths; "
        "print(row_lengths(np.full((1, 4), 2.0)).tolist())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[4.0]\n"
