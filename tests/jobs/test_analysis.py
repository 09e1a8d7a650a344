"""The loop computes what is missing or outdated, and nothing else; a crash leaves no group that looks complete."""

from dataclasses import replace

import pytest
import xarray as xr
from support.analysed_runs import PAIRED, analysed, crash, draw, silent
from support.analysing import analyse
from support.sealed import reseal
from support.stored import read_table, store_run

from theodolite.errors import CaptureError, ModelError, ResultsNotFoundError, RunDamagedError, StoreError
from theodolite.groups import GROUPS
from theodolite.query.runs import run_state, summaries
from theodolite.query.verification import verify
from theodolite.store.layout import COMPLETE
from theodolite.store.manifest import drop_outdated, finished_groups, forget, list_groups, unfinished_groups
from theodolite.store.objects import get, put
from theodolite.store.result_reader import read_contrasts, read_group
from theodolite_jobs import analysis
from theodolite_jobs.groups import computation


def test_only_missing_or_outdated_groups_are_computed(tmp_path, monkeypatch):
    run = analysed(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, PAIRED)
    assert analyse(run, PAIRED, None, silent) == []
    other = {"other": {**PAIRED["refusal"], "paired": False}}
    assert analyse(run, other, None, silent) == ["curves", "directions"]
    newer = replace(GROUPS["moments"], version=GROUPS["moments"].version + 1)
    monkeypatch.setitem(GROUPS, "moments", newer)
    assert analyse(run, other, None, silent) == ["moments"]
    assert set(finished_groups(run)) == {"moments", "curves", "directions"}


def test_asking_for_one_more_contrast_loses_none(tmp_path):
    run = analysed(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, PAIRED)
    analyse(run, {"other": {**PAIRED["refusal"], "paired": False}}, None, silent)
    assert read_group(run, "curves")["contrast"].values.tolist() == ["refusal", "other"]
    assert list(read_contrasts(run, finished_groups(run))) == ["refusal", "other"]
    assert analyse(run, PAIRED, None, silent) == []
    assert summaries(str(tmp_path))[0]["contrasts"] == ["refusal", "other"]
    assert set(read_table(run.location, "tables/curves.parquet")["contrast"]) == {"", "refusal", "other"}


def test_a_shard_that_was_captured_again_outdates_the_results(tmp_path):
    run = analysed(tmp_path, {"bad": draw(9), "good": draw(9, seed=1)}, PAIRED)
    key = "shards/bad/00001.json"
    reseal(tmp_path / "runs/tiny-0" / key, quarantined={"5": "why"})
    with pytest.raises(RunDamagedError, match=r"shards/bad/00001\.json: its bytes are not those that were written"):
        analyse(run, PAIRED, None, silent)
    forget(run, [key])  # as a repair does before it captures a shard again
    assert analyse(run, PAIRED, None, silent) == ["moments", "curves", "directions"]
    assert read_group(run, "moments")["count"].sel(set="bad", position=-1).item() == 8


def test_a_crash_while_results_are_written_leaves_no_group_that_looks_whole(tmp_path, monkeypatch):
    run = store_run(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, contrasts=PAIRED)
    with monkeypatch.context() as patch:
        patch.setattr("theodolite.store.result_writer.consolidate", crash)
        with pytest.raises(KeyboardInterrupt):
            analyse(run, run.record.spec.resolved_contrasts(), None, silent)
    assert finished_groups(run) == {}
    with pytest.raises(ResultsNotFoundError, match="no finished results 'curves'"):
        read_group(run, "curves")
    assert analyse(run, run.record.spec.resolved_contrasts(), None, silent) == ["moments", "curves", "directions"]
    assert list(verify(run)) == []


def test_a_group_counts_only_once_everything_of_it_is_written(tmp_path, monkeypatch):
    run = store_run(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, contrasts=PAIRED)
    with monkeypatch.context() as patch:
        patch.setattr("theodolite.store.result_writer.consolidate", crash)
        with pytest.raises(KeyboardInterrupt):
            analyse(run, PAIRED, None, silent)
    assert finished_groups(run) == {}


class OtherDriver:
    """A driver that writes COMPLETE, with the groups it read before, each time this one has just listed some."""

    def __init__(self, monkeypatch, times):
        self.times = times
        monkeypatch.setattr("theodolite.store.result_writer.list_groups", self.list_groups)

    def list_groups(self, run, *listed):
        before = get(run.location, COMPLETE)
        list_groups(run, *listed)
        if self.times:
            put(run.location, COMPLETE, before)
            self.times -= 1


def test_a_group_that_another_driver_removed_from_complete_is_computed_again(tmp_path, monkeypatch):
    run = store_run(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, contrasts=PAIRED)
    OtherDriver(monkeypatch, times=1)
    assert analyse(run, PAIRED, None, silent) == ["moments", "curves", "directions"]
    assert set(finished_groups(run)) == {"moments", "curves", "directions"}
    assert run_state(run) == "complete"


def test_a_run_whose_groups_another_driver_removed_does_not_look_complete(tmp_path, monkeypatch):
    run = store_run(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, contrasts=PAIRED)
    OtherDriver(monkeypatch, times=2)
    analyse(run, PAIRED, None, silent)
    assert finished_groups(run) == {}
    assert set(unfinished_groups(run)) == {"moments", "curves", "directions"}
    analyse(run, PAIRED, None, silent)
    assert run_state(run) == "complete"


def test_a_group_that_fails_is_tried_once(tmp_path, monkeypatch):
    run, tried = store_run(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, contrasts=PAIRED), []

    def fail(_context):
        tried.append("gram")
        raise ModelError("cannot be computed")

    monkeypatch.setattr(computation("gram"), "compute", fail)
    with pytest.raises(ModelError, match="cannot be computed"):
        analyse(run, PAIRED, None, silent, requested=["gram"])
    assert tried == ["gram"]
    assert set(finished_groups(run)) == {"moments", "curves", "directions"}


def test_a_group_that_another_driver_listed_meanwhile_stays_listed(tmp_path):
    run = analysed(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, PAIRED)
    finished = finished_groups(run)
    drop_outdated(run, {"curves": finished["curves"]})
    assert finished_groups(run) == finished
    drop_outdated(run, {"curves": "another digest"})
    assert finished_groups(run) == {name: digest for name, digest in finished.items() if name != "curves"}


def test_a_dask_cluster_gives_the_same_bits_as_threads(tmp_path):
    from distributed import LocalCluster

    arrays = {"bad": draw(11), "good": draw(11, seed=1)}
    here = analysed(tmp_path / "threads", arrays, PAIRED)
    there = store_run(tmp_path / "cluster", arrays, contrasts=PAIRED)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        analyse(there, PAIRED, cluster.scheduler_address, silent)
    for name in ("moments", "curves", "directions"):
        xr.testing.assert_identical(read_group(here, name), read_group(there, name))


@pytest.mark.parametrize("error", [StoreError, CaptureError])
def test_what_another_driver_finished_meanwhile_is_taken(tmp_path, monkeypatch, error):
    """It removes what both needed, so this driver fails after the groups are written."""
    run = store_run(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, contrasts=PAIRED)
    compute = analysis._compute

    def finish_elsewhere(context):
        compute(context)
        raise error("a part of effects is missing")

    monkeypatch.setattr(analysis, "_compute", finish_elsewhere)
    assert analyse(run, PAIRED, None, silent) == []
    assert set(finished_groups(run)) == {"moments", "curves", "directions"}


def test_an_error_of_the_store_ends_an_analysis_that_nobody_else_finished(tmp_path, monkeypatch):
    run = store_run(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, contrasts=PAIRED)

    def fail(context):
        raise StoreError("a part of effects is missing")

    monkeypatch.setattr(analysis, "_compute", fail)
    with pytest.raises(StoreError, match="a part of effects is missing"):
        analyse(run, PAIRED, None, silent)
