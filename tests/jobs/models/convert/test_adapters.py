"""A merged checkpoint computes what peft computes with the adapter beside the base."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.adapters import change_settings, change_tensors, logits, peft_logits, save_adapter, save_base, save_tensors
from support.each import each

from theodolite_jobs.models.chat_templates import read_templates
from theodolite_jobs.models.convert.adapter_config import MERGED_KEY
from theodolite_jobs.models.convert.adapter_second_reading import differing_matrix
from theodolite_jobs.models.convert.adapters import describe_adapter, merge_adapter
from theodolite_jobs.models.load import load_config
from theodolite_jobs.models.tensors import TensorFiles

UNTIED = {"tie_word_embeddings": False}
TIED = {"tie_word_embeddings": True}
ATTENTION = ["q_proj", "v_proj"]
TRANSPOSED = {"fan_in_fan_out": True}
BOTH = ["lm_head", "embed_tokens"]
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]

# Family, changes of its configuration, number of tokens if it is new, and settings of the adapter.
CASES: dict[str, tuple[str, dict[str, Any], int | None, dict[str, Any]]] = {
    "lora": ("llama", UNTIED, None, {"target_modules": ATTENTION}),
    "all-linear": ("llama", UNTIED, None, {"target_modules": "all-linear"}),
    "regular-expression": ("llama", UNTIED, None, {"target_modules": r".*\.[12]\.mlp\.(up|down)_proj"}),
    "rank-stabilised": ("llama", UNTIED, None, {"target_modules": ATTENTION, "use_rslora": True}),
    "patterns": (
        "llama",
        UNTIED,
        None,
        {
            "target_modules": ATTENTION,
            "rank_pattern": {"q_proj": 2, r"layers\.2\.self_attn\.v_proj": 7},
            "alpha_pattern": {r"layers\.[01]\.self_attn\.q_proj": 32},
        },
    ),
    "layers": ("llama", UNTIED, None, {"target_modules": ATTENTION, "layers_to_transform": [1, 3]}),
    "one-layer": (
        "llama",
        UNTIED,
        None,
        {"target_modules": ATTENTION, "layers_to_transform": 2, "layers_pattern": "layers"},
    ),
    "excluded-names": (
        "llama",
        UNTIED,
        None,
        {"target_modules": ATTENTION, "exclude_modules": ["layers.0.self_attn.v_proj"]},
    ),
    "excluded-pattern": ("llama", UNTIED, None, {"target_modules": ATTENTION, "exclude_modules": r".*\.0\..*"}),
    "dora": ("llama", UNTIED, None, {"target_modules": ["q_proj", "down_proj"], "use_dora": True}),
    "dora-embedding": ("llama", UNTIED, None, {"target_modules": ["embed_tokens", "o_proj"], "use_dora": True}),
    "biases": ("llama", UNTIED, None, {"target_modules": ATTENTION, "bias": "all"}),
    "own-biases": ("llama", UNTIED, None, {"target_modules": ATTENTION, "bias": "lora_only"}),
    "norms-saved": ("llama", UNTIED, None, {"target_modules": ATTENTION, "modules_to_save": ["norm", "lm_head"]}),
    "buffers-saved": ("deepseek_v3", UNTIED, None, {"target_modules": ["o_proj"], "modules_to_save": ["gate"]}),
    "images-and-text": ("llama4", {}, None, {"target_modules": r".*language_model.*\.(q_proj|o_proj)"}),
    "conv1d": ("gpt2", {}, None, {**TRANSPOSED, "target_modules": ["c_attn", "c_fc", "wte"], "bias": "all"}),
    "conv1d-dora": (
        "gpt2",
        {},
        None,
        {**TRANSPOSED, "target_modules": ["c_attn", "c_proj"], "use_dora": True},
    ),
    "fused": ("phi3", UNTIED, None, {"target_modules": ["qkv_proj", "gate_up_proj"]}),
    "encoder": ("bert", {}, None, {"target_modules": ["query", "dense"], "task_type": None}),
    "multimodal": ("gemma3", {}, None, {"target_modules": r".*language_model.*\.(q_proj|up_proj)"}),
    "single-experts": ("mixtral", UNTIED, None, {"target_modules": ["q_proj"], "target_parameters": EXPERTS}),
    "shared-experts": ("qwen2_moe", UNTIED, None, {"target_modules": ["q_proj"], "target_parameters": EXPERTS}),
    "stacked-experts": ("gpt_oss", UNTIED, None, {"target_modules": ["q_proj"], "target_parameters": EXPERTS}),
    "router": ("mixtral", UNTIED, None, {"target_modules": ["q_proj"], "target_parameters": ["gate.weight"]}),
    "embedding": ("llama", UNTIED, None, {"target_modules": ["q_proj", "embed_tokens"]}),
    "tied": ("llama", TIED, None, {"target_modules": ATTENTION}),
    "tied-embedding": ("llama", TIED, None, {"target_modules": ["q_proj", "embed_tokens"]}),
    "tied-head": ("llama", TIED, None, {"target_modules": ["q_proj", "lm_head"]}),
    "tied-both": ("llama", TIED, None, {"target_modules": ["embed_tokens", "lm_head"]}),
    "tied-ensured": ("llama", TIED, None, {"target_modules": ["q_proj", "embed_tokens"], "ensure_weight_tying": True}),
    "tied-saved-head": ("llama", TIED, None, {"target_modules": ATTENTION, "modules_to_save": ["lm_head"]}),
    "tied-saved-both": (
        "llama",
        TIED,
        None,
        {"target_modules": ATTENTION, "modules_to_save": BOTH},
    ),
    "tokens": ("llama", UNTIED, None, {"target_modules": ATTENTION, "trainable_token_indices": [3, 5]}),
    "tied-tokens": ("llama", TIED, None, {"target_modules": ATTENTION, "trainable_token_indices": [3, 5]}),
    "tied-other-tokens": (
        "llama",
        TIED,
        None,
        {"target_modules": ATTENTION, "trainable_token_indices": {"embed_tokens": [3], "lm_head": [5, 6]}},
    ),
    "more-tokens": ("llama", UNTIED, 100, {"target_modules": ATTENTION}),
    "fewer-tokens": ("llama", UNTIED, 40, {"target_modules": ATTENTION}),
    "more-tokens-both": ("llama", UNTIED, 100, {"target_modules": ["q_proj", *BOTH]}),
    "tied-more-tokens": ("llama", TIED, 100, {"target_modules": ATTENTION}),
    "tied-more-tokens-saved": ("llama", TIED, 100, {"target_modules": ATTENTION, "modules_to_save": ["embed_tokens"]}),
    "tied-more-tokens-trained": ("llama", TIED, 100, {"target_modules": ATTENTION, "trainable_token_indices": [98]}),
    "tied-more-tokens-embedding": ("llama", TIED, 100, {"target_modules": ["q_proj", "embed_tokens"]}),
}
STAYS_TIED = {"tied", "tied-ensured", "tied-tokens", "tied-more-tokens", "tied-more-tokens-trained"}

NOT_COMPARED = {"tied-both", "multimodal"}  # embeddings alone, and matrices that transformers names in another way


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, dict[str, Any]], tuple[Path, torch.Tensor]]:
    """What returns the folder of a base and its logits; cases of the same base share it."""
    made: dict[str, tuple[Path, torch.Tensor]] = {}

    def base_of(family: str, changes: dict[str, Any]) -> tuple[Path, torch.Tensor]:
        key = f"{family} {changes}"
        if key not in made:
            folder = save_base(family, tmp_path_factory.mktemp("base"), **changes)
            made[key] = folder, logits(folder)
        return made[key]

    return base_of


@each("case", CASES)
def test_a_merged_model_computes_what_peft_computes(tmp_path: Path, bases: Any, case: str) -> None:
    family, changes, tokens, settings = CASES[case]
    base, of_base = bases(family, changes)
    adapter = save_adapter(base, tmp_path / "adapter", tokens=tokens, **settings)
    merged = merge_adapter(base, adapter, tmp_path / "merged")
    expected = peft_logits(base, adapter, tokens)
    assert (logits(merged) - expected).abs().max() <= 2e-6 * max(1, expected.abs().max())
    if tokens is None:
        assert (of_base - expected).abs().max() > 1e-3, "the adapter changes nothing"
    config = load_config(merged)
    assert config.get_text_config().vocab_size == (tokens or load_config(base).get_text_config().vocab_size)
    if changes:
        assert config.tie_word_embeddings == (case in STAYS_TIED)
    compared, wrong = differing_matrix(base, adapter, merged)
    assert compared or case in NOT_COMPARED
    assert wrong is None


def test_what_the_adapter_does_not_change_stays_as_it_is(tmp_path: Path) -> None:
    base = save_base("llama", tmp_path / "base", **UNTIED, dtype="bfloat16")
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(base / "model.safetensors").items()}
    save_tensors(tensors, base)
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=["q_proj"])
    files = TensorFiles(merge_adapter(base, adapter, tmp_path / "merged"))
    assert files.headers.keys() == tensors.keys()
    for name, tensor in tensors.items():
        stored = files.read(name)
        assert stored.dtype == (torch.float32 if name.endswith("q_proj.weight") else torch.bfloat16)
        assert torch.equal(stored.float(), tensor.float()) == (not name.endswith("q_proj.weight"))


def test_a_merged_matrix_is_not_rounded_to_the_dtype_of_the_base(tmp_path: Path) -> None:
    base = save_base("llama", tmp_path / "base", **UNTIED)
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(base / "model.safetensors").items()}
    save_tensors(tensors, base)
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=["q_proj"])
    low = load_file(adapter / "adapter_model.safetensors")
    stem = "base_model.model.model.layers.0.self_attn.q_proj"
    delta = low[f"{stem}.lora_B.weight"] @ low[f"{stem}.lora_A.weight"] * (6 / 4)
    name = "model.layers.0.self_attn.q_proj.weight"
    merged = TensorFiles(merge_adapter(base, adapter, tmp_path / "merged")).read(name)
    torch.testing.assert_close(merged, tensors[name].float() + delta, rtol=1e-6, atol=1e-7)


def test_an_adapter_of_single_experts_is_that_of_their_stack(tmp_path: Path) -> None:
    """Adapters from before transformers 5 have the matrices of each expert, under their names in the files."""
    base = save_base("mixtral", tmp_path / "base", **UNTIED)
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=["q_proj"])
    change_settings(adapter, target_modules=["q_proj", "w1", "w2", "w3"])
    sizes = {name: tuple(one.shape) for name, one in load_file(base / "model.safetensors").items()}
    experts = [name.removesuffix(".weight") for name in sizes if re.search(r"\.experts\.\d+\.w[123]\.", name)]

    def add(tensors: dict[str, torch.Tensor]) -> None:
        for name in experts:
            out, width = sizes[f"{name}.weight"]
            tensors[f"base_model.model.{name}.lora_A.weight"] = 0.1 * torch.randn(4, width)
            tensors[f"base_model.model.{name}.lora_B.weight"] = 0.1 * torch.randn(out, 4)

    torch.manual_seed(2)
    change_tensors(adapter, add)
    low = load_file(adapter / "adapter_model.safetensors")
    merged = merge_adapter(base, adapter, tmp_path / "merged")
    files, stored = TensorFiles(merged), load_file(base / "model.safetensors")
    for name in experts:
        a, b = (low[f"base_model.model.{name}.lora_{one}.weight"] for one in "AB")
        torch.testing.assert_close(files.read(f"{name}.weight"), stored[f"{name}.weight"] + b @ a * (6 / 4))
    expected = peft_logits(base, adapter)
    assert (logits(merged) - expected).abs().max() <= 2e-6 * expected.abs().max()


def test_a_base_whose_files_have_no_prefix_is_changed_too(tmp_path: Path) -> None:
    base = save_base("gpt2", tmp_path / "base")
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=["c_attn"], fan_in_fan_out=True)
    tensors = load_file(base / "model.safetensors")
    save_tensors({name.removeprefix("transformer."): one for name, one in tensors.items()}, base)
    merged = merge_adapter(base, adapter, tmp_path / "merged")
    assert not [name for name in TensorFiles(merged).headers if name.startswith("transformer.")]
    assert (logits(merged) - peft_logits(base, adapter)).abs().max() <= 1e-5


def test_an_adapter_of_a_base_class_fits_the_whole_model(tmp_path: Path) -> None:
    base = save_base("llama", tmp_path / "base", **UNTIED)
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=["q_proj"])
    expected = merge_adapter(base, adapter, tmp_path / "expected")
    change_settings(adapter, task_type="FEATURE_EXTRACTION")

    def shorten(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.replace("base_model.model.model.", "base_model.model.")] = tensors.pop(name)

    change_tensors(adapter, shorten)
    assert torch.equal(logits(merge_adapter(base, adapter, tmp_path / "merged")), logits(expected))


def test_a_head_for_classification_is_added_and_changes_no_state(tmp_path: Path) -> None:
    base = save_base("llama", tmp_path / "base", **UNTIED)
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=["q_proj"])
    expected = merge_adapter(base, adapter, tmp_path / "expected")
    change_settings(adapter, task_type="SEQ_CLS", modules_to_save=["classifier", "score"])
    width = load_config(base).hidden_size
    change_tensors(adapter, lambda all_: all_.update({"base_model.model.score.weight": torch.randn(7, width)}))
    merged = merge_adapter(base, adapter, tmp_path / "merged")
    assert TensorFiles(merged).shape("score.weight") == (7, width)
    assert torch.equal(logits(merged), logits(expected))


def test_planning_needs_no_weights_and_sees_the_same_configuration(tmp_path: Path) -> None:
    base = save_base("llama", tmp_path / "base", **TIED)
    adapter = save_adapter(base, tmp_path / "adapter", tokens=100, target_modules=["q_proj", "embed_tokens"])
    merged = merge_adapter(base, adapter, tmp_path / "merged")
    (base / "model.safetensors").unlink()
    planned = merge_adapter(base, adapter, tmp_path / "planned", weights=False)
    assert json.loads((planned / "config.json").read_text()) == json.loads((merged / "config.json").read_text())
    facts = json.loads((planned / "config.json").read_text())[MERGED_KEY]
    assert describe_adapter(load_config(base), adapter) == facts
    assert facts == {
        "method": "LoRA",
        "ranks": [4, 4],
        "matrices": load_config(base).num_hidden_layers + 2,
        "vectors": 0,
        "base": str(base),
        "tokenizer": False,
        "vocabulary": 100,
        "unties": True,
    }


def test_a_new_number_of_tokens_is_written_where_the_configuration_has_the_default(tmp_path: Path) -> None:
    """A text part that does not state the number of tokens has that of its class."""
    base = save_base("gemma3", tmp_path / "base")
    adapter = save_adapter(base, tmp_path / "adapter", tokens=300, target_modules=["q_proj"])
    raw = json.loads((base / "config.json").read_text())
    del raw["text_config"]["vocab_size"]
    (base / "config.json").write_text(json.dumps(raw))
    planned = merge_adapter(base, adapter, tmp_path / "planned", weights=False)
    assert load_config(planned).get_text_config().vocab_size == 300


def test_the_adapter_beside_its_base_is_not_merged_twice(tmp_path: Path) -> None:
    base = save_base("llama", tmp_path / "base", **UNTIED)
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=["q_proj"])
    expected = logits(merge_adapter(base, adapter, tmp_path / "expected"))
    for file in adapter.iterdir():
        file.rename(base / file.name)
    merged = merge_adapter(base, base, tmp_path / "merged")
    assert not (merged / "adapter_config.json").exists(), "transformers would load it"
    assert torch.equal(logits(merged), expected)


def test_the_tokenizer_of_the_adapter_replaces_that_of_the_base(tmp_path: Path) -> None:
    base = save_base("llama", tmp_path / "base", **UNTIED)
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=["q_proj"])
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"):
        (base / name).write_text("{}" if name == "tokenizer_config.json" else f"base {name}")
    plain = merge_adapter(base, adapter, tmp_path / "plain", weights=False)
    assert (plain / "tokenizer.json").read_text() == "base tokenizer.json"
    (adapter / "chat_template.jinja").write_text("adapter's")
    templated = merge_adapter(base, adapter, tmp_path / "templated", weights=False)
    assert (templated / "chat_template.jinja").read_text() == "adapter's"
    assert (templated / "tokenizer.json").read_text() == "base tokenizer.json"
    (adapter / "tokenizer.json").write_text("adapter's")
    whole = merge_adapter(base, adapter, tmp_path / "whole", weights=False)
    files = {
        path.name: path.read_text() for path in whole.iterdir() if path.name.startswith(("tok", "chat", "special"))
    }
    assert files == {"tokenizer.json": "adapter's", "chat_template.jinja": "adapter's"}
    assert json.loads((whole / "config.json").read_text())[MERGED_KEY]["tokenizer"]


# A chat template of the base in each place that can have one, and files of an adapter with its own templates or none.
PLACES: dict[str, str] = {
    "chat_template.jinja": "base",
    "chat_template.json": '{"chat_template": "base"}',
    "additional_chat_templates/default.jinja": "base",
    "additional_chat_templates/tools.jinja": "base",
    "processor_config.json": '{"chat_template": "base"}',
    "tokenizer_config.json": '{"chat_template": "base", "model_max_length": 9}',
}
OWN: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "vocabulary": ({"tokenizer.json": "{}"}, {}),
    "vocabulary-and-template": ({"tokenizer.json": "{}", "chat_template.jinja": "own"}, {"default": "own"}),
    "tokenizer-config": ({"tokenizer_config.json": '{"chat_template": "own"}'}, {"default": "own"}),
    "template": ({"chat_template.jinja": "own"}, {"default": "own"}),
    "processor": ({"processor_config.json": '{"chat_template": "own"}'}, {"default": "own"}),
    "additional": ({"additional_chat_templates/rag.jinja": "own"}, {"rag": "own"}),
}


@each("own", OWN)
def test_no_chat_template_of_the_base_stays_beside_files_of_the_adapter(tmp_path: Path, own: str) -> None:
    base = save_base("llama", tmp_path / "base", **UNTIED)
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=["q_proj"])
    files, expected = OWN[own]
    for folder, texts in ((base, PLACES), (adapter, files)):
        for name, text in texts.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
    merged = merge_adapter(base, adapter, tmp_path / "merged", weights=False)
    assert read_templates(merged) == expected
    assert json.loads((merged / "config.json").read_text())[MERGED_KEY]["tokenizer"]
    if own == "template":
        assert json.loads((merged / "tokenizer_config.json").read_text()) == {"model_max_length": 9}


def test_a_matrix_that_the_adapter_stores_in_another_precision_is_not_compared(tmp_path: Path) -> None:
    base = save_base("llama", tmp_path / "base", **UNTIED)
    rows = len(load_file(base / "model.safetensors")["lm_head.weight"])
    adapter = save_adapter(base, tmp_path / "adapter", tokens=rows, target_modules=["q_proj", *BOTH])

    def store_rounded(tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            tensors[name] = tensor.bfloat16()

    change_tensors(adapter, store_rounded)
    compared, wrong = differing_matrix(base, adapter, merge_adapter(base, adapter, tmp_path / "merged"))
    assert wrong is None
    assert "lm_head.weight" not in compared


@each(
    "family, modules, flag",
    [("gpt2", ["c_attn"], False), ("gpt2", ["attn.c_proj"], False), ("llama", ["q_proj", "up_proj"], True)],
)
def test_a_wrong_orientation_in_the_settings_is_corrected_as_in_peft(
    tmp_path: Path, family: str, modules: list[str], flag: bool
) -> None:
    base = save_base(family, tmp_path / "base", tie_word_embeddings=False)
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=modules)
    change_settings(adapter, fan_in_fan_out=flag)
    merged = merge_adapter(base, adapter, tmp_path / "merged")
    assert (logits(merged) - peft_logits(base, adapter)).abs().max() <= 1e-5
    compared, wrong = differing_matrix(base, adapter, merged)
    assert compared
    assert wrong is None
