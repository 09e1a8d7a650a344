"""Sizes that no model has are refused by name, before transformers makes anything of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from support.each import each
from support.errors import only_line
from support.gguf_files import tiny_llama, write_gguf
from support.tiny_configs import CONFIGS

from theodolite.errors import ModelError
from theodolite_jobs.models.config_sizes import check_sizes
from theodolite_jobs.models.convert import files
from theodolite_jobs.models.gguf.convert import check_gguf
from theodolite_jobs.models.gguf.header import read_header
from theodolite_jobs.models.load import load_config

FILE = Path("config.json")
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}

REFUSED = {
    "repeated kinds of attention": (
        {"attention_types": [[["global", "local"], 10**9]]},
        "attention_types is 1000000000; allowed: at most 4,096",
    ),
    "positions": ({"max_position_embeddings": 10**10}, "max_position_embeddings is 10000000000; allowed: at most"),
    "layers": ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000; allowed: at most 4,096"),
    "layers of GPT-2": ({"n_layer": 10**9}, "n_layer is 1000000000; allowed: at most 4,096"),
    "blocks of a decoder": ({"decoder_layers": 4097}, "decoder_layers is 4097; allowed: at most 4,096"),
    "features": ({"hidden_size": 10**9}, "hidden_size is 1000000000; allowed: at most 1,048,576"),
    "features as a float": ({"hidden_size": 1e9}, "hidden_size is 1000000000.0; allowed: at most 1,048,576"),
    "features of GPT-2": ({"n_embd": 2**20 + 1}, "n_embd is 1048577; allowed: at most 1,048,576"),
    "a negative width": ({"intermediate_size": -(10**9)}, "intermediate_size is -1000000000; allowed: at most"),
    "the width of one layer": ({"intermediate_size": [128, 10**9]}, "intermediate_size is 1000000000; allowed"),
    "heads": ({"num_attention_heads": 10**7}, "num_attention_heads is 10000000; allowed: at most 1,048,576"),
    "a vocabulary": ({"vocab_size": 10**12}, "vocab_size is 1000000000000; allowed: at most 16,777,216"),
    "experts": ({"num_experts": 10**6}, "num_experts is 1000000; allowed: at most 32,768"),
    "experts of all layers": (
        {"num_hidden_layers": 4096, "n_routed_experts": 2048},
        "states 4096 layers of 2048 experts; allowed: at most 1,048,576 experts together",
    ),
    "a number for no library": ({"max_position_embeddings": 10**40}, "max_position_embeddings is 1000000"),
    "a part": ({"text_config": {"num_hidden_layers": 10**6}}, "text_config.num_hidden_layers is 1000000; allowed"),
    "a part of a list": ({"parts": [{"deeper": {"n_layers": 10**6}}]}, "parts.deeper.n_layers is 1000000; allowed"),
    "kinds of layers": ({"layer_types": ["full_attention"] * 2**19}, "has more than 262,144 values"),
    "lists in lists": ({"x": json.loads("[" * 40 + "]" * 40)}, "x has more than 32 objects or lists inside each other"),
    "a long key": ({"k" * 500 + "_layers": 10**6}, "k… is 1000000; allowed"),
}


@each("case", REFUSED)
def test_a_size_that_no_model_has_is_refused_before_transformers_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    changes, message = REFUSED[case]
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda *_, **__: pytest.fail("it was read"))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes))
    with pytest.raises(ModelError) as error:
        load_config(tmp_path)
    assert message in only_line(error)
    assert str(tmp_path / "config.json") in only_line(error)
    assert len(only_line(error)) < len(str(tmp_path)) + 300


@each(
    "changes, message",
    [
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; allowed: a whole number from 1 to 4,096"),
        ({"num_hidden_layers": -2}, "num_hidden_layers is -2; allowed: a whole number from 1 to 4,096"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),
        ({"num_hidden_layers": 2.0}, "num_hidden_layers"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_attention_heads": -4}, "num_attention_heads"),
        ({"vocab_size": -1}, "vocab_size is -1; allowed: a whole number from 1 to 16,777,216"),
        ({"vocab_size": 0}, "vocab_size is 0; allowed"),
        ({"num_hidden_layers": float("inf")}, "num_hidden_layers"),
        ({"per_layer_config": {"1": {"num_hidden_layers": 8}}}, "num_hidden_layers"),
        ({"num_hidden_layers": float("nan")}, "num_hidden_layers"),
    ],
)
def test_a_size_that_is_no_positive_whole_number_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes))
    with pytest.raises(ModelError) as error:
        load_config(tmp_path)
    assert message in only_line(error)


def test_layers_that_transformers_counts_from_a_list_are_refused(tmp_path: Path) -> None:
    config = CONFIGS["nemotron_h"].to_dict() | {"layers_block_type": ["mamba"] * 5000}
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "layer_types"}))
    with pytest.raises(ModelError) as error:
        load_config(tmp_path)
    assert "num_hidden_layers is 5000; allowed: a whole number from 1 to 4,096" in only_line(error)


def test_a_file_of_gigabytes_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(200 * 2**20)  # the file takes no space
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(ModelError) as error:
        load_config(tmp_path)
    assert "it has 209,715,200 bytes; allowed: at most 16,777,216" in only_line(error)


def test_a_file_of_brackets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"x": ' + "[" * 10**5 + "]" * 10**5 + "}")
    with pytest.raises(ModelError) as error:
        load_config(tmp_path)
    assert "it has lists or objects hundreds deep" in only_line(error)


def test_the_sizes_of_a_gguf_file_are_refused(tmp_path: Path) -> None:
    def edit(writer: Any) -> None:
        writer.kv_data[0]["llama.feed_forward_length"].value = 2**31

    write_gguf(tiny_llama(), tmp_path / "model.gguf", edit=edit)
    with pytest.raises(ModelError) as error:
        check_gguf(read_header(tmp_path / "model.gguf"))
    assert "model.gguf: intermediate_size is 2147483648; allowed: at most 1,048,576" in only_line(error)


LARGEST = {
    "DeepSeek-V3": {"num_hidden_layers": 61, "hidden_size": 7168, "n_routed_experts": 256, "vocab_size": 129280},
    "Kimi-K2": {"num_hidden_layers": 61, "hidden_size": 7168, "n_routed_experts": 384, "vocab_size": 163840},
    "Qwen3-Next": {"num_hidden_layers": 48, "num_experts": 512, "vocab_size": 151936, "rope_theta": 10_000_000},
    "Switch-C": {"num_layers": 15, "num_decoder_layers": 15, "num_experts": 2048, "d_model": 2080, "d_ff": 6144},
    "Llama-3.1-405B": {"num_hidden_layers": 126, "hidden_size": 16384, "intermediate_size": 53248},
    "Llama-4-Scout": {"text_config": {"num_hidden_layers": 48, "max_position_embeddings": 10_485_760}},
    "XLM-V": {"vocab_size": 901_629, "num_hidden_layers": 12},
    "CANINE": {"num_hash_buckets": 16384, "num_hidden_layers": 12, "vocab_size": 1_114_112},
    "XLNet": {"n_layer": 24, "d_model": 1024, "max_position_embeddings": -1},
    "a length without a limit": {"model_max_length": int(1e30), "num_hidden_layers": 2},
    "Mamba-2": {"num_hidden_layers": 64, "time_step_limit": [0.0, float("inf")]},
    "compressed-tensors": {"quantization_config": {"ignore": [f"layers.{i}" for i in range(2**17)]}},
    "a network of a thousand layers": {"num_hidden_layers": 1000},
}


@each("model", LARGEST)
def test_the_largest_models_are_far_below_the_limits(model: str) -> None:
    check_sizes(LARGEST[model], FILE)


@pytest.mark.nightly
def test_the_defaults_of_all_families_of_transformers_are_below_the_limits() -> None:
    n_checked = 0
    for config_class in transformers.CONFIG_MAPPING.values():
        try:
            values = json.loads(json.dumps(config_class().to_dict()))
        except Exception:  # each family without valid defaults has its own error
            continue
        check_sizes(values, Path(config_class.__name__))
        n_checked += 1
    assert n_checked > 300


def test_a_json_file_may_have_as_many_bytes_as_the_largest_allowed(tmp_path: Path) -> None:
    text = json.dumps({"x": 1})
    (tmp_path / "a.json").write_text(text + " " * (files.MOST_JSON_BYTES - len(text)))
    assert files.read_json(tmp_path / "a.json") == {"x": 1}
