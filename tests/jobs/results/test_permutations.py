"""The arrays of `permutations` agree with the groups that measure the same statistics, and with a refit of a draw."""

from itertools import product

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from support.analysing import analyse, context_of
from support.result_cases import CONTRASTS, contrast, draw, silent
from support.stored import store_run

from theodolite.groups.permutations.record import CLASSIFIERS, HELD_OUT, MEASURES, TESTED
from theodolite.groups.schema import BAND, NULL_AND_LIMIT
from theodolite.sites import HALF_BLOCKS, Site
from theodolite.store.result_reader import read_group
from theodolite_jobs.groups.permutations import controls as permutations_controls
from theodolite_jobs.results import permuted_labels
from theodolite_jobs.results.permuted_labels import permuted_contrast
from theodolite_jobs.statistics.folds import FOLDS
from theodolite_jobs.statistics.held_out import RIDGE
from theodolite_jobs.statistics.location import location
from theodolite_jobs.statistics.permutations import DRAWS
from theodolite_jobs.statistics.refits import Scored
from theodolite_jobs.statistics.scores import auroc as area
from theodolite_jobs.statistics.scores import auroc_terms

AUROC, PAIRS = (MEASURES.index(measure) for measure in ("auroc", "paired_accuracy"))
MEANS, VALUE = CLASSIFIERS.index("means"), BAND.index("value")


@pytest.fixture
def run(surveyed):
    return surveyed.run


def measured(group, name):
    mean, sd, z = (null_of(group, name, part) for part in ("mean", "sd", "z"))
    return mean + z * sd


def null_of(group, name, part):
    return group["tested_null"].sel(tested=name, null=part)


def interval(group, score):
    return group["score_auroc"].sel(scored_by=score, estimate=["value", "low", "high"])


def test_statistics_with_the_real_labels_are_those_of_the_other_groups(run):
    group, separation, curves = (read_group(run, name) for name in ("permutations", "separation", "curves"))
    for name, other in (("auroc", separation), ("accuracy", separation), ("difference_norm", curves)):
        tested = measured(group, name)
        stored = other[name].sel(space="raw") if name == "difference_norm" else other[name].sel(estimate="value")
        chosen = ["refusal", "unpaired", "subject", "still"]
        assert np.isfinite(tested.sel(contrast=chosen, position=-1)).all()
        both = np.isfinite(tested)
        np.testing.assert_allclose(tested.values[both], stored.values[both], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(group["n_used"], separation["n_used"])


def test_the_controls_are_the_areas_on_the_sphere_and_of_the_norms(run):
    """Both from samples that the test scales and scores itself; the norms may be larger in either set."""
    context, sites = context_of(run, CONTRASTS), run.record.spec.capture.sites
    for label in ("refusal", "unpaired"):
        permuted = permuted_contrast(context, label, -1)
        paired, n_p = permuted.paired, len(permuted.positive.samples)
        for number, layer in ((0, 0), (1, 2)):
            samples = permuted.samples(run, sites[number], layer)
            norms = np.sqrt((samples**2).sum(axis=1))
            scores = np.empty(len(samples))
            sphere, is_positive = samples / norms[:, None], np.arange(len(samples)) < n_p
            for index, fold in enumerate(permuted.folds):
                rest = permuted.folds != fold
                a, b = (sphere[rest & side].mean(axis=0) for side in (is_positive, ~is_positive))
                scores[index] = (sphere[index] - (a + b) / 2) @ (a - b) / np.linalg.norm(a - b)
            at = {"contrast": label, "position": -1, "site": str(sites[number])}
            group = read_group(run, "permutations").sel(at).isel(layer=layer)
            plain = area(norms[:n_p, None], norms[n_p:, None], paired=paired).value
            signed = norms if plain >= 0.5 else -norms
            for name, one in (("on_sphere", scores), ("norm", signed)):
                expected = area(one[:n_p, None], one[n_p:, None], paired=paired)
                np.testing.assert_allclose(interval(group, name), np.ravel(expected), rtol=1e-9, atol=1e-12)
                np.testing.assert_allclose(measured(group, f"{name}_auroc"), expected.value, rtol=1e-9)


@pytest.mark.parametrize("label", ["refusal", "unpaired"])
def test_ridge_regression_is_refitted_without_the_prompts_that_it_scores(run, label):
    """By scikit-learn, on the samples themselves and not on their Gram matrix."""
    context, site = context_of(run, CONTRASTS), run.record.spec.capture.sites[0]
    permuted = permuted_contrast(context, label, -1)
    samples, n_p = permuted.samples(run, site, 2), len(permuted.positive.samples)
    y, scores = np.where(np.arange(len(samples)) < n_p, 1.0, -1.0), np.empty(len(samples))
    for fold in range(FOLDS):
        rest = permuted.folds != fold
        x = samples[rest] - samples[rest].mean(axis=0)
        ridge = Ridge(alpha=RIDGE * (x**2).sum() / (len(x) - 1)).fit(samples[rest], y[rest])
        midpoint = sum(samples[rest & side].mean(axis=0) for side in (y > 0, y < 0)) / 2
        scores[~rest] = (samples[~rest] - midpoint) @ ridge.coef_
    group = read_group(run, "permutations").sel(contrast=label, position=-1, site=str(site)).isel(layer=2)
    expected = area(scores[:n_p, None], scores[n_p:, None], paired=permuted.paired)
    np.testing.assert_allclose(interval(group, "ridge"), np.ravel(expected), rtol=1e-9)
    np.testing.assert_allclose(measured(group, "ridge_auroc"), expected.value, rtol=1e-9)


def test_activations_are_compared_with_the_better_classifier_of_words_prompt_by_prompt(run, monkeypatch):
    rng = np.random.default_rng(4)
    tokens = {name: [rng.integers(0, 9, 30).tolist() for _ in range(13)] for name in ("bad", "good")}
    monkeypatch.setattr(permutations_controls, "read_tokens", lambda _run, name: tokens[name])
    for label in ("refusal", "unpaired"):
        permuted = permuted_contrast(context_of(run, CONTRASTS), label, -1)
        arrays, better = permutations_controls.of_tokens(run, permuted)
        values = arrays["tokens"][AUROC, :, VALUE].tolist()
        assert values[0] != values[1]
        assert arrays["tokens_is_ridge"][AUROC] == (values[1] > values[0])
        sides = better["auroc"].along((1,))
        assert area(sides.positive, sides.negative, paired=permuted.paired).value == max(values)
        scores = rng.normal(size=(len(permuted.folds), 2, 3))
        names = ["auroc", "ridge_auroc", "norm_auroc", *(["paired_accuracy"] if permuted.paired else [])]
        drawn = permuted.scored(scores[:, 0, 0])
        drawn = Scored(*permuted.sides(scores), np.zeros((len(drawn.refitted), 2, 3)), permuted.paired)
        found = permutations_controls.beyond(dict.fromkeys(names, drawn), better)
        own = area(*np.split(scores, [len(permuted.positive.samples)]), paired=permuted.paired).value
        words, length = (dict(zip(HELD_OUT, np.moveaxis(one, -2, 0), strict=True)) for one in np.moveaxis(found, -2, 0))
        np.testing.assert_allclose(words["ridge_auroc"][..., VALUE], own - max(values))
        _, low, _, band_low, _ = np.moveaxis(words["auroc"], -1, 0)
        assert (band_low <= low).all()
        assert (length["auroc"][..., VALUE] == 0).all(), "the same scores"
        assert np.isfinite(words["paired_accuracy"][..., VALUE]).all() == permuted.paired


@pytest.mark.parametrize("label", ["refusal", "unpaired"])
def test_the_depths_that_may_be_best_and_the_errors_are_those_of_refits_without_each_prompt(run, label):
    """Refitted from the samples themselves, one prompt or pair after the other."""
    permuted = permuted_contrast(context_of(run, CONTRASTS), label, -1)
    n_p, folds, paired = len(permuted.positive.samples), permuted.folds, permuted.paired
    is_positive = np.arange(len(folds)) < n_p
    rows = [[i, i + n_p] for i in range(n_p)] if paired else [[i] for i in range(len(folds))]
    group = read_group(run, "permutations").sel(contrast=label, position=-1)
    terms, values, depths = [], [], []
    for site, layer in product(run.record.spec.capture.sites, range(len(run.record.layers))):
        x = permuted.samples(run, site, layer)

        def scores_without(left_out, x=x):
            scores = np.empty(len(x))
            for fold in range(FOLDS):
                fitted = (folds != fold) & ~np.isin(np.arange(len(x)), left_out)
                a, b = (x[fitted & side].mean(axis=0) for side in (is_positive, ~is_positive))
                scores[folds == fold] = (x[folds == fold] - (a + b) / 2) @ (a - b) / np.linalg.norm(a - b)
            return scores[:n_p, None], scores[n_p:, None]

        sides = scores_without([])
        after = np.array([area(*scores_without(row), paired=paired).value[0] for row in rows])
        parts = np.split(after, [len(after)] if paired else [n_p])
        moved = np.concatenate([(part.mean() - part) * np.sqrt(1 - 1 / len(part)) for part in parts if len(part)])
        own = auroc_terms(*sides, paired=paired)[:, 0]
        at = group.sel(site=str(site)).isel(layer=layer)
        added = ((own + moved) ** 2).sum() - (own**2).sum()
        np.testing.assert_allclose(at["auroc_fit_error"], np.sqrt(max(added, 0)), rtol=1e-6, atol=1e-9)
        if site in HALF_BLOCKS:
            values.append(area(*sides, paired=paired).value[0])
            terms.append(own + moved)
            depths.append((str(site), layer))
    found = location(np.array(values), np.stack(terms, axis=1), min(n_p, len(folds) - n_p) - 1.0)
    stored = [group["location"].sel(held_out="auroc", site=site).isel(layer=layer) for site, layer in depths]
    np.testing.assert_array_equal(stored, found)


def test_sets_that_differ_in_length_alone_are_separated_by_the_norm_and_not_on_the_sphere(tmp_path):
    arrays = {"long": draw(40, shift=3), "short": draw(40, seed=1, shift=3)}
    for values in arrays["long"].values():
        values *= 3
    contrasts = {"length": contrast("long", "short")}
    run = store_run(tmp_path, arrays, shard_prompts=16, contrasts=contrasts)
    analyse(run, contrasts, None, silent, requested={"permutations"})
    group = read_group(run, "permutations").sel(contrast="length", position=-1)
    assert (group["score_auroc"].sel(scored_by="norm", estimate="value") > 0.95).all()
    assert (null_of(group, "norm_auroc", "p_family") <= 0.05).all()
    assert (null_of(group, "on_sphere_auroc", "p_family") > 0.05).all()


def test_pairs_are_ordered_only_in_paired_contrasts(run):
    p = null_of(read_group(run, "permutations"), "paired_accuracy", "p")
    assert np.isfinite(p.sel(contrast="refusal")).all()
    assert np.isnan(p.sel(contrast="unpaired")).all()


def test_a_set_against_itself_has_no_direction(run):
    group = read_group(run, "permutations").sel(contrast=["itself", "mirrored"])
    for name in ("auroc", "accuracy"):
        assert np.isnan(null_of(group, name, "p")).all()
    p = null_of(group, "difference_norm", "p")
    assert ((p == 1) | np.isnan(p)).all(), "the distance is 0, and of equal pairs it is 0 in every draw"


def test_a_position_that_one_set_lacks_is_missing(run):
    group = read_group(run, "permutations").sel(contrast="subject", position=-2)
    assert group["n_used"].values.tolist() == [0, 0]
    for name in TESTED:
        assert np.isnan(null_of(group, name, "p_family")).all()


def test_a_shift_between_the_sets_is_found_and_random_labels_are_not(tmp_path):
    arrays = {"bad": draw(40), "good": draw(40, seed=1), "far": draw(40, seed=2)}
    arrays["far"]["resid_mid"][:, :, 1] += 1
    contrasts = {"none": contrast("bad", "good", paired=True), "shifted": contrast("far", "good")}
    run = store_run(tmp_path, arrays, shard_prompts=16, contrasts=contrasts)
    analyse(run, contrasts, None, silent, requested={"permutations"})
    group = read_group(run, "permutations").sel(position=-1)
    for name in ("auroc", "accuracy", "difference_norm"):
        p = null_of(group, name, "p_family")
        assert float(p.sel(contrast="none").min()) > 0.05
        assert float(p.sel(contrast="shifted", site="resid_mid", layer=1)) == pytest.approx(1 / (DRAWS + 1))


def test_cosines_between_layers_are_those_of_the_permuted_directions(run):
    context = context_of(run, CONTRASTS)
    permuted = permuted_contrast(context, "refusal", -1)
    sites = run.record.spec.capture.sites
    one, other = (permuted.differences(run, sites[1], layer)[1:] for layer in (0, 2))
    cosines = np.vecdot(one, other) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    group = read_group(run, "permutations").sel(contrast="refusal", position=-1, site=str(sites[1]))
    null = group["direction_cosine_null"].isel(layer=0, layer_other=2)
    np.testing.assert_allclose(null.sel(null=["mean", "sd"]), [cosines.mean(), cosines.std(ddof=1)], rtol=1e-5)


def test_cosines_between_contrasts_without_a_common_set_are_compared_with_permuted_labels(tmp_path):
    rng, sites = np.random.default_rng(5), ("resid_pre", "resid_mid")
    arrays = {
        name: {site: rng.normal(size=(30, 2, 3, 64)).astype(np.float32) for site in sites}
        for name in ("bad", "good", "worse", "better")
    }
    for name in ("bad", "worse"):  # both contrasts differ along the first features
        arrays[name]["resid_mid"][:, :, 1, :5] += 0.8
    contrasts = {
        "refusal": contrast("bad", "good", paired=True),
        "other": contrast("worse", "better"),
        "mixed": contrast("bad", "better"),
    }
    run = store_run(tmp_path, arrays, shard_prompts=16, contrasts=contrasts)
    analyse(run, contrasts, None, silent, requested={"permutations"})
    cosines = read_group(run, "directions")["contrast_cosine"].sel(position=-1)
    null = read_group(run, "permutations")["contrast_cosine_null"].sel(position=-1)
    assert np.isnan(null.sel(contrast_other="mixed")).all()  # it shares a set with each of the others
    assert np.isnan(null.sel(contrast="mixed")).all()
    one, other = {"contrast": "refusal", "contrast_other": "other"}, {"contrast": "other", "contrast_other": "refusal"}
    np.testing.assert_array_equal(null.sel(one), null.sel(other))
    z = null.sel(one).sel(null="z")
    assert float(z.sel(site="resid_mid", layer=1)) > 3
    assert float(abs(z.sel(site="resid_pre")).max()) < 3
    assert float(abs(z.isel(layer=[0, 2])).max()) < 3
    assert np.isnan(null.sel(one).sel(null=["p", "p_family", "critical"])).all()
    # All 30 prompts of each set count, so the real labels give the cosine of the directions.
    context = context_of(run, contrasts)
    drawn = [permuted_contrast(context, name, -1).differences(run, Site.RESID_MID, 1) for name in ("refusal", "other")]
    unit = [differences / np.linalg.norm(differences, axis=1, keepdims=True) for differences in drawn]
    assert float(cosines.sel(one).sel(site="resid_mid", layer=1)) == pytest.approx(float(unit[0][0] @ unit[1][0]))
    permuted = (unit[0][1:] @ unit[1][1:].T)[~np.eye(DRAWS, dtype=bool)]
    found = null.sel(one).sel(site="resid_mid", layer=1, null=["mean", "sd"]).values
    np.testing.assert_allclose(found, [permuted.mean(), permuted.std(ddof=1)], rtol=1e-9)
    np.testing.assert_allclose(np.diagonal(cosines, axis1=0, axis2=1), 1.0, rtol=1e-12)


def test_only_the_first_prompts_take_part_in_pairs_without_quarantined_ones(run, monkeypatch):
    monkeypatch.setattr(permuted_labels, "SAMPLES", 7)
    permuted = permuted_contrast(context_of(run, CONTRASTS), "refusal", -1)
    assert list(permuted.positive.samples) == list(permuted.negative.samples) == [0, 1, 2, 3, 4, 6, 7]
    assert permuted.folds.tolist() == [0, 1, 2, 3, 4, 1, 2] * 2


def test_token_counts_are_the_control_for_words(run, monkeypatch):
    """Refitted prompt by prompt from explicit vectors of counts."""
    rng = np.random.default_rng(0)
    tokens = {name: [rng.integers(0, 9, size).tolist() for size in range(3, 16)] for name in ("bad", "good")}
    monkeypatch.setattr(permutations_controls, "read_tokens", lambda _run, name: tokens[name])
    for label in ("refusal", "unpaired"):
        permuted = permuted_contrast(context_of(run, CONTRASTS), label, -1)
        clouds, n_p = (permuted.positive, permuted.negative), len(permuted.positive.samples)
        prompts = [tokens[cloud.prompt_set][sample] for cloud in clouds for sample in cloud.samples]
        counts = np.array([[ids.count(token) for token in range(9)] for ids in prompts], dtype=float)
        scores, is_positive = np.empty(len(counts)), np.arange(len(counts)) < n_p
        for index, fold in enumerate(permuted.folds):
            rest = permuted.folds != fold
            a, b = (counts[rest & side].mean(axis=0) for side in (is_positive, ~is_positive))
            scores[index] = (counts[index] - (a + b) / 2) @ (a - b) / np.linalg.norm(a - b)
        found, _ = permutations_controls.of_tokens(run, permuted)
        expected = area(scores[:n_p, None], scores[n_p:, None], paired=permuted.paired)
        np.testing.assert_allclose(found["tokens"][AUROC, MEANS, :3], np.ravel(expected), rtol=1e-9)
        assert found["tokens_null"][AUROC, MEANS, NULL_AND_LIMIT.index("p")] > 0.05, "drawn alike"
        if permuted.paired:
            assert found["tokens"][PAIRS, MEANS, VALUE] == (scores[:n_p] > scores[n_p:]).mean()
        else:
            assert np.isnan(found["tokens"][PAIRS]).all()


def test_texts_from_a_template_are_tested_although_some_draws_have_equal_means(run, monkeypatch):
    """Half of the pairs exchanged in the other folds: their means are equal, and no direction orders a fold."""
    tokens = {name: [[0, word, 9 + pair] for pair in range(13)] for name, word in (("bad", 1), ("good", 2))}
    monkeypatch.setattr(permutations_controls, "read_tokens", lambda _run, name: tokens[name])
    permuted = permuted_contrast(context_of(run, CONTRASTS), "refusal", -1)
    found, _ = permutations_controls.of_tokens(run, permuted)
    assert (found["tokens"][..., VALUE] == 1).all()
    null = dict(zip(NULL_AND_LIMIT, np.moveaxis(found["tokens_null"], -1, 0), strict=True))
    assert (null["p"] <= 0.02).all()
    assert (abs(null["mean"] - 0.5) < 0.1).all()
    assert (null["sd"] > 0).all()


def test_equal_scores_of_token_counts_stay_equal_in_spite_of_rounding(run, monkeypatch):
    """Counts of few tokens tie often. The reference compares the two scores of a pair in integers."""
    rng = np.random.default_rng(8)
    tokens = {name: [rng.integers(0, 3, 5).tolist() for _ in range(13)] for name in ("bad", "good")}
    monkeypatch.setattr(permutations_controls, "read_tokens", lambda _run, name: tokens[name])
    permuted = permuted_contrast(context_of(run, CONTRASTS), "refusal", -1)
    counts = {
        side: np.array([[tokens[cloud.prompt_set][sample].count(one) for one in range(3)] for sample in cloud.samples])
        for side, cloud in (("p", permuted.positive), ("n", permuted.negative))
    }
    folds = permuted.folds[: len(counts["p"])]
    wins = []
    for index, fold in enumerate(folds):
        direction = (counts["p"] - counts["n"])[folds != fold].sum(axis=0)
        wins.append(np.sign(direction @ (counts["p"] - counts["n"])[index]))
    assert 0 in wins
    found, _ = permutations_controls.of_tokens(run, permuted)
    assert found["tokens"][PAIRS, MEANS, VALUE] == pytest.approx((1 + np.mean(wins)) / 2, abs=1e-12)


def test_sets_of_equal_token_counts_have_no_direction(run):
    """The stored tokens of the test's sets are equal."""
    group = read_group(run, "permutations").sel(contrast="refusal", position=-1)
    for name in ("tokens", "tokens_is_ridge", "tokens_null"):
        assert np.isnan(group[name].sel(measure="auroc")).all()
    assert np.isnan(group["beyond"].sel(held_out="auroc", control="words")).all()
