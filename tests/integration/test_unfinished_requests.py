"""A run that lacks requested results says so, whatever stopped their computation, and one command computes them."""

from contextlib import contextmanager
from pathlib import Path

import pytest
from support.damages import UNFINISHED, flip, interrupt, opened, repair_again, settings, store_of
from support.sealed import reseal
from support.tiny_survey import spec_of

from theodolite.errors import ModelError, StoreVersionError
from theodolite.query.runs import run_state, spec_of_results
from theodolite.query.verification import verify
from theodolite.store.checksums import unseal
from theodolite.store.manifest import finished_groups
from theodolite.store.result_writer import drop_groups, remove_groups
from theodolite_jobs import analysis
from theodolite_jobs.analysis import analyse_run
from theodolite_jobs.progress import Console
from theodolite_jobs.repair.run import repair
from theodolite_jobs.requested import open_request, requested_spec
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_vectors(tiny_folder):
    """A spec that requests two singular vectors, and not the number of run.json."""
    return spec_of(tiny_folder, heads={"vectors": 2})


def survey_again(run, spec):
    survey(spec, Path(), settings(store_of(run)), Console())


@contextmanager
def killed_after_the_passes():
    """Stop the analysis when the groups of the passes are written."""
    compute = analysis._compute

    def stop(context):
        if "curves" not in context.stale:
            interrupt()
        compute(context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysis, "_compute", stop)
        with pytest.raises(KeyboardInterrupt):
            yield


@contextmanager
def without_weights():
    """Let nobody open the weights."""

    def refuse(*_arguments):
        raise ModelError("there are no weights")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysis, "_open_weights", refuse)
        yield


def test_damaged_results_that_cannot_be_computed_again_stay_requested(damaged, two_vectors, capsys):
    survey_again(damaged, two_vectors)
    flip(damaged / "results.zarr/heads/zarr.json")
    with without_weights(), pytest.raises(ModelError, match="there are no weights"):
        survey_again(damaged, two_vectors)
    assert "heads" not in finished_groups(opened(damaged))
    assert f"not finished: heads; `theodolite analyse {damaged.name}`" in capsys.readouterr().err
    assert list(verify(opened(damaged))) == [UNFINISHED]
    assert run_state(opened(damaged)) == "captured"
    assert repair_again(damaged) == []
    assert spec_of_results(opened(damaged)).heads.vectors == 2
    assert run_state(opened(damaged)) == "complete"


def test_a_damaged_group_that_a_survey_does_not_request_is_not_forgotten(damaged, two_vectors, tiny_folder):
    survey_again(damaged, two_vectors)
    flip(damaged / "results.zarr/heads/zarr.json")
    survey_again(damaged, spec_of(tiny_folder, analyses=["gram"]))
    assert list(verify(opened(damaged))) == [UNFINISHED]
    analyse_run(opened(damaged), requested_spec(opened(damaged)), None, settings(store_of(damaged)), Console())
    assert list(verify(opened(damaged))) == []
    assert spec_of_results(opened(damaged)).heads.vectors == 2


def test_a_repair_without_complete_that_is_killed_is_not_complete(whole, damaged):
    (damaged / "COMPLETE").unlink()
    with killed_after_the_passes():
        repair_again(damaged)
    assert "curves" in finished_groups(opened(damaged))
    assert list(verify(opened(damaged))) == [UNFINISHED]
    assert repair_again(damaged) == []
    assert finished_groups(opened(damaged)) == finished_groups(opened(whole))


@pytest.mark.parametrize("analyses", [["curves", "gram", "heads"], None], ids=["listed", "all"])
def test_a_survey_that_is_killed_between_two_groups_is_not_complete(damaged, tiny_folder, analyses):
    spec = spec_of(tiny_folder, analyses=analyses, heads={"vectors": 2})
    drop_groups(opened(damaged), list(finished_groups(opened(damaged))))
    with killed_after_the_passes():
        survey_again(damaged, spec)
    assert list(verify(opened(damaged))) == [UNFINISHED]
    assert repair_again(damaged) == []
    assert {"gram", "heads"} <= finished_groups(opened(damaged)).keys()
    assert spec_of_results(opened(damaged)).heads.vectors == 2


def test_a_killed_survey_that_replaces_results_is_finished_by_the_repair(damaged, two_vectors):
    with killed_after_the_passes():
        survey_again(damaged, two_vectors)
    assert "heads" in finished_groups(opened(damaged))
    assert list(verify(opened(damaged))) == [UNFINISHED]
    assert repair_again(damaged) == []
    assert spec_of_results(opened(damaged)).heads.vectors == 2


def test_the_second_repair_compares_with_the_results_before_the_first_one(damaged):
    run = opened(damaged)
    before = finished_groups(run)
    open_request(run, requested_spec(run), restored={**before, "gram": "of another version"})
    remove_groups(run, ["heads"])
    assert repair_again(damaged) == [
        "gram: the new results differ from the former ones in their activations, options or version"
    ]
    assert repair_again(damaged) == []


def test_a_later_survey_decides_what_the_repair_restores(damaged, two_vectors):
    flip(damaged / "results.zarr/heads/zarr.json")
    with killed_after_the_passes():
        repair_again(damaged)
    survey_again(damaged, two_vectors)
    assert list(verify(opened(damaged))) == []
    assert repair_again(damaged) == []
    assert spec_of_results(opened(damaged)).heads.vectors == 2


def test_a_group_that_later_options_leave_out_is_no_longer_requested(damaged, tiny_folder, two_vectors):
    survey_again(damaged, spec_of(tiny_folder, heads={"vectors": 2, "composition": [0, 1]}))
    run = opened(damaged)
    open_request(run, requested_spec(run), restored=finished_groups(run))
    remove_groups(run, ["composition"])
    survey_again(damaged, two_vectors)
    assert repair_again(damaged) == []


def store_raw_request(run, request):
    reseal(run / "COMPLETE", requested=request)


def test_the_request_of_an_early_version_is_read(damaged, two_vectors):
    survey_again(damaged, two_vectors)
    store_raw_request(damaged, spec_of_results(opened(damaged)).model_dump(mode="json"))
    listed = finished_groups(opened(damaged))
    remove_groups(opened(damaged), ["heads"])
    assert repair_again(damaged) == []
    assert finished_groups(opened(damaged)) == listed


@pytest.mark.parametrize("request_", [{"spec": {"of": "later"}, "groups": {}}, {"of": "later"}, ["later"], "later"])
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
    assert unseal((damaged / "COMPLETE").read_bytes(), required=True)["requested"] == request_


def test_a_repair_names_a_group_that_it_could_not_compute(damaged, tiny_folder):
    """A spec that lists no analyses leaves out what the model does not allow."""
    everything = spec_of(tiny_folder, analyses=None)
    survey_again(damaged, everything)
    flip(damaged / "results.zarr/weights/zarr.json")
    with without_weights():
        survey_again(damaged, everything)
        assert list(verify(opened(damaged))) == [UNFINISHED]
        assert repair_again(damaged) == ["weights: could not be computed again", UNFINISHED]
    assert repair_again(damaged) == []
