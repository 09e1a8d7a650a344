"""Held-out scores and their errors after refits: against fits without the samples left out, and by coverage."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from support.each import each

from theodolite_jobs.statistics import permutations
from theodolite_jobs.statistics import scores as separation_scores
from theodolite_jobs.statistics.folds import FOLDS
from theodolite_jobs.statistics.held_out import RIDGE, held_out_ridge_scores, held_out_scores
from theodolite_jobs.statistics.location import location
from theodolite_jobs.statistics.refits import Scored, refitted, stacked


def samples(n_p, n_q, d=7, seed=0):
    x = np.random.default_rng(seed).normal(size=(n_p + n_q, d))
    x[:n_p] += 0.5
    folds = np.concatenate([np.arange(n_p), np.arange(n_q)]) % FOLDS
    return x - x.mean(axis=0), np.arange(n_p + n_q) < n_p, folds


def refit(x, labels, folds, left_out, *, ridge):
    """Return the scores of all samples along directions that are fitted without those left out."""
    scores = np.empty(len(x))
    for fold in range(FOLDS):
        fitted = (folds != fold) & ~left_out
        a, b = (x[fitted & side].mean(axis=0) for side in (labels, ~labels))
        u = (a - b) / np.linalg.norm(a - b)
        if ridge:
            rest = x[folds != fold]
            alpha = RIDGE * ((rest - rest.mean(axis=0)) ** 2).sum() / (len(rest) - 1)
            u = Ridge(alpha=alpha).fit(x[fitted], np.where(labels, 1.0, -1.0)[fitted]).coef_
        scores[folds == fold] = (x[folds == fold] - (a + b) / 2) @ u
    return scores


@each("ridge", [False, True])
@each("paired", [False, True])
def test_scores_after_each_refit_are_those_of_fits_without_a_prompt_or_pair(paired, ridge):
    n_p, n_q = (13, 13) if paired else (12, 17)
    x, labels, folds = samples(n_p, n_q)
    scores = held_out_ridge_scores if ridge else held_out_scores
    found = refitted(scores, x @ x.T, labels, folds, paired=paired)
    assert found.shape == (13 if paired else 29, len(x))
    for row, one in enumerate(found):
        left_out = np.zeros(len(x), dtype=bool)
        left_out[[row, row + n_p] if paired else row] = True
        np.testing.assert_allclose(one, refit(x, labels, folds, left_out, ridge=ridge), rtol=1e-8, atol=1e-11)


def test_without_fitted_directions_the_error_is_that_of_the_scores():
    rng = np.random.default_rng(0)
    sides = rng.normal(size=(12, 3)) + 1, rng.normal(size=(9, 3))
    own = separation_scores.auroc_terms(*sides, paired=False)
    terms = Scored(*sides, np.zeros((21, 3)), paired=False).terms(separation_scores.auroc_terms)
    np.testing.assert_allclose(terms.T @ terms, own.T @ own)


@each("ridge", [False, True])
@each("paired", [False, True])
def test_the_error_is_that_of_leaving_prompts_out_of_scores_and_fits(paired, ridge):
    """The terms add both parts; the jackknife leaves a prompt out of both at once, which is the same to first order."""
    n = 40
    x, labels, folds = samples(n, n, d=5, seed=4)
    scores = held_out_ridge_scores if ridge else held_out_scores
    gram = x @ x.T
    after = refitted(scores, gram, labels, folds, paired=paired)
    areas = permutations.auroc(after, np.broadcast_to(labels, after.shape))
    sides = np.split(scores(gram, labels[None], folds)[0][:, None], 2)
    terms = Scored(*sides, areas[:, None], paired).terms(separation_scores.auroc_terms)[:, 0]
    left_out = []
    for row in range(len(after)):
        kept = np.ones(2 * n, dtype=bool)
        kept[[row, row + n] if paired else row] = False
        left_out.append(permutations.auroc(after[row : row + 1, kept], labels[None, kept])[0])
    blocks = np.split(np.array(left_out), 1 if paired else 2)
    expected = np.concatenate([np.sqrt((n - 1) / n) * (block.mean() - block) for block in blocks])
    assert np.corrcoef(terms, expected)[0, 1] > 0.98
    assert np.linalg.norm(terms) == pytest.approx(np.linalg.norm(expected), rel=0.05)


@pytest.mark.nightly
@pytest.mark.parametrize(("scores", "least"), [(held_out_scores, 1.0), (held_out_ridge_scores, 0.9)])
def test_the_depths_that_may_be_best_contain_the_best_one_if_directions_are_fitted(scores, least):
    """All depths are equally good, which is the least favourable case; the error of the scores alone is too small."""
    rng, n, depths = np.random.default_rng(3), 48, 6
    labels, folds = np.arange(2 * n) < n, np.tile(np.arange(n) % FOLDS, 2)
    scale = np.arange(1, 65) ** -0.5
    covered, alone = [], []
    for _ in range(40):
        x = rng.normal(size=(depths, 2 * n, 64)) * scale
        x[:, :n] += 0.3 * rng.normal(size=64) * scale
        places = []
        for one in x - x.mean(axis=1, keepdims=True):
            gram = one @ one.T
            after = refitted(scores, gram, labels, folds, paired=False)
            areas = permutations.auroc(after, np.broadcast_to(labels, after.shape))
            places.append(Scored(*np.split(scores(gram, labels[None], folds)[0], 2), areas, paired=False))
        all_depths = stacked(places, (depths,))
        sides = all_depths.positive, all_depths.negative
        value = separation_scores.auroc(*sides, paired=False).value
        covered.append(location(value, all_depths.terms(separation_scores.auroc_terms), n - 1.0).mean())
        alone.append(location(value, separation_scores.auroc_terms(*sides, paired=False), n - 1.0).mean())
    assert np.mean(covered) >= 0.95
    assert np.mean(alone) < least


def test_an_unknown_refit_gives_an_unknown_error():
    """Without a prompt, a set has no other prompt in the other folds."""
    sides = np.arange(2.0)[:, None] + 5, np.arange(2.0)[:, None]
    scored = Scored(*sides, np.full((4, 1), np.nan), paired=False)
    assert np.isnan(scored.fit_error(separation_scores.auroc_terms)).all()
