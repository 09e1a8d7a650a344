"""Activations as a lazy array and as batches equal what xarray reads of the store; a damaged shard is noticed."""

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from support.each import each
from support.sealed import reseal
from support.serving import captured_run, draw_sets
from support.stored import store_run

import theodolite
from theodolite.errors import ResultsNotFoundError, RunDamagedError, SpecError
from theodolite.query import activations, batches
from theodolite.store import objects


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    stored = captured_run(tmp_path_factory.mktemp("activations"))
    return theodolite.open_run(stored.store, stored.id)


@each("chunk_bytes, n_chunks", [(0, 3), (2 * 4 * 2 * 8 * 4 * 4, 2), (10**6, 1)])
@each("site", ["resid_pre", "resid_final"])
def test_values_and_labels_are_those_of_the_store(run, monkeypatch, site, chunk_bytes, n_chunks):
    monkeypatch.setattr(activations, "_CHUNK_BYTES", chunk_bytes)
    stored = xr.open_zarr(Path(run.url) / "runs" / run.id / "activations.zarr", group="harmful")[site]
    found = run.activations("harmful", site)
    assert found.dims == stored.dims
    assert n_chunks == 2 or len(found.chunks[0]) == n_chunks
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


def test_a_single_position_has_a_dimension_only_if_a_list_asks_for_it(run):
    assert run.activations("nouns", layer=1).dims == ("sample", "d_model")
    kept = run.activations("nouns", layer=[1], position=[-1])
    assert kept.dims == ("sample", "position", "layer", "d_model")
    np.testing.assert_array_equal(kept[:, 0, 0], run.activations("nouns", layer=1))


def test_labels_can_be_those_of_numpy(run):
    one = run.activations("nouns", layer=np.int64(1), position=np.int64(-1))
    np.testing.assert_array_equal(one, run.activations("nouns", layer=1, position=-1))
    assert run.activations("nouns", layer=np.array([1]), position=np.array([-1])).sizes["layer"] == 1


def test_a_layer_is_read_and_verified_without_the_others(run, monkeypatch, tmp_path):
    sizes = []

    def counted(location, key, start, size):
        sizes.append(size)
        return objects.get_range(location, key, start, size)

    monkeypatch.setattr("theodolite.store.shards.get_range", counted)
    monkeypatch.setattr("theodolite.store.shards.open_shard", None)
    run.activations("harmful", layer=[0, 2]).load()
    assert len(sizes) == 2 * 3
    monkeypatch.undo()
    older = captured_run(tmp_path)
    for record in (tmp_path / "runs/tiny-0/shards").rglob("*.json"):
        reseal(record, layers={})
    (tmp_path / "runs/tiny-0/COMPLETE").unlink()
    np.testing.assert_array_equal(
        theodolite.open_run(older.store, older.id).activations("harmful"), run.activations("harmful")
    )


@each("site, layer, size", [("resid_mid", 2, 4), ("resid_pre", 0, 1), ("resid_final", None, 7), ("resid_mid", 1, 100)])
def test_batches_have_each_vector_once_in_an_order_of_the_seed(run, monkeypatch, site, layer, size):
    monkeypatch.setattr(batches, "BLOCK_BYTES", 4 * 8 * 8)  # two shards
    whole = run.activations("harmful", site, layer=layer, position=-1).values
    found = list(run.batches("harmful", site, layer, size, 3, position=-1))
    assert {len(batch) for batch in found[:-1]} <= {size}
    joined = np.concatenate(found)
    assert sorted(map(tuple, joined)) == sorted(map(tuple, whole))
    np.testing.assert_array_equal(np.concatenate(list(run.batches("harmful", site, layer, 10, 3, position=-1))), joined)
    assert not np.array_equal(np.concatenate(list(run.batches("harmful", site, layer, 10, 4, position=-1))), joined)
    for start in range(len(found) + 2):
        rest = list(run.batches("harmful", site, layer, size, 3, position=-1, start=start, kind="torch"))
        assert all(isinstance(batch, torch.Tensor) for batch in rest)
        assert [batch.tolist() for batch in rest] == [batch.tolist() for batch in found[start:]]


def test_batches_leave_out_what_cannot_be_used(tmp_path):
    arrays = draw_sets()
    arrays["harmful"]["resid_pre"][4] = np.nan
    stored = store_run(tmp_path, arrays, quarantined={"harmful": {4: "overflow"}})
    run = theodolite.open_run(stored.store, stored.id)
    values = np.concatenate(list(run.batches("harmful", "resid_pre", 1, 4)))
    assert values.shape == (9, 8)  # each prompt has one token, so none at -2
    assert np.isfinite(values).all()
    with pytest.raises(ResultsNotFoundError, match="no prompt of harmful"):
        run.batches("harmful", "resid_pre", 1, 4, position=-2)


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
    with pytest.raises(SpecError, match=reason):
        run.batches(**{"layer": 1, **given})


@each(
    "given, reason",
    [
        ({}, "layer: not given"),
        ({"layer": 1, "size": 0}, "size: given 0"),
        ({"layer": 1, "start": -1}, "start: given -1"),
        ({"layer": 1, "size": 2.5}, "size: given 2.5; allowed: a whole number of at least 1"),
        ({"layer": 1, "seed": -1}, "seed: given -1"),
        ({"layer": 1, "kind": "jax"}, "allowed: numpy, torch"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_at_once(run, given, reason):
    with pytest.raises(SpecError, match=reason):
        run.batches("harmful", **given)


@each("damage", [lambda content: content[:20] + b"x" + content[21:], lambda _: b"", lambda content: content[:30], None])
def test_a_damaged_layer_is_refused_when_it_is_read_and_the_others_are_not(tmp_path, damage):
    stored = captured_run(tmp_path)
    first = tmp_path / "runs" / stored.id / "activations.zarr/harmful/resid_pre/c/0/0/0/0"
    content = first.read_bytes()
    if damage is None:
        first.unlink()
    else:
        first.write_bytes(damage(content))
    run = theodolite.open_run(stored.store, stored.id)
    for read in (run.activations("harmful", layer=0).load, lambda: list(run.batches("harmful", "resid_pre", 0, 4))):
        with pytest.raises(RunDamagedError, match="shard harmful/00000, resid_pre"):
            read()
    if first.exists() and first.stat().st_size == len(content):
        assert np.isfinite(run.activations("harmful", layer=3)).all()
