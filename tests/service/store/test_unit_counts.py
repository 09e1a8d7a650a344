"""Check that counts of active neurons are read back, and that missing or changed counts raise an error."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stored import store_run

from theodolite.errors import RunDamagedError
from theodolite.store.activations import read_positive_counts
from theodolite.store.commits import damages, read_commit, read_commits
from theodolite.store.manifest import changed_objects, list_groups


def stored_run(folder, signs=None, shard_prompts=4, quarantined=None, n_samples=10):
    shape = (len(signs), *signs.shape[1:3]) if signs is not None else (n_samples, 2, 3)
    values = np.ones((*shape, 8), np.float32)
    return store_run(
        folder,
        {"set": {"resid_pre": values}},
        shard_prompts,
        {"set": dict.fromkeys(quarantined or [], "why")},
        {"set": signs} if signs is not None else None,
    )


def random_signs(n_samples=10, units=11):
    return np.random.default_rng(0).random((n_samples, 2, 3, units)) < 0.4


@settings(max_examples=15, deadline=None)
@given(n_samples=st.integers(1, 14), units=st.integers(1, 20), shard_prompts=st.integers(1, 9))
def test_counts_are_read_back_without_quarantined_prompts(tmp_path_factory, n_samples, units, shard_prompts):
    signs = random_signs(n_samples, units)
    run = stored_run(tmp_path_factory.mktemp("store"), signs, shard_prompts, quarantined=[0])
    commits = read_commits(run, "set").values()
    for commit in commits:
        counts = read_positive_counts(run, commit)
        assert (counts.dtype, counts.shape) == (np.int32, (2, 3, units))
        usable = [sample for sample in range(commit.start, commit.stop) if sample != 0]
        np.testing.assert_array_equal(counts, signs[usable].sum(axis=0))


def test_a_run_without_counts_returns_none(tmp_path):
    run = stored_run(tmp_path)
    assert read_positive_counts(run, read_commit(run, "set", 0)) is None


def test_xarray_opens_counts_without_warnings_and_with_dimensions(tmp_path):
    signs = random_signs()
    run = stored_run(tmp_path, signs)
    with xr.open_zarr(f"{run.url}/activations.zarr", group="set", chunks=None) as dataset:
        counts = dataset["mlp_positive"]
        assert counts.dims == ("shard", "position", "layer", "unit")
        assert counts.dtype == np.int32
        assert counts.attrs["units"] == "prompts"
        assert (dataset["shard"].values.tolist(), dataset["unit"].values.tolist()) == ([0, 1, 2], list(range(11)))
        assert dataset["resid_pre"].dims == ("sample", "position", "layer", "d_model")
        assert all("description" in variable.attrs for variable in dataset.variables.values())
        np.testing.assert_array_equal(counts.sum("shard"), signs.sum(axis=0))


def chunk_of(run, shard_index):
    return Path(run.url) / f"activations.zarr/set/mlp_positive/c/{shard_index}/0/0/0"


def test_missing_counts_raise_although_zarr_reads_fill_values(tmp_path):
    run = stored_run(tmp_path, random_signs())
    chunk_of(run, 1).unlink()
    with xr.open_zarr(f"{run.url}/activations.zarr", group="set", chunks=None) as dataset:
        assert (dataset["mlp_positive"].sel(shard=1) == -1).all()
    commit = read_commit(run, "set", 1)
    with pytest.raises(RunDamagedError, match=r"shard set/00001, mlp_positive: is missing"):
        read_positive_counts(run, commit)
    assert list(damages(run, commit)) == ["shard set/00001, mlp_positive: is missing"]


def test_a_flipped_byte_of_counts_raises(tmp_path):
    run = stored_run(tmp_path, random_signs())
    content = bytearray(chunk_of(run, 1).read_bytes())
    content[len(content) // 2] ^= 1
    chunk_of(run, 1).write_bytes(content)
    commit = read_commit(run, "set", 1)
    with pytest.raises(RunDamagedError, match=r"shard set/00001, mlp_positive: its bytes"):
        read_positive_counts(run, commit)
    assert len(list(damages(run, commit))) == 1


def test_commits_list_the_checksums_of_counts_and_complete_that_of_their_metadata(tmp_path):
    run = stored_run(tmp_path, random_signs())
    list_groups(run, {"moments": "0"})
    chunk_of(run, 0).unlink()
    assert list(changed_objects(run)) == []
    description = Path(run.url) / "activations.zarr/set/mlp_positive/zarr.json"
    description.write_text("{}")
    assert list(dict(changed_objects(run))) == ["activations.zarr/set/mlp_positive/zarr.json"]
