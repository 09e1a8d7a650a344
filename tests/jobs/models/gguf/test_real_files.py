"""Real GGUF files: activations equal those of an independent conversion, and token ids those that were published."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from support.real_files import FILES, FOLDER, VOCABULARIES
from transformers import AutoConfig, AutoModelForCausalLM

from theodolite.spec_parts import ModelSpec
from theodolite_jobs.models.gguf.header import read_header
from theodolite_jobs.models.gguf.tokenizer import write_tokenizer
from theodolite_jobs.models.load import load_model, load_tokenizer, wrap
from theodolite_jobs.models.reference import read_sites, relative_errors
from theodolite_jobs.models.source import fetch, resolve_source

pytestmark = [pytest.mark.real, pytest.mark.nightly]

# The configurations of the models' own repositories, as far as they matter for a forward pass.
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma-3-270m-q4_k_m.gguf": {
        "model_type": "gemma3_text",
        "vocab_size": 262144,
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 512,
        "tie_word_embeddings": True,
    },
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf": {
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    },
}

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OF_FAMILY = {
    "gemma3_text": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "qwen2": {"ffn_norm": "post_attention_layernorm"},
}
TEXT = "The surveyor set up her theodolite on the hill, levelled it, and read 12.5 degrees.\n\tThen she wrote: " * 3


def independent(file: Path) -> Any:
    """Return the base model of a file, read by the package `gguf` into a state dict of our own."""
    settings = CONFIGS[file.name]
    names = NAMES | OF_FAMILY[settings["model_type"]]
    state = {}
    for tensor in gguf.GGUFReader(file).tensors:
        *block, name, kind = tensor.name.split(".")
        prefix = f"model.layers.{block[1]}." if block else ""
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if settings["model_type"] == "gemma3_text" and name.endswith("norm"):
            values = values - 1
        state[f"{prefix}{names[name]}.{kind}"] = torch.from_numpy(np.array(values))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    return model.base_model


@pytest.fixture(scope="module", params=FILES)
def file(request: pytest.FixtureRequest) -> Path:
    path = FOLDER / request.param
    if not path.is_file():
        pytest.skip(f"{path} does not exist; run: python tests/support/real_files.py")
    return path


@pytest.fixture(scope="module")
def folder(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch(resolve_source(ModelSpec(id=str(file)), Path()), tmp_path_factory.mktemp("cache"))


def test_every_site_equals_that_of_an_independent_conversion(file: Path, folder: Path) -> None:
    ids = tuple(load_tokenizer(folder)(TEXT)["input_ids"])
    positions = (-len(ids), -5, -1)
    ours, theirs = load_model(folder), wrap(independent(file).eval())
    one, other = (read_sites(model, ids, positions) for model in (ours, theirs))
    assert one.keys() == other.keys()
    for site, values in one.items():
        errors = relative_errors(
            *(np.asarray(v, np.float64).reshape(-1, values.shape[-1]) for v in (values, other[site]))
        )
        assert errors.max() < 5e-5, site


def test_the_chat_template_and_the_special_tokens_are_those_of_the_file(file: Path, folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer(TEXT, add_special_tokens=False)["input_ids"]) == TEXT
    if file.name.startswith("gemma"):
        assert tokenizer.chat_template is None
        assert tokenizer("Hi")["input_ids"] == [2, 10979]
    else:
        chat = [{"role": "user", "content": "Hi"}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        # <|im_start|> assistant and a line break, by the ids of the hub's tokenizer.
        assert ids[-3:] == [151644, 77091, 198]


@pytest.mark.parametrize(
    "name",
    [
        "command-r",
        "deepseek-coder",
        "deepseek-llm",
        "falcon",
        "gpt-2",
        "llama-bpe",
        "llama-spm",
        "phi-3",
        "qwen2",
        "refact",
        "starcoder",
    ],
)
def test_the_tokens_of_a_vocabulary_are_those_that_its_publisher_lists(name: str, tmp_path: Path) -> None:
    path = VOCABULARIES / f"ggml-vocab-{name}.gguf"
    if not path.is_file():
        pytest.skip(f"{path} does not exist; run: python tests/support/real_files.py")
    write_tokenizer(read_header(path), tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    *texts, _ = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    listed = [[int(one) for one in line.split()] for line in Path(f"{path}.out").read_text().splitlines()]
    assert [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts] == listed
