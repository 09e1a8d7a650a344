"""Control directions: they have the length, the variance and the angles that the tests of effects rest on."""

import numpy as np
import pytest

from theodolite_jobs.statistics.effects_controls import matched_directions, random_directions, variance_along
from theodolite_jobs.statistics.gram import centred

RNG = np.random.default_rng(0)


def samples_of(n=60, d=40, decay=0.1):
    """Return centred samples whose variances fall with the feature."""
    return centred(RNG.normal(size=(n, d)) * np.exp(-decay * np.arange(d)))


@pytest.mark.parametrize("shape", [(60, 40), (30, 80)])  # more samples than features, and fewer
@pytest.mark.parametrize("feature", [1, 5, 20])
def test_matched_directions_hold_as_much_variance_at_right_angles(shape, feature):
    samples = samples_of(*shape)
    direction = 3.0 * np.eye(shape[1])[feature]
    found = matched_directions(samples, direction, 20, seed=1)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1)
    np.testing.assert_allclose(found @ direction, 0, atol=1e-9)
    np.testing.assert_allclose(variance_along(samples, found), samples[:, feature].var(ddof=1), rtol=1e-6)
    angles = np.abs(found @ found.T - np.eye(20))
    assert angles.max() < 0.999  # twenty different directions


def test_a_variance_that_no_direction_at_right_angles_holds_gives_nearly_the_largest_one():
    samples = samples_of(decay=1.0)
    direction = np.linalg.svd(samples)[2][0]
    rest = centred(samples - np.outer(samples @ direction, direction))
    largest = np.linalg.svd(rest, compute_uv=False)[0] ** 2 / (len(rest) - 1)
    variances = variance_along(samples, matched_directions(samples, direction, 10, seed=0))
    assert (variances > 0.95 * largest).all()
    assert (variances <= largest * (1 + 1e-9)).all()


def test_no_direction_and_no_variance_give_no_controls():
    samples = samples_of()
    assert np.isnan(matched_directions(samples, np.zeros(40), 3, seed=0)).all()
    one = np.outer(RNG.normal(size=20), np.eye(40)[0])
    assert np.isnan(matched_directions(centred(one), np.eye(40)[0], 3, seed=0)).all()


def test_random_directions_are_unit_vectors_that_the_seed_decides():
    found = random_directions(5, 40, seed=0)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1)
    np.testing.assert_array_equal(found, random_directions(5, 40, seed=0))
    assert not np.allclose(found, random_directions(5, 40, seed=1))
