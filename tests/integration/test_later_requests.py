"""Later requests with other options or contrasts: nothing that a run had, or that was requested, is forgotten."""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.damages import UNFINISHED, flip, interrupt, opened, repair_again, settings
from support.nightly import at_night
from support.requests import analyse, assert_nothing_to_compute, killed_before, survey_again, without_weights
from support.tiny_survey import spec_of

from theodolite.errors import SpecError, UnsupportedModelError
from theodolite.groups import GROUPS
from theodolite.query.runs import spec_of_results
from theodolite.query.verification import verify
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_contrasts, read_group
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")

PAIR = {"positive": "harmful", "negative": "harmless"}
TWO = {"refusal": PAIR, "reversed": {"positive": "harmless", "negative": "harmful"}}
THREE = {**TWO, "again": PAIR}


def surveyed(folder, tiny_folder, **changes):
    """Survey a tiny model into a new store, and return the run's folder."""
    return Path(survey(spec_of(tiny_folder, **changes), Path(), settings(folder), Console()).url)


def contrasts_of(run):
    return set(read_contrasts(opened(run), finished_groups(opened(run))))


@contextmanager
def unsupported():
    """Let the model refuse the options of heads, after their former vectors are removed."""

    def refuse(*_arguments):
        raise UnsupportedModelError("a weight is not finite")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("theodolite_jobs.groups.heads.compute._all_layers", refuse)
        with pytest.raises(UnsupportedModelError):
            yield


@pytest.mark.parametrize("group", ["basis", *at_night(["travel"])])
def test_options_of_a_group_are_kept_although_the_group_with_their_name_is_missing(tiny_folder, tmp_path, group):
    run = surveyed(tmp_path, tiny_folder, analyses=["curves"])
    survey_again(run, spec_of(tiny_folder, analyses=[group], gram={"samples": 6}))
    assert_nothing_to_compute(run)
    flip(run / "results.zarr/moments/zarr.json")
    assert repair_again(run) == []
    assert spec_of_results(opened(run)).gram.samples == 6


@pytest.mark.nightly
def test_contrasts_of_a_killed_survey_are_kept(damaged, tiny_folder):
    with killed_before("gram"):
        survey_again(damaged, spec_of(tiny_folder, analyses=["gram"], contrasts=TWO))
    survey_again(damaged, spec_of(tiny_folder))
    analyse(damaged)
    assert contrasts_of(damaged) == {"refusal", "reversed"}
    assert list(verify(opened(damaged))) == []


@pytest.mark.nightly
def test_contrasts_with_results_are_kept_if_a_survey_is_killed_while_it_writes(damaged, tiny_folder):
    survey_again(damaged, spec_of(tiny_folder, contrasts=TWO))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("theodolite.store.result_writer.consolidate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            survey_again(damaged, spec_of(tiny_folder, contrasts=THREE))
    survey_again(damaged, spec_of(tiny_folder))
    analyse(damaged)
    assert contrasts_of(damaged) == {"refusal", "reversed", "again"}


@pytest.mark.nightly
def test_contrasts_of_damaged_results_are_kept(damaged, tiny_folder):
    survey_again(damaged, spec_of(tiny_folder, contrasts=TWO))
    flip(damaged / "results.zarr/gram/zarr.json")
    with killed_before("gram"):
        analyse(damaged)
    survey_again(damaged, spec_of(tiny_folder))
    assert contrasts_of(damaged) == {"refusal", "reversed"}


@pytest.mark.parametrize(
    ("first", "later", "allowed"),
    [
        (
            {"analyses": ["words"], "heads": {"vectors": 2}},
            [{"heads": {"vectors": 0}}, {"heads": {"vectors": 3}}],
            "words",
        ),
        *at_night(
            [
                ({"analyses": None, "contrasts": {}}, [{"contrasts": {"refusal": PAIR}}], "separation"),
                ({"analyses": None, "heads": {"vectors": 0}}, [{"heads": {"vectors": 2}}], "words"),
            ]
        ),
    ],
    ids=["named", "contrast", "all"],
)
def test_new_options_allow_what_was_requested_before(tiny_folder, tmp_path, first, later, allowed):
    run = surveyed(tmp_path, tiny_folder, **first)
    for changes in later:
        survey_again(run, spec_of(tiny_folder, **{"analyses": ["heads"], **changes}))
    assert list(verify(opened(run))) == [UNFINISHED]
    analyse(run)
    assert allowed in finished_groups(opened(run))
    assert_nothing_to_compute(run)


@pytest.mark.nightly
def test_heads_that_a_model_cannot_have_with_new_options_stay_requested(damaged, tiny_folder):
    survey_again(damaged, spec_of(tiny_folder, heads={"vectors": 3}))
    for _ in range(2):
        with unsupported():
            survey_again(damaged, spec_of(tiny_folder, analyses=["heads"], heads={"vectors": 2}))
        assert list(verify(opened(damaged))) == [UNFINISHED]
    survey_again(damaged, spec_of(tiny_folder, analyses=["heads"], heads={"vectors": 3}))
    assert list(verify(opened(damaged))) == []


def test_damaged_heads_that_cannot_be_computed_again_stay_requested(damaged):
    flip(damaged / "results.zarr/heads/zarr.json")
    with without_weights(UnsupportedModelError("the weights are quantised")), pytest.raises(UnsupportedModelError):
        repair_again(damaged)
    assert UNFINISHED in list(verify(opened(damaged)))
    assert repair_again(damaged) == []


@pytest.mark.nightly
def test_analyses_that_need_more_prompts_than_are_kept_are_not_computed(tiny_folder, tmp_path):
    run = surveyed(tmp_path, tiny_folder, analyses=["curves"], capture={"keep": 6, "shard_prompts": 3})
    survey_again(run, spec_of(tiny_folder, analyses=None, capture={"keep": 6, "shard_prompts": 3}))
    assert finished_groups(opened(run)).keys().isdisjoint({"basis", "separation"})
    assert_nothing_to_compute(run)
    assert list(verify(opened(run))) == []


@pytest.mark.parametrize("name", ["permutations", "contributions"])
def test_an_analysis_of_contrasts_without_contrasts_is_refused(tiny_folder, tmp_path, name):
    capture = {"sites": ["resid_pre", "head_out"]}
    with pytest.raises(SpecError, match=f"analyses: '{name}' needs contrasts, but contrasts is empty; add a contrast"):
        surveyed(tmp_path, tiny_folder, analyses=[name], contrasts={}, capture=capture)


def test_results_of_another_version_are_removed_and_requested(damaged, tiny_folder, monkeypatch):
    survey_again(damaged, spec_of(tiny_folder, analyses=["separation"]))
    newer = replace(GROUPS["separation"], version=GROUPS["separation"].version + 1)
    monkeypatch.setitem(GROUPS, "separation", newer)
    survey_again(damaged, spec_of(tiny_folder, analyses=["gram"]))
    assert list(verify(opened(damaged))) == [UNFINISHED]
    analyse(damaged)
    assert list(verify(opened(damaged))) == []
    assert read_group(opened(damaged), "separation").attrs["version"] == newer.version


@pytest.mark.nightly
def test_composition_of_other_options_is_requested_with_new_heads(damaged, tiny_folder):
    survey_again(damaged, spec_of(tiny_folder, heads={"vectors": 2, "composition": [0, 1]}))
    survey_again(damaged, spec_of(tiny_folder, analyses=["heads"], heads={"vectors": 2, "fold_norm": True}))
    assert list(verify(opened(damaged))) == [UNFINISHED]
    analyse(damaged)
    assert list(verify(opened(damaged))) == []
    assert_nothing_to_compute(damaged)


@pytest.mark.nightly
def test_results_without_a_new_contrast_are_requested_with_it(damaged, tiny_folder):
    survey_again(damaged, spec_of(tiny_folder, analyses=["separation", "gram"]))
    survey_again(damaged, spec_of(tiny_folder, analyses=["gram"], contrasts=TWO))
    assert list(verify(opened(damaged))) == [UNFINISHED]
    analyse(damaged)
    assert "reversed" in read_group(opened(damaged), "separation").contrast
    assert_nothing_to_compute(damaged)


def test_results_that_keep_their_options_are_not_requested_again(damaged, tiny_folder):
    survey_again(damaged, spec_of(tiny_folder, analyses=["gram"]))
    survey_again(damaged, spec_of(tiny_folder, analyses=["heads"], heads={"vectors": 2}))
    assert list(verify(opened(damaged))) == []
    assert_nothing_to_compute(damaged)


@pytest.mark.nightly
def test_composition_that_was_never_requested_stays_away(tiny_folder, tmp_path):
    """The spec of run.json has layers of composition, but does not request heads."""
    run = surveyed(tmp_path, tiny_folder, analyses=["curves"], heads={"composition": [0, 1]})
    with killed_before("heads"):
        survey_again(run, spec_of(tiny_folder, analyses=["heads"], heads={"vectors": 2}))
    analyse(run)
    assert list(verify(opened(run))) == []
    assert "heads" in finished_groups(opened(run))
    assert "composition" not in finished_groups(opened(run))
