"""Damaged runs: each damage is named, nothing is computed from it, and one command restores the same bits."""

import json
import random
import shutil
from pathlib import Path

import pytest
from support.tiny_survey import save_model, spec_of

from theodolite.errors import RunDamagedError, StoreError, TheodoliteError
from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.store.checksums import seal
from theodolite.store.objects import keys
from theodolite.store.runs import open_run
from theodolite_jobs.progress import Console
from theodolite_jobs.repair import repair
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.slow

REWRITTEN = ("COMPLETE", "report.html", "shards/")  # with new times, and new names of attempts


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def whole(ray_with_pretend_gpus, model, tmp_path_factory):
    """The folder of a complete run."""
    store = tmp_path_factory.mktemp("whole")
    return Path(survey(spec_of(model), Path(), settings(store), Console()).url)


@pytest.fixture
def damaged(whole, tmp_path):
    """A copy of the run, for the test to damage."""
    return Path(shutil.copytree(whole, tmp_path / "store/runs" / whole.name))


def settings(store):
    return Settings(store=str(store), replicas=1, gpus_per_replica=0)


def store_of(run):
    return run.parent.parent


def repair_again(run, spec=None):
    repair(run.name, spec, Path(), settings(store_of(run)), Console())
    return list(verify(open_run(str(store_of(run)), run.name)))


def assert_same_bits(run, whole):
    opened = open_run(str(store_of(run)), run.name)
    stored = {key: (run / key).read_bytes() for key in keys(opened.location) if not key.startswith(REWRITTEN)}
    expected = {key: (whole / key).read_bytes() for key in stored}
    assert {key for key in stored if stored[key] != expected[key]} == set()
    others = {key for key in keys(open_run(str(store_of(whole)), whole.name).location)}
    assert others == set(keys(opened.location))


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)


def truncate(file):
    file.write_bytes(file.read_bytes()[:-1])


def swap(file):
    other = file.with_name("00002.json")
    contents = file.read_bytes(), other.read_bytes()
    file.write_bytes(contents[1])
    other.write_bytes(contents[0])


def contradict(file):
    record = json.loads(file.read_bytes())
    del record["sha256"]
    file.write_bytes(seal({**record, "start": 4}))


@pytest.mark.parametrize(
    ("key", "damage"),
    [
        ("activations.zarr/harmful/resid_pre/c/1/0/0/0", flip),
        ("activations.zarr/harmful/resid_mid/c/3/0/0/0", truncate),
        ("activations.zarr/harmless/resid_final/c/0/0/0", Path.unlink),
        ("activations.zarr/harmful/mlp_positive/c/2/0/0/0", flip),
        ("shards/harmful/00001.json", flip),
        ("shards/harmless/00000.json", Path.unlink),
        ("shards/harmful/00001.json", swap),
        ("shards/harmful/00003.json", contradict),
    ],
    ids=lambda value: getattr(value, "__name__", None) or value.replace("/", " "),
)
def test_a_damaged_shard_is_refused_and_captured_again(whole, damaged, model, key, damage):
    damage(damaged / key)
    # The survey compares sizes, but reads no shard; it captures a shard without a record again.
    if (damage is not flip or "shards" in key) and damage is not Path.unlink:
        with pytest.raises(StoreError):
            survey(spec_of(model), Path(), settings(store_of(damaged)), Console())
    assert list(verify(open_run(str(store_of(damaged)), damaged.name))) != []
    assert repair_again(damaged) == []
    assert_same_bits(damaged, whole)


@pytest.mark.parametrize(
    "key",
    [
        "prompts/harmful.parquet",
        "prompts/harmless.tokens.parquet",
        "activations.zarr/zarr.json",
        "activations.zarr/harmful/zarr.json",
        "activations.zarr/harmful/position/c/0",
        "results.zarr/zarr.json",
        "results.zarr/curves/cosine_of_means_debiased/c/0/0/0/0",
        "results.zarr/gram/zarr.json",
        "results.zarr/heads/zarr.json",
        "tables/curves.parquet",
        "run.json",
        "COMPLETE",
    ],
)
@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["flipped", "lost"])
def test_a_damaged_object_is_restored_to_the_bit(whole, damaged, key, damage):
    damage(damaged / key)
    try:
        problems = list(verify(open_run(str(store_of(damaged)), damaged.name)))
    except TheodoliteError as error:
        problems = [str(error)]
    named = {"COMPLETE": "none are finished", "run.json": f"has no run {damaged.name!r}"}.get(key, key)
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


def test_a_lost_run_record_without_a_copy_needs_the_spec(whole, damaged, model):
    (damaged / "run.json").unlink()
    (damaged / "COMPLETE").unlink()
    with pytest.raises(RunDamagedError, match=r"give the run's spec with --spec"):
        repair_again(damaged)
    assert repair_again(damaged, spec_of(model)) == []
    assert (damaged / "activations.zarr/harmful/resid_pre/c/1/0/0/0").exists()


def test_a_run_whose_model_has_changed_is_refused_by_name(damaged, model, tmp_path):
    flip(damaged / "activations.zarr/harmful/resid_pre/c/1/0/0/0")
    other = save_model(tmp_path / "other", seed=1)
    with pytest.raises(
        RunDamagedError, match=f"{damaged.name} cannot be restored: its model or its prompts have changed"
    ):
        repair_again(damaged, spec_of(other))
    problems = list(verify(open_run(str(store_of(damaged)), damaged.name)))
    assert problems == ["shard harmful/00001, resid_pre: its bytes are not those that were committed"]
