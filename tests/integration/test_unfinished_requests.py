"""A run that lacks requested results says so, whatever stopped their computation, and one command computes them."""

from pathlib import Path

import pytest
from support.damages import UNFINISHED, flip, opened, repair_again, settings, store_of
from support.nightly import at_night
from support.requests import analyse, killed_after_the_passes, killed_before, survey_again, without_weights
from support.sealed import reseal
from support.tiny_survey import spec_of

from theodolite.errors import ModelError, SpecError, StoreVersionError, UnsupportedModelError
from theodolite.query.runs import run_state, spec_of_results
from theodolite.query.verification import verify
from theodolite.store.checksums import unseal
from theodolite.store.manifest import drop_groups, finished_groups, unfinished_request
from theodolite_jobs.progress import Console
from theodolite_jobs.repair.run import repair
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")


@pytest.fixture(scope="module")
def two_vectors(tiny_folder):
    """A spec that requests two singular vectors, and not the number of run.json."""
    return spec_of(tiny_folder, heads={"vectors": 2})


def store_raw_request(run, request):
    reseal(run / "COMPLETE", requested=request)


@pytest.mark.nightly
def test_damaged_results_that_cannot_be_computed_again_stay_requested(damaged, two_vectors, capsys):
    survey_again(damaged, two_vectors)
    flip(damaged / "results.zarr/heads/zarr.json")
    with without_weights(), pytest.raises(ModelError, match="there are no weights"):
        survey_again(damaged, two_vectors)
    assert "heads" not in finished_groups(opened(damaged))
    assert "requested and not finished: heads" in " ".join(capsys.readouterr().err.split())
    assert list(verify(opened(damaged))) == [UNFINISHED]
    assert run_state(opened(damaged)) == "captured"
    assert repair_again(damaged) == []
    assert spec_of_results(opened(damaged)).heads.vectors == 2
    assert run_state(opened(damaged)) == "complete"


@pytest.mark.nightly
def test_a_damaged_group_that_a_survey_does_not_request_is_not_forgotten(damaged, two_vectors, tiny_folder):
    survey_again(damaged, two_vectors)
    flip(damaged / "results.zarr/heads/zarr.json")
    survey_again(damaged, spec_of(tiny_folder, analyses=["gram"]))
    assert list(verify(opened(damaged))) == [UNFINISHED]
    analyse(damaged)
    assert list(verify(opened(damaged))) == []
    assert spec_of_results(opened(damaged)).heads.vectors == 2


@pytest.mark.nightly
def test_new_options_stay_requested_until_they_can_be_computed(damaged, two_vectors):
    with without_weights(), pytest.raises(ModelError, match="there are no weights"):
        survey_again(damaged, two_vectors)
    assert "heads" in finished_groups(opened(damaged))
    with without_weights(), pytest.raises(ModelError, match="there are no weights"):
        analyse(damaged)
    assert list(verify(opened(damaged))) == [UNFINISHED]
    analyse(damaged)
    assert list(verify(opened(damaged))) == []
    assert spec_of_results(opened(damaged)).heads.vectors == 2


def test_what_the_model_cannot_have_stays_requested_only_instead_of_other_results(damaged, tiny_folder):
    quantised = UnsupportedModelError("the weights are quantised")
    with without_weights(quantised), pytest.raises(UnsupportedModelError):
        survey_again(damaged, spec_of(tiny_folder, analyses=["weights"]))
    assert list(verify(opened(damaged))) == []
    with without_weights(quantised), pytest.raises(UnsupportedModelError):
        survey_again(damaged, spec_of(tiny_folder, analyses=["heads"], heads={"vectors": 2}))
    assert list(verify(opened(damaged))) == [UNFINISHED]


@pytest.mark.nightly
def test_norms_that_cannot_be_read_leave_the_sphere_requested(damaged, tiny_folder):
    with without_weights(), pytest.raises(ModelError, match="there are no weights"):
        survey_again(damaged, spec_of(tiny_folder, analyses=["sphere"]))
    assert list(verify(opened(damaged))) == [UNFINISHED]
    analyse(damaged)
    assert "sphere" in finished_groups(opened(damaged))


def test_a_survey_that_lists_fewer_analyses_completes_the_run(damaged, tiny_folder, capsys):
    """The first one was killed after its capture; `run analyse` still computes what it requested."""
    drop_groups(opened(damaged), list(finished_groups(opened(damaged))))
    survey_again(damaged, spec_of(tiny_folder, analyses=["weights"]))
    assert "not finished" not in capsys.readouterr().err
    assert list(verify(opened(damaged))) == []
    assert run_state(opened(damaged)) == "complete"
    assert "gram" not in finished_groups(opened(damaged))
    analyse(damaged)
    assert {"heads", "gram", "travel", "weights"} <= finished_groups(opened(damaged)).keys()


@pytest.mark.nightly
def test_a_repair_without_complete_that_is_killed_is_not_complete(whole, damaged):
    (damaged / "COMPLETE").unlink()
    with killed_after_the_passes():
        repair_again(damaged)
    assert "curves" in finished_groups(opened(damaged))
    assert list(verify(opened(damaged))) == [UNFINISHED]
    assert repair_again(damaged) == []
    assert finished_groups(opened(damaged)) == finished_groups(opened(whole))


@pytest.mark.parametrize("analyses", [["curves", "gram", "heads"], *at_night([None])], ids=["listed", "all"])
def test_a_survey_that_is_killed_between_two_groups_is_not_complete(damaged, tiny_folder, analyses):
    spec = spec_of(tiny_folder, analyses=analyses, heads={"vectors": 2})
    drop_groups(opened(damaged), list(finished_groups(opened(damaged))))
    with killed_after_the_passes():
        survey_again(damaged, spec)
    assert list(verify(opened(damaged))) == [UNFINISHED]
    assert repair_again(damaged) == []
    assert {"gram", "heads"} <= finished_groups(opened(damaged)).keys()
    assert spec_of_results(opened(damaged)).heads.vectors == 2


@pytest.mark.nightly
def test_a_killed_survey_that_replaces_results_is_finished_by_the_repair(damaged, two_vectors):
    with killed_after_the_passes():
        survey_again(damaged, two_vectors)
    assert "heads" in finished_groups(opened(damaged))
    assert list(verify(opened(damaged))) == [UNFINISHED]
    assert repair_again(damaged) == []
    assert spec_of_results(opened(damaged)).heads.vectors == 2


@pytest.mark.nightly
def test_damage_of_what_a_killed_survey_has_finished_is_not_forgotten(damaged, tiny_folder):
    with killed_before("gram"):
        survey_again(damaged, spec_of(tiny_folder, heads={"vectors": 2}, gram={"samples": 6}))
    flip(damaged / "results.zarr/heads/zarr.json")
    with without_weights(), pytest.raises(ModelError):
        repair_again(damaged)
    assert "heads" not in finished_groups(opened(damaged))
    assert list(verify(opened(damaged))) == [UNFINISHED]
    assert repair_again(damaged) == []
    assert spec_of_results(opened(damaged)).heads.vectors == 2


@pytest.mark.nightly
def test_a_repair_computes_the_options_of_a_killed_survey_without_calling_them_different(damaged, two_vectors):
    flip(damaged / "results.zarr/heads/zarr.json")
    with killed_after_the_passes():
        survey_again(damaged, two_vectors)
    assert repair_again(damaged) == []
    assert spec_of_results(opened(damaged)).heads.vectors == 2


@pytest.mark.nightly
def test_results_that_go_with_replaced_ones_stay_requested(damaged, tiny_folder):
    survey_again(damaged, spec_of(tiny_folder, analyses=["heads", "words"]))
    survey_again(damaged, spec_of(tiny_folder, analyses=["heads"], heads={"vectors": 2}))
    assert "words" not in finished_groups(opened(damaged))
    assert list(verify(opened(damaged))) == [UNFINISHED]
    analyse(damaged)
    assert list(verify(opened(damaged))) == []
    assert "words" in finished_groups(opened(damaged))
    assert spec_of_results(opened(damaged)).heads.vectors == 2


def test_the_last_survey_decides_although_it_finds_its_results_finished(damaged, tiny_folder, two_vectors):
    with killed_after_the_passes():
        survey_again(damaged, two_vectors)
    survey_again(damaged, spec_of(tiny_folder))
    analyse(damaged)
    assert spec_of_results(opened(damaged)).heads == spec_of(tiny_folder).heads


@pytest.mark.nightly
def test_the_second_repair_compares_with_the_results_before_the_first_one(damaged):
    run = opened(damaged)
    flip(damaged / "results.zarr/heads/zarr.json")
    with killed_after_the_passes():
        repair_again(damaged)
    request = unfinished_request(run)
    store_raw_request(damaged, {**request, "groups": {**request["groups"], "gram": "of another version"}})
    assert repair_again(damaged) == [
        "gram: the new results differ from the former ones in their activations, options or version"
    ]
    assert repair_again(damaged) == []


@pytest.mark.nightly
def test_a_later_survey_decides_what_the_repair_restores(damaged, two_vectors):
    flip(damaged / "results.zarr/heads/zarr.json")
    with killed_after_the_passes():
        repair_again(damaged)
    survey_again(damaged, two_vectors)
    assert list(verify(opened(damaged))) == []
    assert repair_again(damaged) == []
    assert spec_of_results(opened(damaged)).heads.vectors == 2


@pytest.mark.nightly
def test_composition_is_restored_although_later_options_do_not_request_it(damaged, tiny_folder, two_vectors):
    survey_again(damaged, spec_of(tiny_folder, heads={"vectors": 2, "composition": [0, 1]}))
    survey_again(damaged, two_vectors)
    flip(next(file for file in (damaged / "results.zarr/composition/score/c").rglob("*") if file.is_file()))
    survey_again(damaged, two_vectors)
    assert list(verify(opened(damaged))) == [UNFINISHED]
    assert repair_again(damaged) == []
    assert "composition" in finished_groups(opened(damaged))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": {"composition": [0, 50]}}, "no layer 50"),
        ({"capture": {"sites": ["resid_mid"]}}, "'travel' needs the site resid_pre"),
    ],
)
def test_what_the_run_cannot_give_is_refused_before_the_capture(tiny_folder, tmp_path, changes, message):
    with pytest.raises(SpecError, match=message):
        survey(spec_of(tiny_folder, **changes), Path(), settings(tmp_path), Console())
    assert list(tmp_path.glob("runs/*")) == []


@pytest.mark.parametrize(
    "request_", [{"spec": {"of": "later"}, "groups": {}}, *at_night([{"of": "later"}, ["later"], "later"])]
)
def test_the_request_of_another_version_is_refused_and_kept(damaged, tiny_folder, request_):
    flip(damaged / "results.zarr/heads/zarr.json")
    store_raw_request(damaged, request_)
    finished = finished_groups(opened(damaged))
    assert UNFINISHED in list(verify(opened(damaged)))
    for continue_it in (
        lambda: repair(damaged.name, None, Path(), settings(store_of(damaged)), Console()),
        lambda: survey_again(damaged, spec_of(tiny_folder)),
    ):
        with pytest.raises(StoreVersionError, match="with the version that began"):
            continue_it()
    assert finished_groups(opened(damaged)) == finished
    assert unseal((damaged / "COMPLETE").read_bytes())["requested"] == request_


@pytest.mark.nightly
def test_a_repair_names_a_group_that_it_could_not_compute(tiny_folder, tmp_path):
    """A spec that lists no analyses leaves out what cannot be computed."""
    run = Path(survey(spec_of(tiny_folder, analyses=None), Path(), settings(tmp_path), Console()).url)
    flip(run / "results.zarr/weights/zarr.json")
    with without_weights():
        assert repair_again(run) == ["weights: could not be computed again", UNFINISHED]
    assert repair_again(run) == []
