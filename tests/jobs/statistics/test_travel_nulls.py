"""Null distributions of cosines, paths and arcs, against all permutations, by hand and in simulations."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.groups.travel.formulas_nulls import (
    DRAWS,
    arc_ratio_at_right_angles,
    family_wise_p,
    path_ratio_at_right_angles,
    permuted_cosine,
)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def cosine(x, y):
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    return (x * y).sum() / np.sqrt((x**2).sum() * (y**2).sum())


@each("n", [2, 3, 5, 6])
def test_the_spread_is_that_of_all_permutations(n):
    x, y = random(n, 4) + 3, random(n, 4, seed=1) + random(n, 4) - 2
    found = permuted_cosine(x, y)
    cosines = [cosine(x, y[list(order)]) for order in permutations(range(n))]
    assert np.mean(cosines) == pytest.approx(0, abs=1e-14)
    assert found.null_sd == pytest.approx(np.std(cosines), rel=1e-12)
    assert found.z[0] == pytest.approx(cosine(x, y) / np.std(cosines), rel=1e-12)
    every = np.array(cosines) / np.std(cosines)
    assert all(np.isclose(z, every).any() for z in found.z)
    assert len(found.z) == 1 + DRAWS


def test_two_samples_by_hand():
    """The deviations are ±(1, 0) and ±(1, 1): the cosine is 1/√2, and −1/√2 if the samples are exchanged."""
    found = permuted_cosine(np.array([[0.0, 0], [2, 0]]), np.array([[0.0, 0], [2, 2]]))
    assert found.null_sd == pytest.approx(1 / np.sqrt(2))
    assert found.z[0] == pytest.approx(1)
    assert set(np.round(found.z, 12)) == {1, -1}


@pytest.mark.parametrize("equal", ["first", "second"])
def test_equal_samples_have_no_test(equal):
    x, y = np.full((6, 3), 0.1), random(6, 3)
    found = permuted_cosine(*((x, y) if equal == "first" else (y, x)))
    assert np.isnan(found.null_sd)
    assert np.isnan(found.z).all()


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_samples_have_no_test(n):
    found = permuted_cosine(random(n, 3), random(n, 3))
    assert np.isnan([found.null_sd, *found.z]).all()


def test_the_family_wise_p_by_hand():
    z = np.array([[3.0, -1.0, np.nan], [2.0, 0.5, np.nan], [-4.0, 1.0, np.nan], [1.0, -0.5, np.nan]])
    # The largest |z| of the three draws are 2, 4 and 1.
    np.testing.assert_allclose(family_wise_p(z), [2 / 4, 4 / 4, np.nan])


@pytest.mark.nightly
@pytest.mark.parametrize("spectrum", ["flat", "steep"])
@unchecked()
def test_independent_deviations_are_found_in_at_most_five_percent_of_draws(spectrum):
    """In 400 draws of six blocks, one block or more passes in 5 % of them; a common factor of all blocks stays."""
    scales = np.ones(20) if spectrum == "flat" else np.arange(1, 21) ** -1.5
    rng, found = np.random.default_rng(0), 0
    for _ in range(400):
        steps = 2 + scales * rng.normal(size=(7, 30, 20))
        z = np.stack([permuted_cosine(*pair).z for pair in pairwise(steps)], axis=1)
        found += bool((family_wise_p(z) <= 0.05).any())
    assert 0.025 <= found / 400 <= 0.08  # 2.3 standard errors on each side


def test_a_small_dependence_is_found_that_the_bound_for_all_spectra_hides():
    x = random(200, 300)
    found = permuted_cosine(x, random(200, 300, seed=1) - 0.05 * x)
    assert found.z[0] * found.null_sd == pytest.approx(-0.05, abs=0.01)
    assert found.null_sd < 0.01 < 2 / np.sqrt(199)
    assert found.z[0] < -5


def test_steps_at_right_angles_have_the_ratios_of_their_paths():
    lengths = np.array([1.0, 2.0, 2.0])
    assert path_ratio_at_right_angles(lengths**2) == pytest.approx(5 / 3)
    assert path_ratio_at_right_angles(np.array([[4.0], [0.0]])) == pytest.approx([1, np.nan], nan_ok=True)
    # From the pole a quarter of a circle, then along a great circle at a right angle: the ends are 90° apart.
    assert arc_ratio_at_right_angles(np.array([np.pi / 2, 1.0])) == pytest.approx((np.pi / 2 + 1) / (np.pi / 2))


def test_random_steps_in_many_dimensions_have_the_ratios_at_right_angles():
    rng, width, angles = np.random.default_rng(0), 2000, [0.6, 0.3, 0.9, 0.4]
    lengths = np.array([3.0, 1.0, 2.0, 2.0])
    ratios = {"path": [], "arc": []}
    for _ in range(50):
        steps = rng.normal(size=(4, width))
        steps *= (lengths / np.linalg.norm(steps, axis=1))[:, None]
        ratios["path"].append(lengths.sum() / np.linalg.norm(steps.sum(axis=0)))
        state = start = np.eye(width)[0]
        for angle in angles:
            across = rng.normal(size=width)
            across -= across @ state * state
            state = np.cos(angle) * state + np.sin(angle) * across / np.linalg.norm(across)
        ratios["arc"].append(sum(angles) / np.arccos(state @ start))
    assert np.mean(ratios["path"]) == pytest.approx(path_ratio_at_right_angles(lengths**2), rel=0.01)
    assert np.mean(ratios["arc"]) == pytest.approx(arc_ratio_at_right_angles(np.array(angles)), rel=0.01)
