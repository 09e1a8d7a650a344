"""Check exported directions by reading them with safetensors, NumPy and gguf."""

import json

import gguf
import numpy as np
import pytest
from safetensors import safe_open
from support.finished_runs import finished_run, model_facts

import theodolite
from theodolite.errors import SpecError
from theodolite.export import encode_control_vector, encode_npy, export_direction, source_block

METADATA = {"family": "llama", "site": "resid_pre", "run_id": "tiny-0"}


def unit(axis):
    return np.eye(8)[axis]


def finished(tmp_path, sites=("resid_pre", "resid_mid", "resid_post"), **changes):
    """A run whose direction at layer l and the i-th site is axis l+i; layer 0 at the first site has no direction."""
    directions = np.array([[[unit(index + layer) for layer in range(4)]] for index in range(len(sites))])[None]
    norms = np.ones((1, len(sites), 1, 4))
    norms[0, 0, 0, 0] = 0
    directions[0, 0, 0, 0] = np.nan
    groups = {"curves": {"difference_norm": norms}, "directions": {"direction": directions}}
    run = finished_run(tmp_path, groups, sites=sites, **changes)
    return theodolite.open_run(run.store, run.id)


@pytest.fixture
def run(tmp_path):
    return finished(tmp_path / "store")


def read_gguf(path):
    reader = gguf.GGUFReader(path)
    return {tensor.name: tensor for tensor in reader.tensors}, {
        name: field.contents() for name, field in reader.fields.items()
    }


def test_a_control_vector_has_directions_by_source_block(tmp_path, run):
    path = export_direction(run, "refusal", "resid_pre", format="gguf", output=tmp_path / "pre.gguf")
    tensors, fields = read_gguf(path)
    # Layer 0 has no direction, and the input of layer 1 is the output of block 0, which llama.cpp skips.
    assert list(tensors) == ["direction.1", "direction.2"]
    np.testing.assert_array_equal(tensors["direction.1"].data, unit(2))
    np.testing.assert_array_equal(tensors["direction.2"].data, unit(3))
    assert {tensor.tensor_type.name for tensor in tensors.values()} == {"F32"}
    assert fields["general.architecture"] == "controlvector"
    assert fields["controlvector.model_hint"] == "llama"
    assert fields["controlvector.layer_count"] == 2
    assert fields["theodolite.layer"] == "2,3"
    assert fields["theodolite.positive"] == "harmful"


def test_resid_post_is_stored_under_its_own_block(tmp_path, run):
    path = export_direction(run, "refusal", "resid_post", [3, 1], format="gguf", output=tmp_path / "post.gguf")
    tensors, _ = read_gguf(path)
    assert set(tensors) == {"direction.1", "direction.3"}
    np.testing.assert_array_equal(tensors["direction.3"].data, unit(5))
    assert [source_block("resid_pre", 4), source_block("resid_post", 3)] == [3, 3]


def test_both_names_of_one_stream_give_the_same_tensor(tmp_path, run):
    pre = export_direction(run, "refusal", "resid_pre", [3], format="gguf", output=tmp_path / "pre.gguf")
    post = export_direction(run, "refusal", "resid_post", [2], format="gguf", output=tmp_path / "post.gguf")
    assert list(read_gguf(pre)[0]) == list(read_gguf(post)[0]) == ["direction.2"]


@pytest.mark.parametrize(
    ("site", "layers", "message"),
    [
        (
            "resid_mid",
            [2],
            "site: given 'resid_mid', .* the output of a block; allowed: resid_pre and resid_post",
        ),
        ("resid_pre", [0], "layer: given 0, .*the output of block 1 on; allowed at resid_pre: layer 2 and above"),
        ("resid_pre", [3, 1], "layer: given 1, .*allowed at resid_pre: layer 2 and above"),
        ("resid_post", [0], "layer: given 0, .*allowed at resid_post: layer 1 and above"),
        ("resid_pre", [9], "layer: tiny-0 has no 9; it has 0 to 3"),
    ],
)
def test_the_error_for_an_unsupported_site_or_layer_lists_the_allowed_ones(run, tmp_path, site, layers, message):
    with pytest.raises(SpecError, match=message):
        export_direction(run, "refusal", site, layers, format="gguf", output=tmp_path / "no.gguf")
    assert not (tmp_path / "no.gguf").exists()


@pytest.mark.parametrize("site", ["attn_out", "mlp_out", "resid_mid_sum"])
def test_branches_are_rejected_for_control_vectors(site):
    with pytest.raises(SpecError, match=f"site: given '{site}'"):
        encode_control_vector({2: unit(0)}, {**METADATA, "site": site})


def test_an_encoder_has_no_control_vector(tmp_path, monkeypatch):
    run = finished(tmp_path)
    about = run.describe()
    about["parity"]["post_norm"] = True
    monkeypatch.setattr(type(run), "describe", lambda _run: about)
    with pytest.raises(SpecError, match=r"tiny-0 is an encoder, and llama\.cpp adds control vectors only to decoders"):
        export_direction(run, "refusal", "resid_pre", format="gguf")


def test_safetensors_has_the_metadata_of_the_vector(tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = export_direction(run, "refusal", "resid_mid", [2])
    assert str(path) == "tiny-0.refusal.resid_mid.2.safetensors"
    with safe_open(path, "numpy") as file:
        assert list(file.keys()) == ["direction"]
        vector, metadata = file.get_tensor("direction"), file.metadata()
    np.testing.assert_array_equal(vector, unit(3))
    assert vector.dtype == np.float32
    assert metadata == {
        "run_id": "tiny-0",
        "model": "tiny",
        "revision": "sha256:0",
        "family": "llama",
        "contrast": "refusal",
        "positive": "harmful",
        "negative": "harmless",
        "site": "resid_mid",
        "layer": "2",
        "position": "-1",
        "convention": "positive minus negative, unit length",
        "written_by": f"theodolite {theodolite.__version__}",
        "n_positive": "4",
        "n_negative": "4",
    }


def test_a_hub_model_is_named_with_its_owner(tmp_path):
    run = finished(tmp_path, model=model_facts("7B", kind="hub", place="somebody/7B"))
    path = export_direction(run, "refusal", "resid_pre", [1], output=tmp_path / "one.safetensors")
    with safe_open(path, "numpy") as file:
        assert file.metadata()["model"] == "somebody/7B"


def test_random_weights_are_not_named_by_a_hub_id(tmp_path):
    facts = model_facts("7B (random weights)", kind="hub", place="somebody/7B")
    run = finished(tmp_path, model=facts.model_copy(update={"weights": "random", "seed": 0}))
    path = export_direction(run, "refusal", "resid_pre", [1], output=tmp_path / "one.safetensors")
    with safe_open(path, "numpy") as file:
        assert file.metadata()["model"] == "7B (random weights)"


def test_by_default_all_layers_with_a_direction_are_written(tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = export_direction(run, "refusal", "resid_pre")
    assert str(path) == "tiny-0.refusal.resid_pre.safetensors"
    with safe_open(path, "numpy") as file:
        assert set(file.keys()) == {"direction.1", "direction.2", "direction.3"}
        np.testing.assert_array_equal(file.get_tensor("direction.3"), unit(3))
        assert file.metadata()["layer"] == "1,2,3"


def test_the_metadata_of_a_numpy_file_is_in_a_json_file(tmp_path, run):
    one = export_direction(run, "refusal", "resid_post", [1], format="npy", output=tmp_path / "one.npy")
    np.testing.assert_array_equal(np.load(one), unit(3))
    assert np.load(one).dtype == np.float32
    assert json.loads((tmp_path / "one.npy.json").read_text())["site"] == "resid_post"
    several = export_direction(run, "refusal", "resid_post", [2, 0], format="npy", output=tmp_path / "two.npy")
    np.testing.assert_array_equal(np.load(several), [unit(4), unit(2)])
    assert json.loads((tmp_path / "two.npy.json").read_text())["layer"] == "2,0"
    assert sorted(path.name for path in tmp_path.glob("*.npy*")) == [
        "one.npy",
        "one.npy.json",
        "two.npy",
        "two.npy.json",
    ]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"format": "onnx"}, "format: given 'onnx'; allowed: safetensors, npy, gguf"),
        ({"contrast": "other"}, "contrast: tiny-0 has no 'other'; it has: refusal"),
        ({"site": "attn_out"}, "site: tiny-0 has no 'attn_out'; it has: resid_pre"),
        ({"position": -2}, "position: tiny-0 has no -2; it has: -1"),
        (
            {"layers": [0]},
            "refusal has no direction at resid_pre of layer 0, position -1: the means of its sets are equal",
        ),
    ],
)
def test_the_error_for_an_invalid_choice_lists_the_allowed_values(run, tmp_path, choices, message):
    arguments = {"contrast": "refusal", "site": "resid_pre", "output": tmp_path / "no.npy", **choices}
    with pytest.raises(SpecError, match=message):
        export_direction(run, **arguments)
    assert not list(tmp_path.glob("no*"))


def test_a_contrast_with_equal_means_raises(tmp_path):
    run = finished_run(tmp_path, {"curves": {"difference_norm": 0}, "directions": {}})
    with pytest.raises(SpecError, match="refusal has no direction at resid_pre of any layer"):
        export_direction(theodolite.open_run(run.store, run.id), "refusal", "resid_pre")


def test_the_error_for_an_unwritable_file_names_it(run, tmp_path):
    with pytest.raises(SpecError, match=r"output: cannot write .*none/a\.safetensors"):
        export_direction(run, "refusal", "resid_pre", [1], output=tmp_path / "none" / "a.safetensors")


def test_the_same_vector_gives_the_same_bytes():
    vectors = {2: unit(1), 3: unit(2)}
    for encode in (encode_npy, encode_control_vector):  # safetensors has no fixed order of metadata
        assert encode(vectors, METADATA) == encode(vectors, METADATA)


def test_the_metadata_have_the_reliability_of_each_layer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directions = {"direction": np.tile(unit(3), (1, 2, 1, 4, 1))}
    directions |= {"reliability": [0.1, 0.5, 0.75, 0.98], "noise_share": [0.8, 0.5, 0.25, 0.02]}
    run = finished_run(tmp_path, {"curves": {"difference_norm": 1.0}, "directions": directions})
    path = export_direction(theodolite.open_run(run.store, run.id), "refusal", "resid_pre", [1, 3])
    with safe_open(path, "numpy") as file:
        assert file.metadata()["reliability"] == "0.500,0.980"
        assert file.metadata()["noise_share"] == "0.500,0.020"
