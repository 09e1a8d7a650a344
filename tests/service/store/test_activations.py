from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stored import store_run

from theodolite.errors import RunDamagedError
from theodolite.sites import Site
from theodolite.store import descriptions
from theodolite.store.activations import encode_shard
from theodolite.store.commits import read_commit, read_commits
from theodolite.store.layout import shard_key
from theodolite.store.shards import read_shard


def stored_run(folder, values, shard_prompts):
    return store_run(folder, {"set": {"resid_pre": values}}, shard_prompts)


@settings(max_examples=20, deadline=None)
@given(
    n_samples=st.integers(1, 20),
    n_positions=st.integers(1, 3),
    n_layers=st.integers(1, 4),
    shard_prompts=st.integers(1, 9),
)
def test_activations_are_read_back_bit_for_bit(tmp_path_factory, n_samples, n_positions, n_layers, shard_prompts):
    shape = (n_samples, n_positions, n_layers, 8)
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    values[0, 0] = np.nan
    run = stored_run(tmp_path_factory.mktemp("store"), values, shard_prompts)
    shards = [read_shard(run, commit, Site.RESID_PRE) for commit in read_commits(run, "set").values()]
    np.testing.assert_array_equal(np.concatenate(shards), values)
    finals = [read_shard(run, commit, Site.RESID_FINAL) for commit in read_commits(run, "set").values()]
    np.testing.assert_array_equal(np.concatenate(finals), values[:, :, -1])


@settings(max_examples=30, deadline=None)
@given(
    site=st.sampled_from([Site.RESID_PRE, Site.RESID_FINAL]),
    n_samples=st.integers(1, 40),
    n_positions=st.integers(1, 3),
    n_layers=st.integers(1, 4),
    d_model=st.sampled_from([1, 8, 5000]),
    shard_prompts=st.integers(1, 20),
    half=st.booleans(),
)
def test_an_encoded_shard_has_the_bytes_that_zarr_writes(
    site, n_samples, n_positions, n_layers, d_model, shard_prompts, half
):
    layers = () if site is Site.RESID_FINAL else (n_layers,)
    values = np.random.default_rng(0).normal(size=(n_samples, n_positions, *layers, d_model)).astype(np.float32)
    values[0, 0] = np.nan
    if half:  # as bfloat16
        values = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    lengths = {"position": n_positions, "layer": n_layers, "d_model": d_model}
    group, memory = descriptions.group_in_memory()
    descriptions._create_array(group, site, n_samples, shard_prompts, lengths)[:] = values
    for index, start in enumerate(range(0, n_samples, shard_prompts)):
        encoded = encode_shard(site, values[start : start + shard_prompts], start, shard_prompts)
        assert encoded == memory[shard_key(site, index)].to_bytes()


def test_xarray_opens_a_set_without_warnings_and_with_dimensions(tmp_path):
    values = np.arange(10 * 1 * 3 * 8, dtype=np.float32).reshape(10, 1, 3, 8)
    run = stored_run(tmp_path, values, shard_prompts=4)
    with xr.open_zarr(f"{run.url}/activations.zarr", group="set", chunks=None) as dataset:
        assert dataset["resid_pre"].dims == ("sample", "position", "layer", "d_model")
        assert dataset["resid_final"].dims == ("sample", "position", "d_model")
        assert dataset["position"].values.tolist() == [-1]
        assert dataset["resid_pre"].attrs["units"] == "residual stream"
        assert all("description" in variable.attrs for variable in dataset.variables.values())
        np.testing.assert_array_equal(dataset["resid_pre"].values, values)


def test_a_missing_shard_raises_instead_of_reading_as_nan(tmp_path):
    run = stored_run(tmp_path, np.ones((8, 1, 3, 8), np.float32), shard_prompts=4)
    (Path(run.url) / "activations.zarr/set/resid_pre/c/1/0/0/0").unlink()
    with pytest.raises(RunDamagedError, match=r"shard set/00001, resid_pre: is missing"):
        read_shard(run, read_commit(run, "set", 1), Site.RESID_PRE)


def test_a_truncated_shard_raises(tmp_path):
    run = stored_run(tmp_path, np.ones((8, 1, 3, 8), np.float32), shard_prompts=4)
    file = Path(run.url) / "activations.zarr/set/resid_pre/c/1/0/0/0"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(RunDamagedError, match=r"shard set/00001, resid_pre: its bytes"):
        read_shard(run, read_commit(run, "set", 1), Site.RESID_PRE)
