"""Damaged runs: each damage is named, nothing is computed from it, and one command restores the same bits."""

import json
import random
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from support.damages import (
    UNFINISHED,
    assert_same_bits,
    contradict,
    flip,
    flipped_or_lost,
    opened,
    repair_again,
    settings,
    store_of,
    swap,
    truncate,
)
from support.nightly import at_night
from support.sealed import reseal
from support.tiny_survey import save_model, spec_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from theodolite.errors import RunDamagedError, StoreError, TheodoliteError
from theodolite.query.runs import spec_of_results
from theodolite.query.verification import verify
from theodolite.store.checksums import sha256
from theodolite.store.commits import read_commit
from theodolite.store.manifest import finished_groups
from theodolite.store.objects import keys
from theodolite.store.result_reader import read_group
from theodolite.store.result_writer import claim_layers
from theodolite_jobs.progress import Console
from theodolite_jobs.repair.run import repair
from theodolite_jobs.survey import capture, survey

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")


@pytest.mark.parametrize(
    ("key", "damage"),
    [
        ("activations.zarr/harmful/resid_pre/c/1/0/0/0", flip),
        ("shards/harmful/00001.json", swap),
        ("shards/harmful/00003.json", contradict),
        *at_night(
            [
                ("activations.zarr/harmless/resid_final/c/0/0/0", Path.unlink),
                ("activations.zarr/harmful/resid_mid/c/3/0/0/0", truncate),
                ("activations.zarr/harmful/mlp_positive/c/2/0/0/0", flip),
                ("shards/harmful/00001.json", flip),
                ("shards/harmless/00000.json", Path.unlink),
            ]
        ),
    ],
    ids=lambda value: getattr(value, "__name__", None) or value.replace("/", " "),
)
def test_a_damaged_shard_is_refused_and_captured_again(whole, damaged, tiny_folder, key, damage):
    damage(damaged / key)
    if damage is not flip or "shards" in key:  # the survey compares sizes, but reads no shard
        with pytest.raises(StoreError):
            survey(spec_of(tiny_folder), Path(), settings(store_of(damaged)), Console())
    assert list(verify(opened(damaged))) != []
    assert repair_again(damaged) == []
    assert_same_bits(damaged, whole)


OBJECTS = (
    "prompts/harmful.parquet",
    "prompts/harmless.tokens.parquet",
    "activations.zarr/zarr.json",
    "activations.zarr/harmful/zarr.json",
    "activations.zarr/harmful/position/c/0",
    "results.zarr/zarr.json",
    "results.zarr/curves/cosine_of_means_debiased/c/0/0/0/0/0/0",
    "results.zarr/gram/zarr.json",
    "results.zarr/heads/zarr.json",
    "tables/curves.parquet",
    "run.json",
    "COMPLETE",
)


@pytest.mark.parametrize(("key", "damage"), flipped_or_lost(OBJECTS, OBJECTS[::3]))
def test_a_damaged_object_is_restored_to_the_bit(whole, damaged, key, damage):
    damage(damaged / key)
    try:
        problems = list(verify(opened(damaged)))
    except TheodoliteError as error:
        problems = [str(error)]
    named = {"COMPLETE": "none are finished"}.get(key, key)
    assert key in problems[0] or named in problems[0]
    assert repair_again(damaged) == []
    assert_same_bits(damaged, whole)


def test_many_damages_at_once_are_repaired_together(whole, damaged):
    draw = random.Random(0)
    files = [
        file for file in sorted(damaged.rglob("*")) if file.is_file() and file.name not in ("run.json", "COMPLETE")
    ]
    for file in draw.sample(files, 40):
        draw.choice([flip, truncate, Path.unlink])(file)
    assert repair_again(damaged) == []
    assert_same_bits(damaged, whole)


@pytest.mark.nightly
def test_a_lost_run_record_without_a_copy_needs_the_spec(whole, damaged, tiny_folder):
    (damaged / "run.json").unlink()
    (damaged / "COMPLETE").unlink()
    with pytest.raises(RunDamagedError, match=r"give the run's spec with --spec"):
        repair_again(damaged)
    assert repair_again(damaged, spec_of(tiny_folder)) == []
    assert (damaged / "activations.zarr/harmful/resid_pre/c/1/0/0/0").exists()


def test_a_run_whose_model_has_changed_is_refused_by_name(damaged, tiny_folder, tmp_path):
    flip(damaged / "activations.zarr/harmful/resid_pre/c/1/0/0/0")
    other = save_model(tmp_path / "other", seed=1)
    with pytest.raises(
        RunDamagedError,
        match=f"{damaged.name} cannot be restored: the spec now gives the run .*, because the model, the",
    ):
        repair_again(damaged, spec_of(other))
    problems = list(verify(opened(damaged)))
    assert problems == ["shard harmful/00001, resid_pre: its bytes are not those that were committed"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "key",
    ["prompts/harmless.tokens.parquet", "prompts/harmful.parquet", "activations.zarr/harmful/resid_pre/zarr.json"],
)
def test_without_complete_nothing_damaged_is_certified(whole, damaged, key):
    flip(damaged / key)
    (damaged / "COMPLETE").unlink()
    assert repair_again(damaged) == []
    assert_same_bits(damaged, whole)


@pytest.mark.nightly
def test_a_lost_run_record_and_a_damaged_complete_are_restored_from_the_spec(whole, damaged, tiny_folder):
    (damaged / "run.json").unlink()
    flip(damaged / "COMPLETE")
    assert repair_again(damaged, spec_of(tiny_folder)) == []
    (damaged / "run.json").write_bytes((whole / "run.json").read_bytes())  # with another date
    assert_same_bits(damaged, whole)


def test_a_shard_with_other_bits_is_named_and_the_others_are_restored(damaged):
    record = damaged / "shards/harmful/00001.json"
    reseal(record, checksums=json.loads(record.read_bytes())["checksums"] | {"resid_pre": "0" * 64})
    listed = json.loads((damaged / "COMPLETE").read_bytes())["checksums"]
    reseal(damaged / "COMPLETE", checksums=listed | {"shards/harmful/00001.json": sha256(record.read_bytes())})
    array = "activations.zarr/harmless/resid_mid/c/2/0/0/0"
    before = (damaged / array).read_bytes()
    flip(damaged / array)
    refused, *problems = repair_again(damaged)
    assert "shard harmful/00001, resid_pre" in refused
    assert "computes other bits" in refused
    assert (damaged / array).read_bytes() == before
    assert [problem.split(":")[0] for problem in problems] == ["shard harmful/00001, resid_pre"]


@pytest.mark.nightly
def test_results_that_were_requested_later_are_restored(damaged, tiny_folder):
    more = {"again": {"positive": "harmless", "negative": "harmful"}}
    survey(spec_of(tiny_folder, contrasts=more), Path(), settings(store_of(damaged)), Console())
    flip(damaged / "results.zarr/curves/zarr.json")
    assert repair_again(damaged) == []
    assert sorted(read_group(opened(damaged), "curves")["contrast"].values) == ["again", "refusal"]


@pytest.mark.nightly
@pytest.mark.parametrize("step", ["analyse_run", *at_night(["remove_groups"])])
def test_an_interrupted_repair_still_knows_what_was_requested_later(damaged, tiny_folder, monkeypatch, step):
    more = {"again": {"positive": "harmless", "negative": "harmful"}}
    later = spec_of(tiny_folder, contrasts=more, heads={"vectors": 2})
    survey(later, Path(), settings(store_of(damaged)), Console())
    flip(damaged / "results.zarr/curves/zarr.json")
    flip(damaged / "results.zarr/heads/zarr.json")
    before = finished_groups(opened(damaged))
    with monkeypatch.context() as patch:
        patch.setattr(f"theodolite_jobs.repair.run.{step}", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            repair_again(damaged)
    assert UNFINISHED in list(verify(opened(damaged)))
    assert repair_again(damaged) == []
    assert list(verify(opened(damaged))) == []
    assert finished_groups(opened(damaged)) == before
    assert sorted(read_group(opened(damaged), "curves")["contrast"].values) == ["again", "refusal"]
    assert spec_of_results(opened(damaged)).heads.vectors == 2


def interrupted_repair(run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("theodolite_jobs.repair.run.analyse_run", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            repair_again(run)


def test_a_survey_after_an_interrupted_repair_keeps_its_own_options(damaged, tiny_folder, monkeypatch):
    flip(damaged / "results.zarr/heads/zarr.json")
    interrupted_repair(damaged, monkeypatch)
    survey(spec_of(tiny_folder, heads={"vectors": 2}), Path(), settings(store_of(damaged)), Console())
    assert repair_again(damaged) == []
    assert spec_of_results(opened(damaged)).heads.vectors == 2


@pytest.mark.nightly
def test_a_refused_repair_keeps_the_request_of_an_interrupted_one(damaged, tiny_folder, monkeypatch):
    more = {"again": {"positive": "harmless", "negative": "harmful"}}
    survey(spec_of(tiny_folder, contrasts=more), Path(), settings(store_of(damaged)), Console())
    flip(damaged / "results.zarr/curves/zarr.json")
    interrupted_repair(damaged, monkeypatch)
    flip(damaged / "prompts/harmful.parquet")
    with monkeypatch.context() as patch:
        patch.setattr("theodolite_jobs.repair.run.restore_captured", lambda *_: ["refused"])
        assert "refused" in repair_again(damaged)
    assert repair_again(damaged) == []
    assert sorted(read_group(opened(damaged), "curves")["contrast"].values) == ["again", "refusal"]


def test_a_repair_that_cannot_compute_a_group_has_not_ended(damaged, tiny_folder, monkeypatch):
    survey(spec_of(tiny_folder, heads={"vectors": 2}), Path(), settings(store_of(damaged)), Console())
    flip(damaged / "results.zarr/heads/zarr.json")
    with monkeypatch.context() as patch:
        patch.setattr("theodolite_jobs.repair.run.analyse_run", Mock())
        assert UNFINISHED in repair_again(damaged)
    assert repair_again(damaged) == []
    assert spec_of_results(opened(damaged)).heads.vectors == 2


def test_a_lost_shard_of_a_finished_run_is_captured_by_the_repair_only(damaged, tiny_folder):
    (damaged / "shards/harmful/00001.json").unlink()
    with pytest.raises(RunDamagedError, match=r"shards/harmful/00001\.json is missing; run `theodolite run verify"):
        capture(spec_of(tiny_folder), Path(), settings(store_of(damaged)), Console())


def test_whole_arrays_survive_a_lost_record_on_a_machine_that_computes_other_bits(whole, damaged, monkeypatch):
    """COMPLETE proves the arrays, so that nothing is captured."""
    monkeypatch.setattr("theodolite_jobs.repair.shards.capture_replicas", refuse)
    for key in ("shards/harmful/00001.json", "shards/harmless/00000.json"):
        (damaged / key).unlink()
    flip(damaged / "shards/harmful/00002.json")
    assert repair_again(damaged) == []
    assert_same_bits(damaged, whole)


def test_a_lost_record_of_a_damaged_array_is_not_written_from_it(whole, damaged):
    (damaged / "shards/harmful/00001.json").unlink()
    flip(damaged / "activations.zarr/harmful/resid_pre/c/1/0/0/0")
    assert repair_again(damaged) == []
    assert_same_bits(damaged, whole)


OF_OTHERS = (
    "activations.zarr/.DS_Store",
    "activations.zarr/harmful/position/c/.DS_Store",
    "tables/notes.txt",
    "results.zarr/.DS_Store",
)


def test_the_files_of_others_are_left_alone(whole, damaged):
    others = [damaged / key for key in OF_OTHERS]
    for file in others:
        file.write_bytes(b"Finder")
    assert list(verify(opened(damaged))) == []
    flip(damaged / "activations.zarr/harmful/resid_pre/c/1/0/0/0")
    assert repair_again(damaged) == []
    for file in others:
        assert file.read_bytes() == b"Finder"
        file.unlink()
    assert_same_bits(damaged, whole)


@pytest.fixture(scope="module")
def with_quarantine(tiny_folder, tmp_path_factory):
    """The folder of a complete run with a prompt in quarantine, the second of five in shards of three."""
    broken = AutoModelForCausalLM.from_pretrained(
        shutil.copytree(tiny_folder, tmp_path_factory.mktemp("broken") / "model")
    )
    with torch.no_grad():
        broken.get_input_embeddings().weight[AutoTokenizer.from_pretrained(tiny_folder).encode("^")[-1]] = torch.nan
    broken.save_pretrained(broken.name_or_path)
    prompts = tmp_path_factory.mktemp("prompts") / "words.txt"
    prompts.write_text("one\ntw^o\nthree\nfour\nseventeen\n")
    spec = spec_of(
        broken.name_or_path,
        prompts={"words": {"source": f"file:{prompts}", "template": "none"}},
        contrasts={},
        analyses=["curves"],
    )
    return Path(survey(spec, Path(), settings(tmp_path_factory.mktemp("quarantine")), Console()).url)


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param((), id="record kept", marks=pytest.mark.nightly),
        pytest.param(("shards/words/00000.json",), id="record lost"),
    ],
)
@pytest.mark.parametrize(
    "flipped",
    [
        pytest.param((), id="arrays kept", marks=pytest.mark.nightly),
        pytest.param(("activations.zarr/words/resid_pre/c/0/0/0/0",), id="array damaged", marks=pytest.mark.nightly),
        pytest.param(
            ("activations.zarr/words/resid_pre/c/0/0/0/0", "prompts/words.parquet"), id="array and prompts damaged"
        ),
    ],
)
def test_a_quarantined_prompt_stays_in_quarantine(with_quarantine, tmp_path, lost, flipped):
    whole, damaged = (
        with_quarantine,
        Path(shutil.copytree(with_quarantine, tmp_path / "store/runs" / with_quarantine.name)),
    )
    for key in lost:
        (damaged / key).unlink()
    for key in flipped:
        flip(damaged / key)
    assert repair_again(damaged) == []
    assert_same_bits(damaged, whole)
    before, after = (read_commit(opened(run), "words", 0) for run in (whole, damaged))
    assert list(after.quarantined) == [1]
    assert (after.quarantined, after.batches) == (before.quarantined, before.batches)


def refuse(*_arguments):
    raise AssertionError("a shard is captured")


def append_a_line(file):
    file.write_bytes(file.read_bytes() + b"\n")


def test_bytes_that_change_no_field_are_restored_too(whole, damaged):
    for key in ("run.json", "shards/harmful/00001.json"):
        append_a_line(damaged / key)
    problems = list(verify(opened(damaged)))
    assert [problem.split(":")[0] for problem in problems] == ["run.json", "shards/harmful/00001.json"]
    assert repair_again(damaged) == []
    for key in ("run.json", "shards/harmful/00001.json"):
        assert (damaged / key).read_bytes() == (whole / key).read_bytes()
    assert_same_bits(damaged, whole)


def test_a_record_that_another_attempt_has_replaced_is_captured_again(whole, damaged):
    reseal(damaged / "shards/harmful/00001.json", device="another")
    assert "shards/harmful/00001.json" in next(verify(opened(damaged)))
    assert repair_again(damaged) == []
    assert_same_bits(damaged, whole)


@pytest.mark.parametrize("is_lost", [*at_night([False]), True], ids=["run.json kept", "run.json lost"])
def test_the_complete_of_another_run_is_not_believed(whole, damaged, tiny_folder, is_lost):
    reseal(damaged / "COMPLETE", run_id="model-000000000000")
    if is_lost:
        (damaged / "run.json").unlink()
        with pytest.raises(RunDamagedError, match="--spec"):
            repair_again(damaged)
    else:
        assert "COMPLETE is that of the run model-000000000000" in list(verify(opened(damaged)))[-1]
    assert repair_again(damaged, spec_of(tiny_folder)) == []
    (damaged / "run.json").write_bytes((whole / "run.json").read_bytes())  # with another date
    assert_same_bits(damaged, whole)


@pytest.mark.parametrize("is_finished", [True, False], ids=["of the finished heads", "of another survey"])
def test_a_claim_whose_deletion_was_lost_is_removed(damaged, tiny_folder, is_finished):
    digest = json.loads((damaged / "COMPLETE").read_bytes())["groups"]["heads"] if is_finished else "another"
    claim_layers(opened(damaged), "heads", digest)
    survey(spec_of(tiny_folder), Path(), settings(store_of(damaged)), Console())
    assert keys(opened(damaged).location, "pending") == ([] if is_finished else ["pending/heads.digest"])


def test_a_finished_run_without_its_record_is_not_captured_again(damaged, tiny_folder):
    (damaged / "run.json").unlink()
    with pytest.raises(RunDamagedError, match=r"run\.json is missing; run `theodolite run verify .* --repair`"):
        survey(spec_of(tiny_folder), Path(), settings(store_of(damaged)), Console())


def test_a_run_id_that_the_store_does_not_have_needs_no_spec(damaged):
    with pytest.raises(StoreError) as caught:
        repair("model-0", None, Path(), settings(store_of(damaged)), Console())
    assert "has no run 'model-0'" in str(caught.value)
    assert "--spec" not in str(caught.value)
