"""Damaged shards and results are refused by name, and computed again."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from support.analysed_runs import PAIRED, analysed, draw, silent
from support.analysing import analyse
from support.each import each
from support.nightly import at_night
from support.stored import store_run

from theodolite.errors import RunDamagedError, StoreError
from theodolite.query.runs import describe, summaries
from theodolite.query.verification import verify
from theodolite.store.checksums import seal
from theodolite.store.manifest import drop_groups, finished_groups, list_groups
from theodolite.store.objects import delete, open_location
from theodolite.store.result_reader import damaged_groups, read_finished_table, read_group
from theodolite.store.runs import open_run


def test_a_number_that_is_not_finite_is_named_and_never_averaged(tmp_path):
    arrays = {"bad": draw(9), "good": draw(9, seed=1)}
    arrays["good"]["resid_mid"][6, 0, 1, 3] = np.inf
    run = store_run(tmp_path, arrays, contrasts=PAIRED)
    with pytest.raises(RunDamagedError, match=r"tiny-0: shard good/00001, resid_mid: .* layer 1 is not finite"):
        analyse(run, run.record.spec.resolved_contrasts(), None, silent)
    assert finished_groups(run) == {}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A store of one run, with the groups that every run has."""
    folder = tmp_path_factory.mktemp("sound")
    analysed(folder, {"bad": draw(9), "good": draw(9, seed=1)}, PAIRED)
    return folder


def copied(sound, folder):
    """Return the run in a copy of its store."""
    shutil.copytree(sound, folder, dirs_exist_ok=True)
    return open_run(str(folder), "tiny-0")


def test_a_missing_shard_is_named(tmp_path):
    run = store_run(tmp_path, {"bad": draw(9), "good": draw(9, seed=1)}, contrasts=PAIRED)
    delete(run.location, ["shards/good/00002.json"])
    with pytest.raises(StoreError, match=r"1 of 3 shards of good .* good/00002"):
        analyse(run, run.record.spec.resolved_contrasts(), None, silent)


def test_damage_is_named_after_all_results_were_outdated_and_written_again(sound, tmp_path):
    run = copied(sound, tmp_path)
    file = tmp_path / "runs/tiny-0/prompts/good.parquet"
    file.write_bytes(file.read_bytes()[:-1])
    named = list(verify(run))
    drop_groups(run, list(finished_groups(run)))
    assert finished_groups(run) == {}
    assert list(verify(run)) == ["results: none are finished (yet)", *named]
    list_groups(run, {"moments": "0"})
    assert named[0] in list(verify(run))


@each(
    "key",
    [
        "activations.zarr/bad/resid_mid/c/1/0/0/0",
        "activations.zarr/bad/resid_final/c/1/0/0",
        "activations.zarr/bad/position/c/0",
        "activations.zarr/good/resid_pre/zarr.json",
        "results.zarr/curves/cosine_of_means_debiased/c/0/0/0/0/0/0",
        "results.zarr/moments/mean/zarr.json",
        "tables/curves.parquet",
        "prompts/good.parquet",
        "shards/good/00001.json",
        "COMPLETE",
    ],
)
def test_verify_names_what_was_flipped_or_lost(sound, tmp_path, key):
    run = copied(sound, tmp_path)
    assert list(verify(run)) == []
    file = tmp_path / "runs/tiny-0" / key
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x80
    file.write_bytes(content)
    flipped = list(verify(run))
    file.unlink()
    lost = list(verify(run))
    shard = "bad/00001" if "/c/1/" in key else "good/00001"
    name = "results: none are finished" if key == "COMPLETE" else shard if "shards" in key or "/c/1/" in key else key
    assert len(flipped) == len(lost) == 1
    assert name in lost[0]
    assert (name if key != "COMPLETE" else "COMPLETE") in flipped[0]


def test_a_flipped_byte_is_refused_and_never_averaged(tmp_path):
    run = store_run(tmp_path, {"bad": draw(9), "good": draw(9, seed=1)}, contrasts=PAIRED)
    shard = tmp_path / "runs/tiny-0/activations.zarr/good/resid_mid/c/1/0/0/0"
    content = bytearray(shard.read_bytes())
    content[20] ^= 1
    shard.write_bytes(content)
    with pytest.raises(RunDamagedError, match="shard good/00001, resid_mid: its bytes"):
        analyse(run, PAIRED, None, silent)


def test_a_truncated_result_is_refused_in_one_sentence(sound, tmp_path):
    run = copied(sound, tmp_path)
    chunk = tmp_path / "runs/tiny-0/results.zarr/curves/variance_mean/c/0/0/0/0/0"
    chunk.write_bytes(chunk.read_bytes()[:9])
    with pytest.raises(RunDamagedError, match="are not those that were written; `theodolite run analyse tiny-0`"):
        read_group(run, "curves")


def test_the_list_of_runs_hides_none_for_another_that_is_broken(sound, tmp_path):
    run = copied(sound, tmp_path)
    (tmp_path / "runs/only-begun/prompts").mkdir(parents=True)
    (tmp_path / "runs/only-begun/prompts/x").write_text("")
    for name, content in (("other", seal({"format": 99})), ("broken", b"{")):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "run.json").write_bytes(content)
    states = {item["run_id"]: item["state"] for item in summaries(str(tmp_path))}
    assert states == {"tiny-0": "complete", "other": "unreadable", "broken": "damaged"}
    delete(open_location(run.url), ["COMPLETE"])
    assert next(item["state"] for item in summaries(str(tmp_path))) == "captured"


def test_results_that_are_gone_do_not_hide_the_run(sound, tmp_path):
    run = copied(sound, tmp_path)
    shutil.rmtree(tmp_path / "runs/tiny-0/results.zarr")
    with pytest.raises(RunDamagedError, match="is missing; `theodolite run analyse tiny-0`"):
        describe(run)
    assert summaries(str(tmp_path))[0]["state"] == "damaged"
    drop_groups(run, damaged_groups(run))
    assert analyse(run, PAIRED, None, silent) == ["moments", "curves", "directions"]


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


PLACES = [
    ("results.zarr/separation/auroc/c/0/0/0/0/0", "separation"),
    ("results.zarr/moments/zarr.json", "moments"),
    ("tables/growth.parquet", "travel"),
    ("tables/curves.parquet", "curves"),
]
HARMS = [flip, Path.unlink]
ASKED = frozenset({"separation", "travel"})


@pytest.fixture(scope="module")
def with_more(sound, tmp_path_factory):
    """A store of the same run with more groups."""
    folder = tmp_path_factory.mktemp("more")
    analyse(copied(sound, folder), PAIRED, None, silent, ASKED)
    return folder


@pytest.mark.parametrize(
    ("place", "group", "harm"),
    [
        *((*place, HARMS[index % 2]) for index, place in enumerate(PLACES)),
        *at_night((*place, HARMS[1 - index % 2]) for index, place in enumerate(PLACES)),
    ],
)
def test_what_changed_or_went_is_refused_and_computed_again(with_more, tmp_path, harm, place, group):
    run = copied(with_more, tmp_path)
    before = {name: read_group(run, name) for name in finished_groups(run)}
    assert damaged_groups(run) == []
    harm(tmp_path / "runs/tiny-0" / place)
    assert damaged_groups(run) == [group]
    with pytest.raises(RunDamagedError, match="`theodolite run analyse tiny-0` computes it again"):
        read_finished_table(run, Path(place).stem) if "tables" in place else read_group(run, group)
    drop_groups(run, damaged_groups(run))
    assert group in analyse(run, PAIRED, None, silent, ASKED)
    for name, values in before.items():
        xr.testing.assert_identical(read_group(run, name), values)
    assert list(verify(run)) == []


def test_missing_results_would_read_as_nan_or_minus_one(sound):
    run = open_run(str(sound), "tiny-0")
    stored = zarr.open_group(f"{run.url}/results.zarr", mode="r")
    for group in ("moments", "curves", "directions"):
        for name, variable in read_group(run, group).data_vars.items():
            fill = stored[f"{group}/{name}"].fill_value
            assert np.isnan(fill) if variable.dtype == np.float64 else fill == -1
    assert read_group(run, "moments")["count"].dtype == np.int64
