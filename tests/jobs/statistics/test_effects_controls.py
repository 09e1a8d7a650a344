"""Control directions: they have the length, the variance and the angles that the tests of effects rest on."""

import numpy as np
import pytest

from theodolite_jobs.groups.effects.formulas_controls import (
    directions_at,
    effective_number,
    matched_directions,
    variance_along,
)
from theodolite_jobs.statistics.gram_matrices import centred
from theodolite_jobs.statistics.permutations import permuted_labels

RNG = np.random.default_rng(0)


def samples_of(n=60, d=40, decay=0.1):
    """Return centred samples whose variances fall with the feature."""
    return centred(RNG.normal(size=(n, d)) * np.exp(-decay * np.arange(d)))


@pytest.mark.parametrize("shape", [(300, 200), (150, 200)])  # more samples than features, and fewer
def test_matched_directions_hold_as_much_variance_at_right_angles(shape):
    samples, feature = samples_of(*shape, decay=0.005), 50
    direction = 3.0 * np.eye(shape[1])[feature]
    found = matched_directions(samples, direction, 20, seed=1)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1)
    np.testing.assert_allclose(found @ direction, 0, atol=1e-9)
    np.testing.assert_allclose(variance_along(samples, found), samples[:, feature].var(ddof=1), rtol=1e-6)
    angles = np.abs(found @ found.T - np.eye(20))
    assert angles.max() < 0.999  # twenty different directions


@pytest.mark.nightly
def test_controls_of_a_direction_with_most_of_the_variance_are_draws_of_the_covariance():
    samples = samples_of(200, 40, decay=0.1)
    direction = np.linalg.svd(samples)[2][0]
    found = matched_directions(samples, direction, 500, seed=0)
    np.testing.assert_allclose(found @ direction, 0, atol=1e-9)
    rest = samples - np.outer(samples @ direction, direction)
    variances = np.linalg.svd(rest, compute_uv=False)[:-1] ** 2
    # The participation ratio of draws approaches that of the covariance as their number grows.
    assert effective_number(found) == pytest.approx(variances.sum() ** 2 / (variances**2).sum(), rel=0.15)


def test_one_leading_component_does_not_make_all_controls_the_same():
    samples = samples_of(100, 60, decay=0.02)
    samples[:, 0] *= 30  # varies more than everything at right angles
    found = matched_directions(centred(samples), np.eye(60)[0], 20, seed=0)
    assert effective_number(found) > 10
    assert np.abs(found @ found.T - np.eye(20)).max() < 0.9


def test_the_effective_number_counts_directions_that_differ():
    assert effective_number(3 * np.eye(7)) == pytest.approx(7)
    assert effective_number(np.tile(np.eye(7)[0], (5, 1)) * np.array([1, -1, 2, 1, 1])[:, None]) == pytest.approx(1)
    assert np.isnan(effective_number(np.zeros((3, 7))))


def test_no_direction_and_no_variance_give_no_controls():
    samples = samples_of()
    assert np.isnan(matched_directions(samples, np.zeros(40), 3, seed=0)).all()
    one = np.outer(RNG.normal(size=20), np.eye(40)[0])
    assert np.isnan(matched_directions(centred(one), np.eye(40)[0], 3, seed=0)).all()


@pytest.fixture(scope="module")
def strong():
    """Directions at a place where the contrast holds most of the variance."""
    captured = RNG.normal(size=(80, 30)) * 0.9 ** np.arange(30)
    captured[:40, 3] += 12
    labels = permuted_labels(np.arange(40) % 5, np.arange(40) % 5, paired=False)[:21]
    return captured, directions_at(captured, labels)


def test_controls_have_the_length_of_the_difference_or_its_number_of_standard_deviations(strong):
    captured, found = strong
    np.testing.assert_allclose(found.difference, captured[:40].mean(axis=0) - captured[40:].mean(axis=0))
    length = np.linalg.norm(found.difference)
    np.testing.assert_allclose(np.linalg.norm(found.permuted, axis=1), length)
    within = np.concatenate([centred(captured[:40]), centred(captured[40:])])
    vectors = np.concatenate([found.difference[None], found.matched])
    own, *others = np.linalg.norm(vectors, axis=1) / np.sqrt(variance_along(within, vectors))
    np.testing.assert_allclose(others, own)
    for controls in (found.matched, found.permuted):
        np.testing.assert_allclose(controls @ found.difference, 0, atol=1e-8)


def test_a_strong_contrast_has_no_match_of_its_variance_and_many_different_controls(strong):
    _, found = strong
    assert (found.control_variance < 0.2).all()
    assert (found.effective_controls > 5).all()


def test_equal_means_give_directions_of_length_0():
    captured = np.tile(RNG.normal(size=(20, 6)), (2, 1))
    found = directions_at(captured, permuted_labels(np.arange(20) % 5, np.arange(20) % 5, paired=True)[:21])
    assert not found.matched.any()
    assert not found.permuted.any()
    assert np.isnan(found.control_variance).all()
