"""The configuration of Qwen1 as Qwen2: equal sizes, or an error that names the setting."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.each import each
from support.qwen1 import CONFIG, change_config, refusal, write_json

from theodolite_jobs.models.anatomy import dimensions_of
from theodolite_jobs.models.convert.qwen1 import is_qwen1, qwen2_config
from theodolite_jobs.models.load import load_config


def test_sizes_equal_those_of_qwen1(converted: Path) -> None:
    config = load_config(converted)
    assert (config.model_type, config.intermediate_size, config.rms_norm_eps) == ("qwen2", 48, 1e-4)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 500.0}
    assert config.tie_word_embeddings is False
    assert config.vocab_size == 512
    # Not max_position_embeddings: beyond seq_length Qwen1 computes different numbers.
    assert asdict(dimensions_of(config)) == {
        "n_layers": 3,
        "d_model": 32,
        "n_heads": 4,
        "n_kv_heads": 4,
        "d_head": 8,
        "context_length": 64,
    }


@each(
    "declared, dtype",
    [
        ({"torch_dtype": "float16"}, "float16"),
        ({"torch_dtype": "torch.float32", "bf16": True}, "float32"),
        ({"bf16": True}, "bfloat16"),
        ({"fp16": True}, "float16"),
        ({"fp32": True}, "float32"),
        ({}, "bfloat16"),
    ],
)
def test_dtype_is_the_declared_one(declared: dict[str, Any], dtype: str) -> None:
    config = qwen2_config(CONFIG | {"fp32": False} | declared)
    assert str(config.dtype) == f"torch.{dtype}"


def test_missing_settings_have_the_defaults_of_qwen1() -> None:
    required = ("vocab_size", "intermediate_size", "num_hidden_layers", "seq_length")
    config = qwen2_config({name: CONFIG[name] for name in required} | {"hidden_size": 4096, "num_attention_heads": 32})
    assert config.rms_norm_eps == 1e-6
    assert config.rope_parameters["rope_theta"] == 10_000.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"no_bias": False}, "no_bias is False; only Qwen1 models with no_bias True"),
        ({"rotary_pct": 0.5}, "rotary_pct is 0.5; only Qwen1 models with rotary_pct 1.0"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"use_cache_quantization": True}, "use_cache_quantization is True"),
        ({"kv_channels": 16}, "kv_channels is 16, but hidden_size 32 / num_attention_heads 4 is 8"),
        ({"quantization_config": {"bits": 4}}, "its weights are quantised; use the model without Int4 or Int8"),
        ({"visual": {"width": 1664}}, "visual cannot be read as Qwen2: it also reads images"),
    ],
)
def test_a_setting_that_qwen2_does_not_support_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    change_config(folder, **changes)
    assert message in refusal(folder)


@pytest.mark.parametrize("size", ["hidden_size", "seq_length", "num_hidden_layers"])
def test_a_missing_size_is_named(folder: Path, size: str) -> None:
    write_json(folder / "config.json", {name: value for name, value in CONFIG.items() if name != size})
    assert f"a Qwen1 model needs {size}" in refusal(folder)


def test_a_size_of_the_wrong_type_is_an_error_of_one_line(folder: Path) -> None:
    change_config(folder, num_hidden_layers="three")
    assert refusal(folder).startswith(f"cannot convert {folder} from Qwen1: ")


@each(
    "config, expected",
    [
        ('{"model_type": "qwen", "architectures": ["QWenLMHeadModel"]}', True),
        ('{"architectures": ["QWenLMHeadModel"]}', True),
        ('{"auto_map": {"AutoModelForCausalLM": "modeling_qwen.QWenLMHeadModel"}}', True),
        ('{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}', False),
        ('{"model_type": "qwen2", "architectures": ["QWenLMHeadModel"]}', False),
        ("{}", False),
        ("[]", False),
        ("not JSON", False),
        (None, False),
    ],
)
def test_qwen1_is_recognised_by_its_configuration(tmp_path: Path, config: str | None, expected: bool) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert is_qwen1(tmp_path) is expected
