"""Noise of a difference of means and repeatability of its direction, against simulations with known means."""

import numpy as np
import pytest
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.groups.directions.formulas_reliability import (
    noise_share,
    reliability,
    samples_of_half,
    split_half_cosine,
)
from theodolite_jobs.statistics.folds import FOLDS, Folds, fold_moments

WIDTH = 200


def folds_of(samples):
    of = np.arange(len(samples)) % FOLDS
    return Folds(np.bincount(of, minlength=FOLDS), *fold_moments(samples, of))


def draw(rng, n_p, n_q, distance, common=0.0):
    """Draw two sets with unit noise in each feature; of paired sets the first samples share `common` of the noise."""
    p, q = rng.normal(size=(n_p, WIDTH)), rng.normal(size=(n_q, WIDTH))
    if common:
        q = common * p[:n_q] + np.sqrt(1 - common**2) * q
    p[:, 0] += distance
    return p, q


def measured(p, q):
    folds = folds_of(p), folds_of(q)
    return reliability(split_half_cosine(*folds), samples_of_half(*folds), (len(p), len(q)))


@pytest.mark.nightly
@each("common", [0.0, 0.9])
@each("n_p, n_q", [(40, 40), (160, 160)])
@each("distance", [1.0, 2.0, 4.0])
def test_reliability_is_the_cosine_of_directions_of_other_samples(n_p, n_q, distance, common):
    rng = np.random.default_rng(1)
    found, between = [], []
    for _ in range(60):
        sets = [draw(rng, n_p, n_q, distance, common) for _ in range(2)]
        first, second = (p.mean(axis=0) - q.mean(axis=0) for p, q in sets)
        found.append(measured(*sets[0]))
        between.append(first @ second / np.linalg.norm(first) / np.linalg.norm(second))
    assert abs(np.mean(found) - np.mean(between)) < 0.03


def test_unequal_sets_count_with_their_effective_size():
    rng = np.random.default_rng(2)
    found = np.mean([measured(*draw(rng, 200, 40, 3.0)) for _ in range(60)])
    assert abs(found - 9 / (9 + WIDTH * (1 / 200 + 1 / 40))) < 0.03


@pytest.mark.parametrize("common", [0.0, 0.9])
@unchecked()
def test_noise_share_is_what_the_squared_distance_has_too_much(common):
    rng, n, distance = np.random.default_rng(3), 50, 2.0
    squared, share = [], []
    for _ in range(200):
        p, q = draw(rng, n, n, distance, common)
        squared.append(((p.mean(axis=0) - q.mean(axis=0)) ** 2).sum())
        traces = [x.var(axis=0, ddof=1).sum() for x in (p, q)]
        pairs = ((p - p.mean(axis=0)) * (q - q.mean(axis=0))).sum() / (n - 1) / n if common else 0.0
        share.append(noise_share(*map(np.asarray, (squared[-1], *traces)), n, n, np.asarray(pairs)))
    left = np.array(squared) * (1 - np.array(share))
    assert abs(left.mean() - distance**2) < 4 * left.std() / np.sqrt(len(left))
    noise = WIDTH * 2 / n * (1 - common)
    np.testing.assert_allclose(np.mean(share), noise / (noise + distance**2), rtol=0.05)


def test_equal_means_have_no_share_and_no_direction():
    zero = np.zeros(())
    assert np.isnan(noise_share(zero, zero, zero, 4, 4, zero))
    same = folds_of(np.ones((10, 3)))
    assert np.isnan(split_half_cosine(same, same))


def test_directions_without_noise_repeat_exactly():
    p, q = np.tile([[3.0, 1.0]], (10, 1)), np.tile([[1.0, 1.0]], (10, 1))
    np.testing.assert_allclose(measured(p, q), 1, rtol=1e-12)


def test_halves_that_do_not_agree_have_no_reliability():
    cosines = np.array([-0.5, 0.0, 0.5, np.nan])
    np.testing.assert_allclose(reliability(cosines, (4.0, 4.0), (10, 10)), [0, 0, 1.25 / 1.75, np.nan])


def test_a_set_with_fewer_samples_than_folds_has_no_split():
    assert np.isnan(split_half_cosine(folds_of(np.eye(1, 4)), folds_of(np.eye(9, 4))))
