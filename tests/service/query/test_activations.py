"""Activations as a lazy array equal what xarray reads of the store; a damaged shard is noticed when it is read."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from support.each import each
from support.serving import captured_run

import theodolite
from theodolite.errors import RunDamagedError, SpecError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    stored = captured_run(tmp_path_factory.mktemp("activations"))
    return theodolite.open_run(stored.store, stored.id)


@each("site", ["resid_pre", "resid_final"])
def test_values_and_labels_are_those_of_the_store(run, site):
    stored = xr.open_zarr(Path(run.url) / "runs" / run.id / "activations.zarr", group="harmful")[site]
    found = run.activations("harmful", site)
    assert found.dims == stored.dims
    assert found.chunks[0] == stored.chunks[0]
    np.testing.assert_array_equal(found, stored)
    np.testing.assert_array_equal(found[::-3, 0, ..., 2].values, stored[::-3, 0, ..., 2].values)
    assert found["text"].values.tolist() == run.prompts("harmful")["text"].tolist()
    assert set(found["status"].values) == {"ok"}
    assert found["token_id"].shape == found.shape[:2]


def test_labels_select_and_one_label_drops_its_dimension(run):
    whole = run.activations("harmless", "resid_mid")
    layers, positions = whole["layer"].values.tolist(), whole["position"].values.tolist()
    one = run.activations("harmless", "resid_mid", layer=layers[1], position=positions[0])
    assert one.dims == ("sample", "d_model")
    np.testing.assert_array_equal(one, whole.sel(layer=layers[1], position=positions[0]))
    some = run.activations("harmless", "resid_mid", layer=layers[::-2])
    assert some["layer"].values.tolist() == layers[::-2]
    np.testing.assert_array_equal(some, whole.sel(layer=layers[::-2]))


@each(
    "given, reason",
    [
        ({"set": "nobody"}, "set: there is no 'nobody'; the run has harmful, harmless"),
        ({"set": "harmful", "site": "mlp_out"}, "site: there is no 'mlp_out'; the run has resid_pre"),
        ({"set": "harmful", "layer": 99}, "layer: there is no 99; the run has 0 to 3"),
        ({"set": "harmful", "position": -9}, "position: there is no -9"),
    ],
)
def test_what_does_not_exist_is_named(run, given, reason):
    with pytest.raises(SpecError, match=reason):
        run.activations(**given)


def test_a_damaged_shard_is_refused_when_it_is_read(tmp_path):
    stored = captured_run(tmp_path)
    damaged = next((tmp_path / "runs" / stored.id / "activations.zarr/harmful/resid_pre/c").rglob("0"))
    while damaged.is_dir():
        damaged = damaged / "0"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    found = theodolite.open_run(stored.store, stored.id).activations("harmful", layer=0)
    with pytest.raises(RunDamagedError, match="shard harmful/00000, resid_pre"):
        found.load()
