"""Differences of AUROCs and of paired accuracies of the same prompts: by hand, and their coverage in simulations."""

import numpy as np
from scipy.stats import norm
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.statistics import scores as separation_scores
from theodolite_jobs.statistics.refits import Scored
from theodolite_jobs.statistics.score_differences import difference

AUROC = separation_scores.auroc, separation_scores.auroc_terms
PAIRS = separation_scores.paired_accuracy, separation_scores.paired_accuracy_terms


def scored(sides, *, paired):
    """Return scores without a fitted direction."""
    rows = len(sides[0]) if paired else len(sides[0]) + len(sides[1])
    return Scored(*sides, np.zeros((rows, *sides[0].shape[1:])), paired)


def drawn(rng, n, depths, values, *, paired):
    """Return both sides' scores along depth and those of one control, whose noise is correlated with each other."""
    correlation = 0.5 if paired else 0.0
    root = np.linalg.cholesky(0.9 ** np.abs(np.subtract.outer(range(depths), range(depths))))
    noise = []
    for width in (depths, 1):
        q, p = rng.normal(size=(2, n, width)) @ (root.T if width > 1 else np.ones((1, 1)))
        noise.append((correlation * q + np.sqrt(1 - correlation**2) * p, q))
    own, control = noise
    own = [0.5 * c + np.sqrt(0.75) * o for o, c in zip(own, control, strict=True)]
    shifts = [np.sqrt(2) * norm.ppf(value) for value in values]
    wide = tuple(np.broadcast_to(side, (n, depths)) for side in (control[0] + shifts[1], control[1]))
    return [scored(sides, paired=paired) for sides in ((own[0] + shifts[0], own[1]), wide)]


@each("paired", [False, True])
@each("values, most", [((0.9, 0.8), 0.99), ((0.99, 0.95), 1.0)])
@unchecked()
def test_the_band_contains_the_true_differences_at_all_depths_at_once(values, most, paired):
    """Of 100 draws; the standard error is 2.2 %. Near 1 the band is wider than it had to be."""
    rng, covered = np.random.default_rng(2), []
    for _ in range(100):
        sides = drawn(rng, 128, 6, values, paired=paired)
        truth = values[0] - values[1]
        _, band = difference(*AUROC, *sides)
        covered.append(((band.low <= truth) & (truth <= band.high)).all())
    assert 0.9 <= np.mean(covered) <= most


@unchecked()
def test_the_band_of_paired_accuracies_is_not_too_narrow():
    rng, covered = np.random.default_rng(3), []
    for _ in range(200):
        sides = drawn(rng, 128, 6, (0.8, 0.7), paired=True)
        _, band = difference(*PAIRS, *sides)
        truth = norm.cdf(np.sqrt(2) * norm.ppf(0.8)) - norm.cdf(np.sqrt(2) * norm.ppf(0.7))  # s.d. of a difference: 1
        covered.append(((band.low <= truth) & (truth <= band.high)).all())
    assert np.mean(covered) >= 0.93


def test_the_common_error_of_both_scores_does_not_count():
    rng = np.random.default_rng(0)
    sides = rng.normal(size=(60, 4)) + 1, rng.normal(size=(60, 4))
    near = sides[0] + rng.normal(size=(60, 4)) / 50, sides[1]
    for found in difference(*AUROC, *(scored(one, paired=True) for one in (sides, near))):
        assert ((found.low < 0) & (found.high > 0)).all()
        assert (found.high - found.low < 0.1).all(), "independent scores would have a width of 0.2"


def test_two_perfect_scores_are_not_equal_for_sure():
    """Their AUROC is 1, so the estimated error is 0; the interval is that of both bounds."""
    sides = np.arange(20.0)[:, None] + 100, np.arange(20.0)[:, None]
    other = tuple(side[::-1] for side in sides)
    one, band = difference(*AUROC, *(scored(one, paired=False) for one in (sides, other)))
    assert one.value == 0
    np.testing.assert_allclose((one.low, one.high), ([-(1 - 0.025 ** (1 / 20))], [1 - 0.025 ** (1 / 20)]), rtol=1e-9)
    np.testing.assert_allclose(band.low, one.low, atol=1e-3)


def test_a_missing_score_gives_a_missing_difference():
    rng = np.random.default_rng(0)
    sides = rng.normal(size=(30, 2)) + 1, rng.normal(size=(30, 2))
    sides[0][:, 1] = np.nan
    controls = rng.normal(size=(30, 2)) + 1, rng.normal(size=(30, 2))
    for found in difference(*AUROC, *(scored(one, paired=False) for one in (sides, controls))):
        assert np.isfinite(found.low[0])
        assert np.isnan([found.value[1], found.low[1], found.high[1]]).all()
