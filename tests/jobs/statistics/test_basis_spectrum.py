"""Singular values of planted maps, with noise and without, and the isometry defect."""

import numpy as np
import pytest
from support.each import each

from theodolite_jobs.groups.basis.formulas import MIN_SAMPLES, pair_grams
from theodolite_jobs.groups.basis.formulas_spectrum import isometry_defect, isometry_defect_of_random_steps, stretch


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def rotation(d, seed=0):
    return np.linalg.qr(random(d, d, seed=seed))[0]


def measured(x, y):
    return stretch(pair_grams(x, y), x.shape[1])


def test_the_isometry_defect_by_hand():
    assert isometry_defect(np.array([2.0, 2.0, 2.0])) == pytest.approx(0)
    assert isometry_defect(np.array([1.0, 3.0])) == pytest.approx(1 - 16 / 20)
    assert isometry_defect(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(1 - 1 / 4)
    assert np.isnan(isometry_defect(np.zeros(3)))


@each("k, d", [(20, 200), (50, 100)])
def test_the_isometry_defect_of_random_matrices_is_k_over_4d(k, d):
    defects = [isometry_defect(np.linalg.svd(random(k, d, seed=seed), compute_uv=False)) for seed in range(20)]
    assert np.mean(defects) == pytest.approx(k / (4 * d), rel=0.1)


def test_a_scaled_rotation_has_one_stretch():
    x = random(80, 12)
    found = measured(x, 1.7 * x @ rotation(12) + 4)
    assert found.dimension == 12
    assert list(found.stretch) == pytest.approx([1.7, 1.7, 1.7])
    assert found.isometry_defect == pytest.approx(0, abs=1e-9)
    # The steps have the mean square 1.7² + 1 − 2·1.7·(trace of the rotation)/12.
    squared = 1.7**2 + 1 - 2 * 1.7 * np.trace(rotation(12)) / 12
    assert found.isometry_defect_random == pytest.approx(isometry_defect_of_random_steps(12, 12, squared))


@each("k, d", [(20, 500), (60, 400)])
@each("squared", [0.01, 0.3, 1.0, 5.0, 100.0])
def test_the_isometry_defect_of_random_steps_is_that_of_simulated_ones(k, d, squared):
    defects = []
    for seed in range(20):
        matrix = random(k, d, seed=seed) * np.sqrt(squared / d)
        matrix[:, :k] += np.eye(k)
        defects.append(isometry_defect(np.linalg.svd(matrix, compute_uv=False)))
    assert np.mean(defects) == pytest.approx(isometry_defect_of_random_steps(k, d, squared), rel=0.1)


def test_stretches_are_the_singular_values_of_the_map():
    x = random(100, 10)
    planted = random(10, 10, seed=1)
    singular = np.linalg.svd(planted, compute_uv=False)
    found = measured(x, x @ planted)
    expected = np.quantile(singular, [0.05, 0.5, 0.95])
    assert list(found.stretch) == pytest.approx(expected, rel=1e-6)
    assert found.isometry_defect == pytest.approx(isometry_defect(singular), rel=1e-6)


def test_a_map_of_lower_rank_has_stretches_of_zero():
    x = random(200, 10)
    y = x.copy()
    y[:, 8:] = 0
    found = measured(x, y)
    assert found.stretch[0] == pytest.approx(0, abs=1e-3)
    assert found.stretch[1] == pytest.approx(1)
    assert found.isometry_defect == pytest.approx(1 - 8 / 10, abs=1e-4)


def test_the_map_is_measured_on_directions_with_99_percent_of_the_variance():
    x = random(300, 30) * np.array([10.0] * 4 + [0.1] * 26)
    found = measured(x, x @ rotation(30))
    assert found.dimension == 4
    shares = np.linalg.svd(x - x.mean(axis=0), compute_uv=False) ** 2
    assert found.leading_share == pytest.approx(shares[0] / shares.sum())


def test_the_map_is_measured_on_at_most_a_fifth_as_many_directions_as_samples():
    x = random(50, 100)
    assert measured(x, 2 * x).dimension == 10


@each("noise", [0.05, 0.3])
@each("spread", [0.0, 0.5])
def test_noise_and_shrinkage_do_not_move_the_stretches(noise, spread):
    """Noise lengthens the coefficients, and the ridge penalty shortens them; the corrected median has neither bias."""
    n, d = 200, 300
    deviations = np.arange(1, d + 1.0) ** -0.5
    stretches = np.exp(spread * random(d, seed=5))
    planted = rotation(d, seed=1) * stretches @ rotation(d, seed=2)
    found, true = [], []
    for seed in range(3):
        x = random(n, d, seed=seed) * deviations
        clean = x @ planted
        y = clean + np.sqrt(noise * clean.var(axis=0).sum() / d) * random(n, d, seed=100 + seed)
        found.append(measured(x, y))
        directions = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)[2][: found[-1].dimension]
        true.append(np.linalg.svd(directions @ planted, compute_uv=False))
    median = np.mean([one.stretch[1] for one in found])
    assert median == pytest.approx(np.mean([np.median(one) for one in true]), rel=0.02)
    defect = np.mean([one.isometry_defect for one in found])
    assert defect == pytest.approx(np.mean([isometry_defect(one) for one in true]), abs=0.005)


def test_directions_with_much_noise_are_left_out():
    """One output feature with a huge variance must not make noisy directions look well determined."""
    n, d = 100, 60
    x = random(n, d)
    y = x.copy()
    y[:, 0] += 1e3 * random(n, seed=1)
    found = measured(x, y)
    assert found.dimension == 0
    assert np.isnan([*found.stretch, found.isometry_defect, found.isometry_defect_random]).all()


def test_few_or_equal_inputs_have_no_stretch():
    x, y = random(2, MIN_SAMPLES, 4)
    for found in (measured(x[1:], y[1:]), measured(np.ones((20, 4)), random(20, 4))):
        assert found.dimension == 0
        assert np.isnan([found.leading_share, *found.stretch, found.isometry_defect]).all()


def test_one_direction_has_a_stretch_and_no_defect():
    x = np.outer(random(40), [3.0, 4.0])
    found = measured(x, 2 * x)
    assert found.dimension == 1
    assert found.stretch[1] == pytest.approx(2)
    assert np.isnan([found.isometry_defect, found.isometry_defect_random]).all()
