"""A small Qwen1 checkpoint with random weights and a vocabulary in tiktoken's format."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.errors import only_line

from theodolite.errors import ModelError
from theodolite_jobs.models.convert.qwen1 import convert_qwen1

Tensors = dict[str, torch.Tensor]

# Every byte is a token, not in the order of bytes. "abc" is b"a" + b"bc": b"bc" has the lower rank, so it is first.
BYTES = [bytes([(7 * index + 3) % 256]) for index in range(256)]
WORDS = """bc ab abc th he the an and a_ _a _t _the _and in ing er ther __ ____ aa aaa é 中"""
JOINED = [word.replace("_", " ").encode() for word in WORDS.split()]
RANKS = {token: rank for rank, token in enumerate([*BYTES, b"\n\n", b"\xe4\xb8", *JOINED])}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205))]
SPECIAL_IDS = {token: len(RANKS) + index for index, token in enumerate(SPECIAL)}

CONFIG: dict[str, Any] = {
    "architectures": ["QWenLMHeadModel"],
    "auto_map": {
        "AutoConfig": "configuration_qwen.QWenConfig",
        "AutoModelForCausalLM": "modeling_qwen.QWenLMHeadModel",
    },
    "bf16": False,
    "fp16": False,
    "fp32": True,
    "hidden_size": 32,
    "intermediate_size": 96,
    "kv_channels": 8,
    "layer_norm_epsilon": 1e-4,
    "max_position_embeddings": 128,
    "model_type": "qwen",
    "no_bias": True,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "rotary_emb_base": 500,
    "rotary_pct": 1.0,
    "scale_attn_weights": True,
    "seq_length": 64,
    "tie_word_embeddings": False,
    "tokenizer_class": "QWenTokenizer",
    "use_cache_quantization": False,
    "use_dynamic_ntk": True,
    "use_logn_attn": True,
    "vocab_size": 512,
}


def random_weights() -> Tensors:
    """Return tensors in Qwen1's layout, large enough that every term matters."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"transformer.wte.weight": (512, 32), "transformer.ln_f.weight": (32,), "lm_head.weight": (512, 32)}
    for layer in range(3):
        block = f"transformer.h.{layer}."
        shapes |= {f"{block}ln_1.weight": (32,), f"{block}ln_2.weight": (32,)}
        shapes |= {f"{block}attn.c_attn.weight": (96, 32), f"{block}attn.c_attn.bias": (96,)}
        shapes |= {f"{block}attn.c_proj.weight": (32, 32), f"{block}mlp.c_proj.weight": (32, 48)}
        shapes |= {f"{block}mlp.w1.weight": (48, 32), f"{block}mlp.w2.weight": (48, 32)}
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def write_weights(folder: Path, weights: Tensors) -> None:
    """Write two shards with an index, like those on the hub; one block is in both shards."""
    names = sorted(weights)
    halves = {"model-00001-of-00002.safetensors": names[:13], "model-00002-of-00002.safetensors": names[13:]}
    for file, part in halves.items():
        save_file({name: weights[name] for name in part}, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, part in halves.items() for name in part}
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def write_json(file: Path, content: Any) -> None:
    """Write JSON."""
    file.write_text(json.dumps(content))


def write_ranks(folder: Path, ranks: dict[bytes, int]) -> None:
    """Write the vocabulary: each token in base64, and its rank."""
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    (folder / "qwen.tiktoken").write_text("".join(lines))


def save_qwen1(folder: Path) -> None:
    """Write a chat model as the hub has it, with code that must not run."""
    folder.mkdir()
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "generation_config.json", {"chat_format": "chatml", "eos_token_id": 151643})
    remote = {
        "tokenizer_class": "QWenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]},
    }
    write_json(folder / "tokenizer_config.json", remote)
    for name in ("configuration_qwen", "modeling_qwen", "tokenization_qwen"):
        (folder / f"{name}.py").write_text("raise SystemExit('the own code of the checkpoint was run')")
    write_ranks(folder, RANKS)
    write_weights(folder, random_weights())


def change_config(folder: Path, **changes: Any) -> None:
    """Write the configuration with these changes."""
    write_json(folder / "config.json", CONFIG | changes)


def refusal(folder: Path) -> str:
    """Return the error of a folder that is not converted; check that no files remain."""
    with pytest.raises(ModelError) as caught:
        convert_qwen1(folder, folder.parent / "cache" / "qwen2")
    assert [path for path in (folder.parent / "cache").iterdir() if path.is_dir()] == []
    return only_line(caught)
