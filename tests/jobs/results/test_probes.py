"""The arrays of `probes` are those of fits of the samples themselves, by scikit-learn, without their Gram matrix."""

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import LogisticRegression
from support.analysing import context_of
from support.each import each
from support.result_cases import CONTRASTS, store

from theodolite.groups import GROUPS
from theodolite.groups.probes.record import PROBES
from theodolite.spec_options import ProbesSpec
from theodolite.store.result_reader import read_finished_table, read_group
from theodolite_jobs.analysis import compute_groups
from theodolite_jobs.groups.probes.formulas import RIDGES, chosen_ridges, held_out_logistic_scores
from theodolite_jobs.results.permuted_labels import permuted_contrast
from theodolite_jobs.statistics import scores
from theodolite_jobs.statistics.folds import FOLDS

DRAWS = 19
CHOSEN = {name: CONTRASTS[name] for name in ("refusal", "unpaired", "lonely")}


ANALYSES = ("separation", "probes")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    stored = store(tmp_path_factory.mktemp("run"), ["resid_pre"], sets=["bad", "good", "one"], contrasts=CHOSEN).run
    context = context_of(stored, CHOSEN, probes=ProbesSpec(draws=DRAWS))
    _, failed = compute_groups(context, [name for name, one in GROUPS.items() if one.always or name in ANALYSES])
    assert not failed
    return stored


def fitted_logistic(x, labels, folds):
    """Return w and the offset of logistic regression, with the ridge that its own folds choose."""
    unit, losses = ((x - x.mean(axis=0)) ** 2).sum() / (len(x) - 1), []
    for ridge in RIDGES:
        total = 0.0
        for fold in np.unique(folds):
            rest, own = folds != fold, folds == fold
            inner = ((x[rest] - x[rest].mean(axis=0)) ** 2).sum() / (rest.sum() - 1)
            odds = _model(x[rest], labels[rest], ridge * inner).decision_function(x[own])
            total += np.logaddexp(0, np.where(labels[own], -odds, odds)).sum()
        losses.append(total)
    ridge = RIDGES[int(np.argmin(losses))]
    model = _model(x, labels, ridge * unit)
    return model.coef_[0], np.log(labels.sum() / (~labels).sum()) - model.intercept_[0], ridge


def _model(x, labels, penalty):
    return LogisticRegression(C=1 / penalty, tol=1e-12, max_iter=1000, solver="newton-cholesky").fit(x, labels)


def fitted_lda(x, labels, _folds):
    """Return w and the offset of linear discriminants, with the shrinkage of Ledoit and Wolf."""
    a, b = x[labels].mean(axis=0), x[~labels].mean(axis=0)
    covariance, gamma = ledoit_wolf(np.where(labels[:, None], x - a, x - b), assume_centered=True)
    w = np.linalg.solve(covariance, a - b)
    return w, w @ (a + b) / 2, gamma


def fitted_means(x, labels, _folds):
    a, b = x[labels].mean(axis=0), x[~labels].mean(axis=0)
    u = (a - b) / np.linalg.norm(a - b)
    return u, u @ (a + b) / 2, np.nan


FITS = dict(zip(PROBES, (fitted_means, fitted_lda, fitted_logistic), strict=True))


@each("label", ["refusal", "unpaired"])
@each("probe", PROBES)
def test_probes_are_those_of_the_samples(run, label, probe):
    permuted = permuted_contrast(context_of(run, CHOSEN), label, -1)
    site, folds, fit = run.record.spec.capture.sites[0], permuted.folds, FITS[probe]
    x, n_p = permuted.samples(run, site, 2), len(permuted.positive.samples)
    held_out = np.empty((2, len(x)))
    for row, labels in enumerate(permuted.labels[:2]):  # the real ones, and a draw
        for fold in range(FOLDS):
            rest = folds != fold
            w, offset, _ = fit(x[rest], labels[rest], folds[rest])
            held_out[row, ~rest] = x[~rest] @ w - offset
    group = read_group(run, "probes").sel(contrast=label, position=-1, site=str(site), probe=probe).isel(layer=2)
    for measure in ("auroc", "accuracy", "paired_accuracy"):
        sides = held_out[0, :n_p, None], held_out[0, n_p:, None]
        expected = getattr(scores, measure)(*sides, paired=permuted.paired)
        found = group["probe_performance"].sel(measure=measure, estimate=["value", "low", "high"])
        np.testing.assert_allclose(found, np.ravel(expected), rtol=1e-9)
    w, offset, penalty = fit(x, permuted.labels[0], folds)
    length = np.linalg.norm(w)
    np.testing.assert_allclose(group["probe_direction"], w / length, rtol=1e-4, atol=1e-6)
    means = fitted_means(x, permuted.labels[0], folds)[0]
    cosine = w @ means / length
    np.testing.assert_allclose(group["probe_fit"], [cosine, penalty, length, offset], rtol=1e-4, atol=1e-6)


def test_the_null_has_so_many_draws_and_chooses_ridges_anew_in_each(run):
    permuted = permuted_contrast(context_of(run, CHOSEN), "refusal", -1)
    x, labels, folds = (
        permuted.read(run, run.record.spec.capture.sites[0], 1),
        permuted.labels[: 1 + DRAWS],
        permuted.folds,
    )
    drawn = held_out_logistic_scores(x @ x.T, labels, folds, ridges=chosen_ridges(x @ x.T, labels, folds))
    areas = [(row[of][:, None] > row[~of]).mean() for row, of in zip(drawn, labels, strict=True)]
    null = read_group(run, "probes")["probe_null"].sel(
        contrast="refusal", position=-1, probe="logistic", tested="auroc"
    )
    mean, sd = np.mean(areas[1:]), np.std(areas[1:], ddof=1)
    expected = [mean, sd, (areas[0] - mean) / sd, np.mean(np.array(areas) >= areas[0] - 1e-9)]
    found = null.isel(site=0, layer=1).sel(null=["mean", "sd", "z", "p"])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_difference_of_means_is_that_of_separation_and_the_differences_are_those_of_the_aurocs(run):
    probes, separation = read_group(run, "probes"), read_group(run, "separation")
    measures = probes["probe_performance"].sel(contrast=["refusal", "unpaired"])
    means = measures.sel(probe="mean_difference")
    for measure in ("auroc", "accuracy", "paired_accuracy"):
        expected = separation[measure].sel(contrast=means["contrast"].values)
        np.testing.assert_allclose(means.sel(measure=measure), expected, rtol=1e-9)
    values = measures.sel(estimate="value")
    expected = values.sel(measure="auroc") - means.sel(measure="auroc", estimate="value")
    beyond = values.sel(measure="auroc_beyond_means", probe=["lda", "logistic"])
    np.testing.assert_allclose(beyond, expected.sel(probe=["lda", "logistic"]), atol=1e-12)
    assert np.isnan(measures.sel(probe="mean_difference", measure="auroc_beyond_means")).all()
    low, high = (measures.sel(measure="auroc_beyond_means", estimate=end) for end in ("band_low", "band_high"))
    both = np.isfinite(low)
    assert both.any()
    assert (low <= high).where(both, True).all()


def test_sets_without_a_prompt_in_each_fold_have_no_probe(run):
    group = read_group(run, "probes")
    lonely = group.sel(contrast="lonely")
    for name in ("probe_performance", "probe_null", "probe_fit", "probe_direction"):
        assert np.isnan(lonely[name]).all()
    assert group["n_used"].sel(contrast="lonely", position=-1).values.tolist() == [1, 13]
    table = read_finished_table(run, "probes")
    assert set(table["statistic"]) == {"n_used", "probe_performance", "probe_null", "probe_fit"}
