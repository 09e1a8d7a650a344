"""The AUROC of a run minus that of another one, against the difference from the scores, prompt by prompt."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from support.analysed_runs import silent
from support.analysing import analyse
from support.finished_runs import model_facts
from support.stored import store_run

from theodolite.bands import half_of_difference, simultaneous_quantile
from theodolite.drawing.comparison import scores_figure
from theodolite.query.auroc_difference import auroc_difference
from theodolite.query.compare import Question, compared_scores, comparison, difference
from theodolite.query.curves import along_depth
from theodolite.query.prompts import read_contrast_prompts
from theodolite.query.twin import read_twin
from theodolite.store.cache import Cache
from theodolite.store.prompts import read_prompts
from theodolite.store.result_reader import read_finished_table, read_group
from theodolite.store.result_writer import remove_groups
from theodolite.store.runs import open_run
from theodolite_jobs.statistics.refits import Scored
from theodolite_jobs.statistics.scores import auroc, auroc_terms

N = 60
SITES = ("resid_pre", "resid_mid")


def samples(shifts, seed=0, noise=1.0):
    """Return both sets, (prompt, position, layer, d_model), whose own parts are those of the seed 0 in each run."""
    common, own = (np.random.default_rng(one).normal(size=(2, N, len(SITES), 3, 8)) for one in (0, 100 + seed))
    both = common + noise * own
    both[0, ..., 0] += np.asarray(shifts)
    return {
        name: {site: values[:, None, index] for index, site in enumerate(SITES)}
        for name, values in zip(("harmful", "harmless"), both, strict=True)
    }


def survey(folder, arrays, run_id, *, paired, quarantined=None, positions=None, **facts):
    contrasts = {"refusal": {"positive": "harmful", "negative": "harmless", "paired": paired}}
    model = model_facts().model_copy(update={"n_layers": 3, **facts})
    record = {"contrasts": contrasts, "run_id": run_id, "model": model, "positions": positions}
    run = store_run(folder, arrays, shard_prompts=16, quarantined=quarantined, **record)
    analyse(run, contrasts, None, silent, requested={"separation", "permutations"})
    return run


TWIN = {"name": "tiny (random weights)", "weights": "random", "seed": 0}


def twin_of(folder, shifts, **options):
    return survey(folder, samples(shifts, seed=1), "tiny-random-weights-0", **options, **TWIN)


def pair_of(folder, shifts, twin_shifts, *, paired):
    run = survey(folder, samples(shifts), "tiny-0", paired=paired)
    twin = twin_of(folder, twin_shifts, paired=paired)
    return run, twin, auroc_difference(run, twin, "refusal").sel(position=-1)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Two runs of unpaired and two of paired sets, each with the difference, by whether they are paired."""
    return {one: pair_of(tmp_path_factory.mktemp("pairs"), 2.0, 0.8, paired=one) for one in (False, True)}


def scored(run, *, paired):
    table = read_finished_table(run, "prompt_scores").astype({"site": str, "side": str})
    sides = [
        table[table["side"] == side].pivot(index="sample", columns=["site", "layer"], values="score")
        for side in ("positive", "negative")
    ]
    arrays = [side.to_numpy() for side in sides]
    rows = N if paired else 2 * N
    return Scored(*arrays, np.zeros((rows, arrays[0].shape[1])), paired), list(sides[0].columns)


@pytest.mark.parametrize("paired", [False, True], ids=["unpaired", "paired"])
def test_the_difference_and_its_band_are_those_of_the_scores_of_each_prompt(pairs, paired):
    run, twin, found = pairs[paired]
    own, places = scored(run, paired=paired)
    sides = own, scored(twin, paired=paired)[0]
    terms = [auroc_terms(one.positive, one.negative, paired=paired) for one in sides]
    quantile = simultaneous_quantile(terms[0] - terms[1])
    stored = [read_group(one, "permutations").sel(contrast="refusal", position=-1) for one in (run, twin)]
    fits = [
        np.array([float(one["auroc_fit_error"].sel(site=site, layer=layer)) for site, layer in places])
        for one in stored
    ]
    assert all((of_run >= 0).all() and (of_run > 0).any() for of_run in fits)
    one, control = (
        auroc(side.positive, side.negative, paired=paired, quantile=quantile).widened(quantile * error)
        for side, error in zip(sides, fits, strict=True)
    )
    errors = [np.hypot(np.linalg.norm(of, axis=0), error) for of, error in zip(terms, fits, strict=True)]
    correlation = (terms[0] * terms[1]).sum(axis=0) / (errors[0] * errors[1])
    value = one.value - control.value
    low = value - half_of_difference(one.value - one.low, control.high - control.value, correlation)
    high = value + half_of_difference(one.high - one.value, control.value - control.low, correlation)
    for column, (site, layer) in enumerate(places):
        here = found.sel(site=site, layer=layer)
        for end, expected in {"value": value, "band_low": low, "band_high": np.minimum(high, 1)}.items():
            np.testing.assert_allclose(here.sel(estimate=end), expected[column], atol=1e-9)


def test_a_trained_difference_is_found_at_its_depths_alone(tmp_path):
    shifts = np.array([[0.5, 0.5, 3.0], [0.5, 3.0, 3.0]])  # (site, layer)
    run, _, found = pair_of(tmp_path, shifts, 0.5, paired=False)
    np.testing.assert_array_equal(found.sel(estimate="band_low") > 0, shifts > 1)
    stored = read_twin(run, "separation")["refusal"]["separation"]["auroc_beyond_twin"].sel(position=-1)
    np.testing.assert_array_equal(stored.sel(estimate="value"), found.sel(estimate="value"))


def test_prompts_that_one_run_lacks_are_left_out_of_the_correlation(pairs, tmp_path):
    run, *_ = pairs[True]
    found = auroc_difference(
        run, twin_of(tmp_path, 0.8, paired=True, quarantined={"harmful": {3: "not finite"}}), "refusal"
    )
    found = found.sel(position=-1)
    assert np.isfinite(found.sel(estimate="band_low")).all()


def test_without_permutation_tests_there_is_no_band(pairs, tmp_path):
    run, twin, _ = pairs[False]
    shutil.copytree(twin.store, tmp_path / "copy")
    twin = open_run(str(tmp_path / "copy"), twin.id)
    remove_groups(twin, ["permutations"])
    found = auroc_difference(run, twin, "refusal").sel(position=-1)
    assert np.isfinite(found.sel(estimate="value")).all()
    assert np.isnan(found.sel(estimate="band_low")).all()


def test_a_service_computes_a_difference_once(pairs, monkeypatch):
    run, twin, found = pairs[False]
    served = replace(run, cache=Cache(10**8))
    calls = []
    monkeypatch.setattr("theodolite.query.auroc_difference._difference", lambda *of: calls.append(of) or found)
    for _ in range(2):
        assert auroc_difference(served, twin, "refusal") is found
    assert len(calls) == 1
    auroc_difference(served, run, "refusal")
    auroc_difference(served, twin, "subject")
    assert len(calls) == 3


def test_a_comparison_of_two_runs_on_the_same_prompts_has_their_difference(pairs, monkeypatch):
    run, twin, found = pairs[True]
    frame = difference([run, twin], Question())
    assert frame["depth"].tolist() == [0, 1, 2, 3, 4, 5]
    assert frame["relative_depth"].tolist() == pytest.approx([one / 6 for one in range(6)])
    for column, end in {"value": "value", "low": "band_low", "high": "band_high"}.items():
        np.testing.assert_array_equal(frame[column], along_depth(found, end))
    turned = difference([twin, run], Question(contrast="refusal", site="resid_mid"))
    np.testing.assert_allclose(turned["value"], -frame["value"][1::2])
    np.testing.assert_allclose(turned["low"], -frame["high"][1::2], atol=1e-12)
    assert difference([run], Question()) is None
    assert difference([run, twin], Question("cosine_of_means_debiased")) is None
    assert difference([run, pairs[False][1]], Question()) is None, "only one of them is paired"

    def other_texts(of_run, name):
        return read_prompts(of_run, name).assign(text=lambda rows: rows["text"] + of_run.id)

    monkeypatch.setattr("theodolite.query.compare.read_prompts", other_texts)
    assert difference([run, twin], Question()) is None


def test_the_last_token_is_the_same_in_a_run_with_named_positions(pairs):
    run, _, found = pairs[True]
    arrays = samples(0.8, seed=1)
    named = survey(
        run.store,
        {**arrays, "third": arrays["harmful"]},
        "named-0",
        paired=True,
        positions={"third": [{"name": "asked"}]},
        **TWIN,
    )
    assert named.record.sets["harmful"].positions == ["-1"]
    for runs in ([run, named], [named, run]):
        frame = difference(runs, Question(position="-1"))
        sign = 1 if runs[0] is run else -1
        np.testing.assert_allclose(frame["value"], sign * along_depth(found, "value"))
        assert np.isfinite(frame[["low", "high"]]).all(axis=None)


def test_each_prompt_is_scored_in_both_runs_where_it_separates_best(pairs):
    run, twin, _ = pairs[True]
    question = Question(contrast="refusal")
    scores = compared_scores([run, twin], question)
    rows_of = scores.rows
    assert len(rows_of) == 2 * N
    assert all(place.startswith("layer ") and place.endswith("position -1") for place in scores.places)
    for column, one in (("first", run), ("second", twin)):
        rows = read_contrast_prompts(one, "refusal").rows.set_index(["side", "sample"])["score"]
        expected = rows.loc[list(zip(rows_of["side"], rows_of["sample"], strict=True))]
        np.testing.assert_array_equal(rows_of[column], expected)
    figure = scores_figure(scores, comparison([run, twin], question))
    first, second = figure.data
    assert [len(first.x), len(second.y)] == [N, N]
    of_side = rows_of[rows_of["side"] == "positive"]
    r = np.corrcoef(of_side["first"], of_side["second"])[0, 1]
    low, high = np.tanh(np.arctanh(r) + np.array([-1, 1]) * 1.96 / np.sqrt(N - 3))
    assert f"r = {r:.2f} [{low:.2f}, {high:.2f}]" in figure.layout.annotations[0].text
    assert figure.layout.xaxis.title.text == f"score in tiny ({scores.places[0]})"


def test_runs_on_other_prompts_or_more_than_two_have_no_common_scores(pairs):
    run, twin, _ = pairs[True]
    assert compared_scores([run, twin, run], Question(contrast="refusal")) is None
    assert compared_scores([run, twin], Question("cosine_of_means", contrast="refusal")) is None
    assert compared_scores([pairs[False][0], twin], Question(contrast="refusal")) is None, "one is not paired"


def test_runs_without_the_stream_are_compared_at_their_own_site(tmp_path):
    runs = []
    for name, seed in (("tiny-0", 0), ("tiny-1", 1)):
        arrays = {key: {"attn_out": sites["resid_pre"]} for key, sites in samples(2.0, seed=seed).items()}
        runs.append(survey(tmp_path, arrays, name, paired=False))
    question = Question("auroc", contrast="refusal", site="attn_out")
    assert len(compared_scores(runs, question).rows) == 2 * N
