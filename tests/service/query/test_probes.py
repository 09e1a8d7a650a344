"""Probes with labels of one's own are those of the formulas on the stored activations; wrong input is named."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.analysed_runs import analysed
from support.each import each

import theodolite
from theodolite.errors import SpecError
from theodolite.query.probes import read_probe
from theodolite_jobs.groups.probes.formulas_classes import fit_classes

SETS = {"bad": 26, "good": 26, "neutral": 24}
CONTRASTS = {
    "refusal": {"positive": "bad", "negative": "good", "paired": True},
    "tone": {"positive": "neutral", "negative": "good", "paired": False},
}
PLACE = {"site": "resid_mid", "layer": 1, "position": -1}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose sets differ in one feature each."""
    arrays = {}
    for row, (name, n) in enumerate(SETS.items()):
        rng = np.random.default_rng(row)
        arrays[name] = {site: rng.normal(size=(n, 2, 3, 16)).astype(np.float32) for site in ("resid_pre", "resid_mid")}
        for values in arrays[name].values():
            values[..., row] += 1.5
            values[..., 9] += 50  # a feature that is large in all
    for values in arrays["bad"].values():
        values[3] = np.nan
    stored = analysed(tmp_path_factory.mktemp("run"), arrays, CONTRASTS, quarantined={"bad": {3: "not finite"}})
    return theodolite.open_run(stored.store, stored.id)


def activations(run, name):
    found = run.activations(name, "resid_mid", layer=1, position=-1)
    usable = (found["status"] == "ok").values
    return found.values[usable].astype(np.float64), np.flatnonzero(usable)


def test_a_contrast_leaves_out_the_partners_of_quarantined_prompts_and_has_paired_intervals(run):
    probe = run.probe("refusal", kind="lda", **PLACE, permutations=19)
    kept = np.delete(np.arange(26), 3)
    sides = [run.activations(one, "resid_mid", layer=1, position=-1) for one in ("good", "bad")]
    x = np.concatenate([one.values[kept] for one in sides])
    labels, folds = np.repeat([0, 1], 25), np.tile(kept % 5, 2)
    expected = fit_classes(x.astype(np.float64), labels, folds, kind="lda", paired=True, draws=19)
    assert probe.scores["sample"].tolist() == [*kept, *kept]
    assert set(probe.scores.columns) == {"set", "sample", "label", "predicted", "score negative", "score positive"}
    np.testing.assert_array_equal(probe.scores["score positive"], expected.scores[1])
    np.testing.assert_array_equal(probe.auroc.loc["positive"], [*expected.auroc[1], expected.null[1, 3]])
    np.testing.assert_array_equal(probe.accuracy, [*expected.accuracy, expected.null[-1, 3]])
    assert probe.place == PLACE
    assert probe.direction @ expected.vectors[1] > 0
    assert np.linalg.norm(probe.direction) == pytest.approx(1)
    fit = probe.fit.loc["positive"]
    projected = x.astype(np.float64) @ probe.direction
    np.testing.assert_allclose(fit["length"] * projected - fit["offset"], x @ expected.vectors[1] - expected.offsets[1])
    assert fit["gap"] == pytest.approx(projected[25:].mean() - projected[:25].mean())


def test_labels_are_sets_arrays_or_columns(run):
    sets = run.probe(set=[*SETS], kind="lda", classes="multinomial", layer=1, site="resid_mid")
    assert list(sets.auroc.index) == sorted(SETS)
    assert sets.accuracy["value"] > 0.5
    assert set(sets.scores["predicted"]) <= set(SETS)
    assert sets.directions.dims == ("class", "d_model")
    with pytest.raises(SpecError, match="more than two classes"):
        _ = sets.direction
    x, _ = activations(run, "good")
    own = x[:, 5] > np.median(x[:, 5])
    found = [run.probe(set="good", labels=given, kind="mean_difference", **PLACE) for given in (own, pd.Series(own))]
    difference = x[own].mean(axis=0) - x[~own].mean(axis=0)
    for probe in found:
        np.testing.assert_allclose(probe.direction, difference / np.linalg.norm(difference))
        assert probe.auroc.loc[True, "value"] > 0.7
        assert np.isnan(probe.fit["penalty"]).all()


def test_pairs_of_a_class_share_a_fold(tmp_path):
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(53, 1, 1, 16))
    arrays = {
        name: {"resid_pre": (shared + 0.01 * rng.normal(size=shared.shape) + shift).astype(np.float32)}
        for name, shift in (("bad", 1), ("good", 0))
    }
    stored = analysed(tmp_path, arrays, {"refusal": CONTRASTS["refusal"]})
    labels = rng.permutation(53) % 2  # which say nothing about the activations
    probe = theodolite.open_run(stored.store, stored.id).probe(
        set=["bad", "good"], labels=[*labels, *labels], kind="lda", layer=0
    )
    assert probe.auroc.loc[1, "low"] < 0.5


def test_a_prompt_that_is_too_short_for_the_position_is_left_out(run):
    with pytest.raises(SpecError, match="set: no prompt has usable activations at this position"):
        run.probe("tone", layer=1, position=-2)  # each prompt has one token


def test_a_layer_without_the_site_is_named(run):
    partial_sites = {"resid_mid": {"layers": [0], "reason": "the others have no attention"}}
    stored = run._run
    record = stored.record.model_validate({**stored.record.model_dump(), "partial_sites": partial_sites})
    place = {**PLACE, "kind": "lda", "classes": "one_against_rest", "permutations": 0}
    with pytest.raises(SpecError, match="layer: given 1, which has no resid_mid: the others have no attention"):
        read_probe(replace(stored, record=record), "tone", [], None, **place, winsorise=None, orthogonal_to=None)


def test_directions_are_winsorised_and_orthogonal(run):
    (bad, _), (good, _) = (activations(run, name) for name in ("bad", "good"))
    good = np.delete(good, 3, axis=0)
    given = {"contrast": "refusal", "kind": "mean_difference", **PLACE}

    def limited(x):
        limits = np.quantile(np.abs(x), 0.9, axis=1, keepdims=True)
        return np.clip(x, -limits, limits)

    difference = limited(bad).mean(axis=0) - limited(good).mean(axis=0)
    winsorised = run.probe(**given, winsorise=0.9).direction
    np.testing.assert_allclose(winsorised, difference / np.linalg.norm(difference))
    for other, vector in {
        "negative": good.mean(axis=0),
        "tone": run.direction("tone", "resid_mid", 1, -1),
        "vectors": np.eye(16)[[0, 9]],
    }.items():
        probe = run.probe(**given, orthogonal_to=vector if other == "vectors" else other)
        found = probe.direction
        assert np.isfinite(probe.auroc["value"]).all() == np.isfinite(probe.accuracy["value"]) == (other == "vectors")
        basis = np.linalg.qr(np.atleast_2d(vector).T)[0]
        difference = bad.mean(axis=0) - good.mean(axis=0)
        rest = difference - basis @ (basis.T @ difference)
        np.testing.assert_allclose(found, rest / np.linalg.norm(rest), atol=1e-10)


def test_a_direction_becomes_a_file_of_a_vector(run, tmp_path):
    probe = run.probe("refusal", **PLACE, kind="lda")
    vector = probe.fit.loc["positive", "gap"] * probe.direction
    place = {"layer": 1, "site": "resid_mid"}
    path = theodolite.export_vector(vector, run, operation="add", **place, output=tmp_path / "v.safetensors")
    np.testing.assert_allclose(theodolite.load_vector(path).vectors[1], vector, rtol=1e-6)


@each(
    "given, reason",
    [
        ({"contrast": "nobody"}, "contrast: there is no 'nobody'; allowed: refusal, tone"),
        ({"set": "nobody"}, "set: there is no 'nobody'; allowed: bad, good, neutral"),
        ({}, "set: neither a contrast nor a set"),
        ({"contrast": "tone", "set": "good"}, "contrast: given with set or labels"),
        ({"contrast": "tone", "kind": "svm"}, "kind: given 'svm'; allowed: logistic"),
        ({"contrast": "tone", "classes": "all"}, "classes: given 'all'"),
        ({"contrast": "tone", "kind": "mean_difference", "classes": "multinomial"}, "allowed: one_against_rest"),
        ({"contrast": "tone", "layer": 9}, "layer: there is no 9"),
        ({"contrast": "tone", "site": "mlp_out"}, "site: there is no 'mlp_out'"),
        ({"contrast": "tone", "position": -7}, "position: there is no -7"),
        ({"contrast": "tone", "permutations": -1}, "permutations: given -1"),
        ({"contrast": "tone", "winsorise": 0}, "winsorise: given 0"),
        ({"contrast": "tone", "orthogonal_to": np.ones(3)}, r"orthogonal_to: given the shape \(3,\); allowed: .* 16"),
        ({"contrast": "tone", "orthogonal_to": "nobody"}, "contrast: .* has no 'nobody'"),
        ({"contrast": "tone", "orthogonal_to": [[1.0], [2.0, 3.0]]}, "orthogonal_to: no array of numbers"),
        ({"set": "good"}, "labels: all prompts have the label 'good'; a probe needs two classes"),
        ({"set": "good", "labels": [1, 0]}, "labels: 2 given for 26 stored prompts"),
        ({"set": "good", "labels": ["a", None] * 13}, "labels: 13 are missing, the first that of prompt 1"),
        ({"set": "good", "labels": [0.0, np.nan] * 13}, "labels: 13 are missing"),
        (
            {"set": "good", "labels": ["a"] * 20 + ["b"] * 6},
            "the class 'b' has 6 usable prompts; each needs",
        ),
        ({"set": "good", "labels": "topic"}, "labels: prompts have no column 'topic'; allowed: sample, text"),
    ],
)
def test_wrong_input_is_named_in_one_line(run, given, reason):
    with pytest.raises(SpecError, match=reason) as caught:
        run.probe(**{"layer": 1, **given})
    assert "\n" not in str(caught.value)
