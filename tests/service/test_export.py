"""Check exported directions by reading them with safetensors, NumPy and gguf."""

import base64
import json
from dataclasses import replace

import gguf
import numpy as np
import pytest
from safetensors import safe_open
from support.commands import theodolite as theodolite_command
from support.each import each
from support.finished_runs import adapter_facts, finished_run, model_facts

import theodolite
from theodolite.errors import SpecError
from theodolite.export import FORMATS, encode_control_vector, encode_directions, source_block
from theodolite.query.exports import CONVENTION, LAYER_NUMBERING
from theodolite.store.runs import open_run

METADATA = {"family": "llama", "site": "resid_pre", "run_id": "tiny-0"}
MOMENTS = {"norm_mean": [2.0, 4.0, 8.0, 16.0]}


def unit(axis):
    return np.eye(8)[axis]


def finished(tmp_path, sites=("resid_pre", "resid_mid", "resid_post"), norm=1.0, **changes):
    """A run whose direction at layer l and the i-th site is axis l+i; layer 0 at the first site has no direction."""
    directions = np.array([[[unit(index + layer) for layer in range(4)]] for index in range(len(sites))])[None]
    norms = np.full((1, len(sites), 1, 4), norm)
    norms[0, 0, 0, 0] = 0
    directions[0, 0, 0, 0] = np.nan
    groups = {
        "curves": {"difference_norm": {"raw": norms}},
        "directions": {"direction": {"raw": directions}},
        "moments": MOMENTS,
    }
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
    path = run.export("refusal", "resid_pre", format="gguf", output=tmp_path / "pre.gguf")
    tensors, fields = read_gguf(path)
    # Layer 0 has no direction, and the input of layer 1 is the output of block 0, which llama.cpp skips.
    assert list(tensors) == ["direction.1", "direction.2"]
    np.testing.assert_array_equal(tensors["direction.1"].data, unit(2))
    np.testing.assert_array_equal(tensors["direction.2"].data, unit(3))
    assert {tensor.tensor_type.name for tensor in tensors.values()} == {"F32"}
    assert fields["general.architecture"] == "controlvector"
    assert fields["controlvector.model_hint"] == "llama"
    assert fields["controlvector.layer_count"] == 2
    assert fields["theodolite.layer"] == [2, 3]
    assert fields["theodolite.block"] == [1, 2]
    assert fields["theodolite.positive"] == "harmful"
    assert fields["theodolite.norm_mean_positive"] == [8.0, 16.0]
    assert fields["theodolite.layer_numbering"].startswith("tensor direction.N: the output of block N")


def added_by_llama_cpp(path, n_layers):
    """What llama.cpp adds to the outputs of blocks: `common_control_vector_load_one`, `llama_adapter_cvec::apply`."""
    tensors, data = read_gguf(path)[0], np.zeros((n_layers, 8), np.float32)
    for name, tensor in tensors.items():
        index = int(name.removeprefix("direction."))
        assert index > 0  # it refuses a file with direction.0
        data[index - 1] += tensor.data  # "layer 1 at [0]"
    return {block: data[block - 1] for block in range(1, n_layers)}


@each("site, blocks_before", [("resid_pre", 1), ("resid_post", 0)])
def test_llama_cpp_adds_each_direction_to_its_own_stream(tmp_path, run, site, blocks_before):
    path = run.export("refusal", site, format="gguf", output=tmp_path / "vector.gguf")
    for block, added in added_by_llama_cpp(path, 4).items():
        layer = block + blocks_before  # the output of block l is resid_post of layer l, and resid_pre of layer l + 1
        expected = run.direction("refusal", site, layer) if layer < 4 else np.zeros(8)
        np.testing.assert_array_equal(added, expected)


def test_resid_post_is_stored_under_its_own_block(tmp_path, run):
    path = run.export("refusal", "resid_post", layer=[3, 1], format="gguf", output=tmp_path / "post.gguf")
    tensors, _ = read_gguf(path)
    assert set(tensors) == {"direction.1", "direction.3"}
    np.testing.assert_array_equal(tensors["direction.3"].data, unit(5))
    assert [source_block("resid_pre", 4), source_block("resid_post", 3)] == [3, 3]


def test_both_names_of_one_stream_give_the_same_tensor(tmp_path, run):
    pre = run.export("refusal", "resid_pre", layer=[3], format="gguf", output=tmp_path / "pre.gguf")
    post = run.export("refusal", "resid_post", layer=[2], format="gguf", output=tmp_path / "post.gguf")
    assert list(read_gguf(pre)[0]) == list(read_gguf(post)[0]) == ["direction.2"]


@each(
    "site, layers, message",
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
        run.export("refusal", site, layer=layers, format="gguf", output=tmp_path / "no.gguf")
    assert not (tmp_path / "no.gguf").exists()


@each("site", ["attn_out", "mlp_out", "resid_mid_sum"])
def test_branches_are_rejected_for_control_vectors(site):
    with pytest.raises(SpecError, match=f"site: given '{site}'"):
        encode_control_vector({2: unit(0)}, {**METADATA, "site": site})


def test_an_encoder_has_no_control_vector(tmp_path):
    opened = finished(tmp_path)
    run = open_run(opened.url, opened.id)
    parity = {**run.record.parity, "post_norm": True}
    encoder = replace(run, record=run.record.model_copy(update={"parity": parity}))
    with pytest.raises(SpecError, match=r"tiny-0 is an encoder, and llama\.cpp adds vectors only to decoders"):
        encode_directions(encoder, "refusal", "resid_pre", format="gguf")
    opened._opened = encoder
    with pytest.raises(SpecError, match="tiny-0 is an encoder"):
        theodolite.export_vector(np.ones(8), opened, layer=2, operation="add", format="gguf", output=tmp_path / "x")


def test_directions_only_below_the_blocks_of_llama_cpp_raise(tmp_path):
    directions = np.tile(unit(3), (1, 2, 1, 4, 1)).astype(float)
    directions[:, :, :, 2:] = np.nan
    groups = {
        "curves": {"difference_norm": {"raw": 1.0}},
        "directions": {"direction": {"raw": directions}},
        "moments": MOMENTS,
    }
    run = finished_run(tmp_path, groups)
    with pytest.raises(SpecError, match=r"refusal has directions only below layer 2, but llama\.cpp adds"):
        encode_directions(run, "refusal", "resid_pre", format="gguf")


def test_safetensors_has_the_metadata_of_the_vector(tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = run.export("refusal", "resid_mid", layer=[2])
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
        "model_dtype": "float32",
        "contrast": "refusal",
        "positive": "harmful",
        "negative": "harmless",
        "site": "resid_mid",
        "layer": "2",
        "position": "-1",
        "layer_numbering": LAYER_NUMBERING,
        "operation": "add or project",
        "convention": CONVENTION,
        "vector_norm": "1.0",
        "n_positive": "4",
        "n_negative": "4",
        "norm_mean_positive": "8.0",
        "norm_mean_negative": "8.0",
        "difference_norm": "1.0",
        "difference_norm_debiased": "nan",
        "noise_share": "nan",
        "reliability": "nan",
        "written_by": f"theodolite {theodolite.__version__}",
    }


def test_a_hub_model_is_named_with_its_owner(tmp_path):
    run = finished(tmp_path, model=model_facts("7B", kind="hub", place="somebody/7B"))
    path = run.export("refusal", "resid_pre", layer=[1], output=tmp_path / "one.safetensors")
    with safe_open(path, "numpy") as file:
        assert file.metadata()["model"] == "somebody/7B"


def test_random_weights_are_not_named_by_a_hub_id(tmp_path):
    facts = model_facts("7B (random weights)", kind="hub", place="somebody/7B")
    run = finished(tmp_path, model=facts.model_copy(update={"weights": "random", "seed": 0}))
    path = run.export("refusal", "resid_pre", layer=[1], output=tmp_path / "one.safetensors")
    with safe_open(path, "numpy") as file:
        assert file.metadata()["model"] == "7B (random weights)"


def test_weights_with_an_adapter_are_not_named_by_a_hub_id(tmp_path):
    facts = model_facts("7B + lora", kind="hub", place="somebody/7B", adapter=adapter_facts())
    path = finished(tmp_path, model=facts).export(
        "refusal", "resid_pre", layer=[1], output=tmp_path / "one.safetensors"
    )
    with safe_open(path, "numpy") as file:
        assert file.metadata()["model"] == "7B + lora"
        assert file.metadata()["revision"] == f"sha256:0+{'a' * 40}"


def test_by_default_all_layers_with_a_direction_are_written(tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = run.export("refusal", "resid_pre")
    assert str(path) == "tiny-0.refusal.resid_pre.safetensors"
    with safe_open(path, "numpy") as file:
        assert set(file.keys()) == {"direction.1", "direction.2", "direction.3"}
        np.testing.assert_array_equal(file.get_tensor("direction.3"), unit(3))
        assert file.metadata()["layer"] == "1,2,3"


def test_the_metadata_of_a_numpy_file_is_in_a_json_file(tmp_path, run):
    one = run.export("refusal", "resid_post", layer=[1], format="npy", output=tmp_path / "one.npy")
    np.testing.assert_array_equal(np.load(one), unit(3))
    assert np.load(one).dtype == np.float32
    assert json.loads((tmp_path / "one.npy.json").read_text())["site"] == "resid_post"
    several = run.export("refusal", "resid_post", layer=[2, 0], format="npy", output=tmp_path / "two.npy")
    np.testing.assert_array_equal(np.load(several), [unit(4), unit(2)])
    assert json.loads((tmp_path / "two.npy.json").read_text())["layer"] == [2, 0]
    assert sorted(path.name for path in tmp_path.glob("*.npy*")) == [
        "one.npy",
        "one.npy.json",
        "two.npy",
        "two.npy.json",
    ]


@each(
    "choices, message",
    [
        ({"format": "onnx"}, "format: given 'onnx'; allowed: safetensors, npy, gguf, vllm-lens, json"),
        ({"contrast": "other"}, "contrast: tiny-0 has no 'other'; it has refusal"),
        ({"site": "attn_out"}, "site: tiny-0 has no 'attn_out'; it has resid_pre"),
        ({"position": -2}, "position: tiny-0 has no -2; it has -1"),
        (
            {"layer": [0]},
            "refusal has no direction at resid_pre of layer 0, position -1: the means of its sets are equal",
        ),
    ],
)
def test_the_error_for_an_invalid_choice_lists_the_allowed_values(run, tmp_path, choices, message):
    arguments = {"contrast": "refusal", "site": "resid_pre", "output": tmp_path / "no.npy", **choices}
    with pytest.raises(SpecError, match=message):
        run.export(**arguments)
    assert not list(tmp_path.glob("no*"))


def test_a_contrast_with_equal_means_raises(tmp_path):
    run = finished_run(tmp_path, {"curves": {"difference_norm": {"raw": 0}}, "directions": {}, "moments": MOMENTS})
    with pytest.raises(SpecError, match="refusal has no direction at resid_pre of any layer"):
        theodolite.open_run(run.store, run.id).export("refusal")


def test_the_error_for_an_unwritable_file_names_it(run, tmp_path):
    with pytest.raises(SpecError, match=r"output: cannot write .*none/a\.safetensors"):
        run.export("refusal", "resid_pre", layer=[1], output=tmp_path / "none" / "a.safetensors")


@each("format", FORMATS)
def test_the_same_request_gives_the_same_bytes(run, format):
    stored = open_run(run.url, run.id)
    contents = {encode_directions(stored, "refusal", "resid_pre", format=format) for _ in range(3)}
    assert len(contents) == 1


def test_the_metadata_have_the_numbers_of_each_layer(tmp_path):
    third, noise = 1 / 3, [0.8, 1.5, 0.25, 0.02]
    directions = {"direction": {"raw": np.tile(unit(3), (1, 2, 1, 4, 1))}, "noise_share": noise}
    directions |= {"reliability": [0.1, 0, 0.75, third], "difference_norm_debiased": [0.5, np.nan, 2, third]}
    groups = {"curves": {"difference_norm": {"raw": [1, 2, 3, third]}}, "directions": directions, "moments": MOMENTS}
    run = finished_run(tmp_path / "store", groups)
    reader = theodolite.open_run(run.store, run.id)
    with pytest.warns(UserWarning, match=r"refusal: mostly noise at layer 3, 1 \(reliability below 0.5\)"):
        path = reader.export("refusal", layer=[3, 1], output=tmp_path / "a")
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    assert metadata["reliability"] == "0.3333333333333333,0.0"
    assert metadata["noise_share"] == "0.02,1.5"
    assert metadata["difference_norm"] == "0.3333333333333333,2.0"
    assert metadata["difference_norm_debiased"] == "0.3333333333333333,nan"
    command = ("run", "export", run.id, "--contrast", "refusal", "--layer", 3, "--layer", 2, "--format", "gguf")
    said = theodolite_command(*command, "--output", tmp_path / "b", "--store", run.store)
    assert (said.returncode, said.stderr.count("\n")) == (0, 1)
    assert said.stderr.startswith("warning: refusal: mostly noise at layer 3 (")
    _, fields = read_gguf(tmp_path / "b")
    assert fields["theodolite.difference_norm"] == [third, 3.0]
    with pytest.warns(UserWarning, match="at layer 1 "):
        only_metadata = reader.export("refusal", layer=1, format="json", output=tmp_path / "c").read_text()
    assert json.loads(only_metadata)["difference_norm_debiased"] == [None]
    assert json.loads(only_metadata)["vector_norm"] == 1


READ = {"safetensors": "safetensors", "npy": "npy", "gguf": "gguf", "vllm-lens": "json"}
"""The formats that are read back, and the ends of their files."""


@each("format", [*READ])
def test_a_vector_of_ones_own_is_read_back_with_what_it_is_for(tmp_path, format):
    run = finished(tmp_path / "store")
    given = {2: np.arange(8.0), 3: -np.ones(8)}
    path = tmp_path / f"own.{READ[format]}"
    assert path == theodolite.export_vector(given, run, operation="add", format=format, output=path)
    found = theodolite.load_vector(path)
    assert (found.site, found.operation, found.facts["run_id"]) == ("resid_pre", "add", "tiny-0")
    assert (found.facts["revision"], found.facts["model_dtype"]) == ("sha256:0", "float32")
    assert found.layers == [2, 3]
    assert found.added is found.vectors
    for layer, vector in given.items():
        np.testing.assert_array_equal(found.vectors[layer], vector)
    norms = found.facts["norm_mean_harmful"]
    assert (norms.split(",") if isinstance(norms, str) else norms)[0] in ("8.0", 8.0)


@each("format", [*READ])
def test_an_exported_direction_is_read_back_with_what_is_added(tmp_path, format):
    run = finished(tmp_path / "store", norm=2.5)
    found = theodolite.load_vector(
        run.export("refusal", layer=[2, 3], format=format, output=tmp_path / f"a.{READ[format]}")
    )
    is_scaled = format == "vllm-lens"  # whose tool adds the vector as it is
    assert (found.site, found.layers) == ("resid_pre", [2, 3])
    assert found.operation == ("add" if is_scaled else "add or project")
    for layer in (2, 3):
        direction = run.direction("refusal", "resid_pre", layer)
        np.testing.assert_array_equal(found.vectors[layer], direction * (2.5 if is_scaled else 1))
        np.testing.assert_array_equal(found.added[layer], direction * 2.5)
        assert found.added[layer].dtype == np.float32


def test_a_steering_vector_of_vllm_lens_names_blocks_and_has_the_difference(tmp_path, monkeypatch):
    run = finished(tmp_path / "store", norm=2.5)
    monkeypatch.chdir(tmp_path)
    assert run.export("refusal", layer=1, format="vllm-lens").name == "tiny-0.refusal.resid_pre.1.vllm-lens.json"
    content = json.loads(run.export("refusal", format="vllm-lens", output=tmp_path / "a.json").read_text())
    # The input of layer 1 is the output of block 0, which vllm-lens can change.
    assert content["layer_indices"] == [0, 1, 2]
    tensor = content["activations"]
    stacked = np.frombuffer(base64.b64decode(tensor["data"]), tensor["dtype"]).reshape(tensor["shape"])
    np.testing.assert_array_equal(stacked, 2.5 * np.array([unit(1), unit(2), unit(3)]))
    assert (content["scale"], content["norm_match"]) == (1.0, False)
    assert content["theodolite"]["vector_norm"] == content["theodolite"]["difference_norm"] == [2.5] * 3
    content["activations"]["compression"] = "zstd"
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(SpecError, match="without compression"):
        theodolite.load_vector(tmp_path / "a.json")


@each("format", ["safetensors", "npy"])
def test_stacked_directions_are_read_back_by_contrast(tmp_path, format):
    contrasts = {name: {"positive": "harmful", "negative": "harmless"} for name in ("first", "second")}
    both = np.stack([np.tile(unit(axis), (2, 1, 4, 1)) for axis in (4, 6)])
    groups = {
        "curves": {"difference_norm": {"raw": np.array([2.0, 3.0])[:, None, None, None]}},
        "directions": {"direction": {"raw": both}},
        "moments": MOMENTS,
    }
    run = finished_run(tmp_path / "store", groups, contrasts=contrasts)
    path = theodolite.open_run(run.store, run.id).export(
        "first,second", layer=[1, 2], format=format, output=tmp_path / f"a.{format}"
    )
    found = theodolite.load_vector(path, "second")
    assert (found.facts["contrast"], found.site, found.layers) == ("second", "resid_pre", [1, 2])
    np.testing.assert_array_equal(found.added[2], 3 * unit(6))
    for given in (None, "third"):
        with pytest.raises(SpecError, match=r"contrast: given .*; .* has (first, second|second, first)"):
            theodolite.load_vector(path, given)


def test_a_control_vector_of_another_tool_acts_on_outputs_of_blocks(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "controlvector")
    writer.add_tensor("direction.5", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = theodolite.load_vector(tmp_path / "other.gguf")
    assert (found.site, found.operation, list(found.vectors)) == ("resid_post", "add", [5])


@each(
    "changed, message",
    [
        ({"vector": np.ones(9)}, "it has 9 numbers, but tiny has d_model 8"),
        ({"vector": np.ones((2, 8))}, r"given the shape \(2, 8\) at layer 1; allowed: \(d_model\)"),
        ({"vector": np.zeros(8)}, "that of layer 1 is 0"),
        ({"vector": np.full(8, np.nan)}, "numbers that are not finite"),
        ({"vector": {0: np.ones(8), 1: np.ones(7)}}, "different widths"),
        ({"layer": 4}, "there is no layer 4; tiny has 0 to 3"),
        ({"layer": None}, "layer: not given"),
        ({"site": "head_out"}, "site: given 'head_out'; allowed: resid_pre"),
        ({"operation": "multiply"}, "operation: given 'multiply'; allowed: add, project"),
        ({"operation": "project", "format": "gguf"}, "llama.cpp adds vectors"),
        ({"operation": "project", "format": "vllm-lens"}, "vllm-lens adds vectors; allowed for project: safetensors"),
        ({"format": "gguf"}, "layer: given 1, but llama.cpp .* from the output of block 1 on; .* layer 2 and above"),
        ({"layer": 0, "format": "vllm-lens"}, "layer: given 0, but vllm-lens .*: layer 1 and above"),
        ({"site": "resid_mid", "format": "vllm-lens"}, "site: given 'resid_mid'"),
        ({"vector": [[1.0], [1.0, 2.0]]}, "that of layer 1 is no array of numbers"),
        ({"vector": "abc"}, "that of layer 1 is no array of numbers"),
        ({"vector": np.ones(8) * 1j}, "no array of numbers: its numbers are complex"),
        ({"vector": np.full(8, 1e39)}, "not finite, in float32"),
        ({"vector": np.full(8, 1e-50)}, "that of layer 1 is 0"),
        ({"layer": -1}, "layer: "),
        ({"layer": 1.5}, "layer: given 1.5; allowed: a whole number"),
        ({"vector": {"x": np.ones(8)}}, "layer: given 'x'"),
        ({"format": "onnx"}, "format: given 'onnx'"),
    ],
)
def test_a_vector_that_cannot_be_applied_is_refused(tmp_path, changed, message):
    choices = {"vector": np.ones(8), "layer": 1, "operation": "add", "output": tmp_path / "x"} | changed
    with pytest.raises(SpecError, match=message):
        theodolite.export_vector(model=finished(tmp_path / "store"), **choices)
    assert not (tmp_path / "x").exists()


def test_a_file_without_vectors_is_named(tmp_path):
    np.save(tmp_path / "alone.npy", np.ones(8))
    np.save(tmp_path / "unknown.npy", np.full(8, np.nan))
    (tmp_path / "unknown.npy.json").write_text('{"layer": [1], "site": "resid_pre"}')
    (tmp_path / "broken.safetensors").write_bytes(b"x")
    (tmp_path / "facts.json").write_text('{"layer": [1]}')
    for name in ("alone.npy", "unknown.npy", "broken.safetensors", "none.gguf", "facts.json", "text.txt"):
        with pytest.raises(SpecError, match=name) as refused:
            theodolite.load_vector(tmp_path / name)
        assert "\n" not in str(refused.value)
