"""Exported activations are those of the run, in files of other tools; a repeated export mends what is missing."""

import hashlib
import json
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from safetensors import safe_open
from support.commands import theodolite as command
from support.each import each
from support.faulty_bucket import faulty_bucket
from support.serving import draw_sets
from support.stored import store_run

import theodolite
from theodolite.errors import ResultsNotFoundError, SpecError
from theodolite.store.objects import get, open_location


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    arrays = draw_sets()
    arrays["nouns"]["resid_pre"][4] = np.nan
    for of_set in arrays.values():
        of_set["head_out"] = of_set["resid_pre"].reshape(*of_set["resid_pre"].shape[:-1], 2, 4)
    stored = store_run(tmp_path_factory.mktemp("files"), arrays, quarantined={"nouns": {4: "overflow"}})
    return theodolite.open_run(stored.store, stored.id)


LEFT = [0, 1, 2, 3, 5]


def read_npy(folder, column):
    return np.concatenate([np.load(file) for file in sorted(folder.glob(f"{column}.[0-9]*.npy"))])


def read_safetensors(folder, column):
    names = json.loads((folder / "activations.safetensors.index.json").read_text())["weight_map"]
    parts = []
    for name in sorted(name for name in names if name.rpartition(".")[0] == column):
        with safe_open(folder / names[name], "np") as file:
            assert json.loads(file.metadata()["theodolite"])["set"] == "nouns"
            parts.append(file.get_tensor(name))
    return np.concatenate(parts)


def read_arrow(folder, column):
    """Return a column as SAELens reads it."""
    found = datasets.load_from_disk(folder)
    found.set_format("torch", columns=[column, "token_ids"])
    if column.startswith("blocks"):
        assert found.features[column].shape == found[0:2][column].shape[1:]
        assert found[0:2]["token_ids"].shape == (2, 1)
    values = datasets.load_from_disk(folder).with_format("torch")[:][column]
    assert isinstance(values, torch.Tensor)
    return values.numpy()


READ = {"arrow": read_arrow, "safetensors": read_safetensors, "npy": read_npy}


HOOKS = {
    "resid_pre": "blocks.{}.hook_resid_pre",
    "head_out": "blocks.{}.attn.hook_z",
    "resid_final": "blocks.3.hook_resid_post",
}


@each("site", list(HOOKS))
@each("to", list(READ))
def test_every_format_has_the_activations_of_the_run(run, tmp_path, to, site):
    layers = [] if site == "resid_final" else [2, 0]
    folder = Path(run.export_activations("nouns", site, layer=layers, to=to, output=tmp_path / "out"))
    for layer in layers or [None]:
        own = run.activations("nouns", site, layer=layer, position=[-1]).values[LEFT]
        np.testing.assert_array_equal(READ[to](folder, HOOKS[site].format(layer)), own.reshape(5, 1, 8))
    assert READ[to](folder, "sample").tolist() == LEFT
    tokens = run.activations("nouns", layer=0, position=[-1])["token_id"]
    np.testing.assert_array_equal(READ[to](folder, "token_ids"), tokens[LEFT])
    request = json.loads((folder / "export.json").read_text())
    assert (request["left_out"], request["shape"], request["run_id"]) == (1, [5, 1, 8], run.id)
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert {file.name for file in folder.iterdir()} == {*sums, "SHA256SUMS"}
    assert all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == checksum for name, checksum in sums.items())


@each("to", list(READ))
def test_a_repeated_export_writes_what_is_missing_or_damaged(run, tmp_path, monkeypatch, to):
    out = tmp_path / "out"
    export = partial(run.export_activations, "harmless", layer=1, position=-1, to=to, output=out)
    export()
    whole = {file.name: file.read_bytes() for file in out.iterdir()}
    kept, damaged, missing, *_ = sorted(name for name in whole if "0" in name)
    (out / damaged).write_bytes(b"damaged")
    (out / missing).unlink()
    before = (out / kept).stat().st_mtime_ns
    export()
    assert {file.name: file.read_bytes() for file in out.iterdir()} == whole
    assert to == "npy" or (out / kept).stat().st_mtime_ns == before
    (out / "SHA256SUMS").unlink()  # as after an interruption
    monkeypatch.setattr("theodolite.activation_files.read_layers", None)
    export()
    assert {file.name: file.read_bytes() for file in out.iterdir()} == whole


def test_a_bucket_gets_the_same_objects_as_a_folder(run, tmp_path, monkeypatch):
    with faulty_bucket() as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        url = run.export_activations("nouns", layer=1, to="npy", output=f"{bucket.url}/out")
        run.export_activations("nouns", layer=1, to="npy", output=tmp_path)
        location = open_location(url)
        assert all(get(location, file.name) == file.read_bytes() for file in tmp_path.iterdir())


@each(
    "given, reason",
    [
        ({"to": "csv"}, "to: given 'csv'; allowed: arrow, safetensors, npy"),
        ({"layer": 9}, "layer: there is no 9; the run has 0 to 3"),
        ({"set": "none"}, "set: there is no 'none'"),
        ({"position": -2}, "position: there is no -2"),
    ],
)
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(run, tmp_path, given, reason):
    with pytest.raises(SpecError, match=reason):
        run.export_activations(**{"set": "nouns", "layer": 1, "output": tmp_path / "out", **given})
    assert not (tmp_path / "out").exists()


def test_an_output_with_something_else_is_refused(run, tmp_path):
    run.export_activations("nouns", layer=1, output=tmp_path)
    with pytest.raises(SpecError, match="holds other files or another export"):
        run.export_activations("nouns", layer=2, output=tmp_path)
    (tmp_path / "export.json").unlink()
    with pytest.raises(SpecError, match="choose an empty folder"):
        run.export_activations("nouns", layer=1, output=tmp_path)
    with pytest.raises(ResultsNotFoundError, match="no prompt of harmful"):
        run.export_activations("harmful", layer=1, output=tmp_path / "other")  # each prompt has one token


def test_the_command_exports_activations_and_says_what_is_missing(run, tmp_path):
    export = partial(command, "run", "export", run.id, "--store", run.url)
    done = export("--activations", "--set", "nouns", "--layer", 1, "--output", tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, str(tmp_path))
    assert len(datasets.load_from_disk(tmp_path)) == 5
    assert "--set: not given; the run has harmful, harmless, nouns" in export("--activations").stderr
    assert "--contrast: not given" in export().stderr


@each(
    "options, reason",
    [
        (["--activations", "--set", "nouns", "--format", "npy"], "--format: given, but allowed only without"),
        (["--activations", "--set", "nouns", "--contrast", "refusal"], "--contrast: given, but allowed only without"),
        (["--contrast", "refusal", "--to", "npy"], "--to: given, but allowed only with --activations"),
        (["--contrast", "refusal", "--set", "nouns"], "--set: given, but allowed only with --activations"),
    ],
)
def test_the_command_refuses_options_of_the_other_kind(run, tmp_path, options, reason):
    done = command("run", "export", run.id, "--store", run.url, "--output", tmp_path / "out", *options)
    assert done.returncode != 0
    assert reason in done.stderr
    assert not (tmp_path / "out").exists()


def test_layers_can_be_numbers_of_numpy(run, tmp_path):
    run.export_activations("nouns", layer=np.arange(2), position=np.int64(-1), to="npy", output=tmp_path)
    assert json.loads((tmp_path / "export.json").read_text())["layers"] == [0, 1]
