"""Interrupted repairs, and damage before the results: nothing is hidden, and nothing damaged is certified."""

import json
import shutil
from pathlib import Path

import pytest
from support.damages import (
    assert_same_bits,
    flip,
    flipped_or_lost,
    interrupt,
    is_named,
    opened,
    repair_again,
    settings,
    store_of,
)
from support.nightly import at_night
from support.sealed import reseal
from support.tiny_survey import spec_of

from theodolite.digests import digest_of
from theodolite.errors import RunDamagedError
from theodolite.query.verification import verify
from theodolite.store.manifest import forget
from theodolite.store.result_reader import read_group
from theodolite_jobs.analysis import analyse_run
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import capture, survey

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")


@pytest.mark.parametrize("step", ["describe", *at_night(["capture_shards", "finish_capture", "list_groups"])])
@pytest.mark.parametrize(
    "key",
    [
        "activations.zarr/harmful/resid_pre/c/1/0/0/0",
        *at_night(["shards/harmful/00001.json", "prompts/harmful.tokens.parquet"]),
    ],
)
def test_a_repair_that_was_interrupted_hides_no_damage(whole, damaged, monkeypatch, key, step):
    (damaged / key).unlink()
    monkeypatch.setattr(f"theodolite_jobs.repair.shards.{step}", interrupt)
    is_reached = step != "capture_shards" or key.startswith("activations")
    if is_reached:
        with pytest.raises(KeyboardInterrupt):
            repair_again(damaged)
        is_restored = (damaged / key).exists() and not key.startswith("shards")
        assert is_restored or is_named(damaged, key)
    monkeypatch.undo()
    assert repair_again(damaged) == []
    assert_same_bits(damaged, whole)


def test_a_shard_that_is_captured_with_other_bits_drops_the_results_that_rest_on_it(damaged, monkeypatch):
    """Only the run's own machine computes the same bits; here the lost shard's arrays are replaced meanwhile."""
    (damaged / "shards/harmful/00001.json").unlink()
    monkeypatch.setattr("theodolite_jobs.repair.shards.rests_on_these_shards", lambda _run: False)
    monkeypatch.setattr("theodolite_jobs.repair.run.analyse_run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        repair_again(damaged)
    assert list(verify(opened(damaged))) == ["results: none are finished (yet)"]
    monkeypatch.undo()
    assert repair_again(damaged) == []


@pytest.fixture(scope="module")
def captured(tiny_folder, tmp_path_factory):
    """The folder of a run that is captured and has no results."""
    return Path(capture(spec_of(tiny_folder), Path(), settings(tmp_path_factory.mktemp("captured")), Console()).url)


OF_THE_CAPTURE = (
    "prompts/harmful.parquet",
    "prompts/harmful.tokens.parquet",
    "activations.zarr/zarr.json",
    "activations.zarr/harmful/resid_pre/zarr.json",
    "activations.zarr/harmful/mlp_positive/zarr.json",
    "activations.zarr/harmful/position/zarr.json",
    "activations.zarr/harmful/position/c/0",
    "shards/harmful/00001.json",
)


@pytest.mark.parametrize(("key", "damage"), flipped_or_lost(OF_THE_CAPTURE, OF_THE_CAPTURE[1::6]))
def test_damage_before_the_results_is_named_and_not_adopted(captured, tmp_path, tiny_folder, key, damage):
    run = Path(shutil.copytree(captured, tmp_path / "store/runs" / captured.name))
    damage(run / key)
    assert is_named(run, key)
    with pytest.raises(RunDamagedError, match=key.replace(".", r"\.")):
        survey(spec_of(tiny_folder), Path(), settings(store_of(run)), Console())
    assert repair_again(run) == []
    assert (run / key).read_bytes() == (captured / key).read_bytes() or key.startswith("shards")


@pytest.mark.parametrize(("key", "damage"), flipped_or_lost(OF_THE_CAPTURE[1:7:2], OF_THE_CAPTURE[3:4]))
def test_damage_before_the_last_shard_is_mended_by_the_resume(captured, tmp_path, tiny_folder, key, damage):
    run = Path(shutil.copytree(captured, tmp_path / "store/runs" / captured.name))
    for lost in ("COMPLETE", "shards/harmful/00001.json", "prompts/harmful.parquet", "prompts/harmless.parquet"):
        (run / lost).unlink()
    damage(run / key)
    capture(spec_of(tiny_folder), Path(), settings(store_of(run)), Console())
    assert [problem for problem in verify(opened(run)) if "results" not in problem] == []
    assert (run / key).read_bytes() == (captured / key).read_bytes()
    counts = "mlp_positive"
    assert all(counts in json.loads(record.read_bytes())["checksums"] for record in run.glob("shards/harmful/*.json"))


@pytest.mark.parametrize(
    "key",
    ["prompts/harmless.tokens.parquet", "prompts/harmful.parquet", "activations.zarr/harmful/resid_pre/zarr.json"],
)
def test_a_survey_of_a_finished_run_misses_its_captured_objects(damaged, tiny_folder, key):
    (damaged / key).unlink()
    with pytest.raises(RunDamagedError, match=r"is missing; run `theodolite run verify"):
        survey(spec_of(tiny_folder), Path(), settings(store_of(damaged)), Console())


def test_a_survey_of_a_finished_run_computes_emptied_results_again(whole, damaged, tiny_folder):
    key = "results.zarr/heads/left_vectors/c/0/0/1/0/0/0"
    assert (damaged / key).stat().st_size > 0
    (damaged / key).write_bytes(b"")
    survey(spec_of(tiny_folder), Path(), settings(store_of(damaged)), Console())
    assert_same_bits(damaged, whole)


def test_the_repair_of_results_needs_no_prompts(whole, damaged, monkeypatch):
    """The files of the prompts may have moved."""
    monkeypatch.setattr("theodolite_jobs.repair.run.prepare", interrupt)
    for key in ("results.zarr/zarr.json", "results.zarr/curves/zarr.json"):
        flip(damaged / key)
    assert repair_again(damaged) == []
    assert_same_bits(damaged, whole)


def test_a_survey_of_a_finished_run_writes_the_metadata_of_all_results_again(whole, damaged, tiny_folder):
    """A driver that is killed while it finishes a group leaves other metadata than COMPLETE lists."""
    (damaged / "results.zarr/zarr.json").write_text("{}")
    survey(spec_of(tiny_folder), Path(), settings(store_of(damaged)), Console())
    assert_same_bits(damaged, whole)


def without_record(run):
    (run / "run.json").unlink()
    (run / "COMPLETE").unlink()


def test_a_run_with_other_tokens_is_not_restored_from_the_spec(damaged, tiny_folder):
    without_record(damaged)
    reseal(damaged / "shards/harmful/00001.json", token_ids_sha256=digest_of([(1, 2)]))
    with pytest.raises(RunDamagedError, match="the tokens of harmful differ from those of shard harmful/00001"):
        repair_again(damaged, spec_of(tiny_folder))


@pytest.mark.nightly
def test_other_tokens_without_any_checksum_are_a_damage(whole, damaged, tiny_folder):
    without_record(damaged)
    key = "prompts/harmful.tokens.parquet"
    shutil.copy(damaged / "prompts/harmless.tokens.parquet", damaged / key)
    assert repair_again(damaged, spec_of(tiny_folder)) == []
    assert (damaged / key).read_bytes() == (whole / key).read_bytes()


def test_a_run_of_another_device_is_not_restored_from_the_spec(damaged, tiny_folder):
    without_record(damaged)
    arithmetic = json.loads((damaged / "shards/harmful/00001.json").read_bytes())["arithmetic"]
    assert arithmetic[2] == "cpu"
    reseal(damaged / "shards/harmful/00001.json", arithmetic=[*arithmetic[:2], "cuda", *arithmetic[3:]])
    with pytest.raises(RunDamagedError, match="was created with cuda and would resume with cpu"):
        repair_again(damaged, spec_of(tiny_folder))


def test_a_run_record_with_other_types_is_damaged(damaged):
    parity = json.loads((damaged / "run.json").read_bytes())["parity"]
    reseal(damaged / "run.json", parity=parity | {"max_error": "x"})
    with pytest.raises(RunDamagedError, match=r"run\.json is not a run record: parity\.max_error"):
        opened(damaged)
    assert repair_again(damaged) == []


def test_a_run_without_the_version_of_torch_is_not_resumed(damaged, tiny_folder):
    versions = json.loads((damaged / "run.json").read_bytes())["versions"]
    reseal(damaged / "run.json", versions={name: number for name, number in versions.items() if name != "torch"})
    for lost in ("COMPLETE", "shards/harmful/00001.json"):
        (damaged / lost).unlink()
    with pytest.raises(RunDamagedError, match="the run was created with torch None"):
        capture(spec_of(tiny_folder), Path(), settings(store_of(damaged)), Console())


def analyse_again(run):
    analyse_run(opened(run), opened(run).record.spec, None, settings(store_of(run)), Console())


def test_nothing_is_computed_without_the_description_of_the_counts(captured, tmp_path):
    run = Path(shutil.copytree(captured, tmp_path / "store/runs" / captured.name))
    (run / "activations.zarr/harmful/mlp_positive/zarr.json").unlink()
    with pytest.raises(RunDamagedError, match=r"mlp_positive/zarr\.json: is missing"):
        analyse_again(run)


def test_a_run_without_complete_is_not_analysed(captured, tmp_path):
    run = Path(shutil.copytree(captured, tmp_path / "store/runs" / captured.name))
    (run / "COMPLETE").unlink()
    with pytest.raises(RunDamagedError, match="its capture is not finished, or COMPLETE is lost"):
        analyse_again(run)


@pytest.mark.nightly
def test_a_run_that_lost_complete_and_the_description_of_its_counts_is_restored(whole, damaged):
    (damaged / "COMPLETE").unlink()
    key = "activations.zarr/harmful/mlp_positive/zarr.json"
    (damaged / key).unlink()
    assert repair_again(damaged) == []
    assert (damaged / key).read_bytes() == (whole / key).read_bytes()
    (damaged / key).unlink()
    assert list(verify(opened(damaged))) == [f"{key}: is missing"]
    assert repair_again(damaged) == []
    assert (damaged / key).read_bytes() == (whole / key).read_bytes()


def test_a_survey_after_an_interrupted_repair_lists_no_older_results(damaged, tiny_folder):
    key = "shards/harmful/00001.json"
    forget(opened(damaged), [key])
    with pytest.raises(RunDamagedError, match=rf"{key}: is not listed in COMPLETE"):
        survey(spec_of(tiny_folder), Path(), settings(store_of(damaged)), Console())


def test_a_survey_does_not_mix_devices_if_run_json_is_lost(damaged, tiny_folder):
    without_record(damaged)
    arithmetic = json.loads((damaged / "shards/harmful/00001.json").read_bytes())["arithmetic"]
    reseal(damaged / "shards/harmful/00001.json", arithmetic=[*arithmetic[:2], "cuda", *arithmetic[3:], "one more"])
    with pytest.raises(RunDamagedError, match="was created with cuda and would resume with cpu"):
        survey(spec_of(tiny_folder), Path(), settings(store_of(damaged)), Console())


@pytest.mark.nightly
def test_damaged_curves_keep_the_contrasts_that_were_requested_later(damaged, tiny_folder):
    more = {"again": {"positive": "harmless", "negative": "harmful"}}
    survey(spec_of(tiny_folder, contrasts=more), Path(), settings(store_of(damaged)), Console())
    flip(damaged / "results.zarr/curves/cosine_of_means/c/0/0/0/0/0")
    survey(spec_of(tiny_folder), Path(), settings(store_of(damaged)), Console())
    assert sorted(read_group(opened(damaged), "curves")["contrast"].values) == ["again", "refusal"]
