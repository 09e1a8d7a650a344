"""A changed adapter is refused in one line, or merged into what peft computes with it."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.adapters import SETTINGS, change_settings, change_tensors, logits, peft_logits, save_adapter, save_base
from support.errors import only_line
from support.nightly import one_in

from theodolite.errors import ModelError
from theodolite_jobs.models.convert.adapter_config import AdapterConfig
from theodolite_jobs.models.convert.adapters import merge_adapter

VALUES: list[Any] = [
    *(None, True, False, 0, 1, 3, -1, 2.5, "", "all", "q_proj", ".*", ".*v_proj", "all-linear"),
    *([], [1], [0, 2], ["v_proj"], ["q_proj", "down_proj"], ["norm"], ["lm_head"], ["down_proj"]),
    *({}, {"q_proj": 2}, {"v_proj": 9}, {".*": 4}, {"embed_tokens": [3]}, {"(": 1}),
]
SETTINGS_READ = sorted(set(AdapterConfig.model_fields) - {"base_model_name_or_path", "revision"})
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": ["q_proj", "down_proj"]},
    "dora": {"target_modules": ["q_proj", "embed_tokens"], "use_dora": True},
    "saved": {"target_modules": ["v_proj"], "modules_to_save": ["lm_head"], "bias": "all"},
    "tokens": {"target_modules": ["v_proj"], "trainable_token_indices": [3, 5]},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    base = save_base("llama", folder / "base", tie_word_embeddings=True)
    for name, settings in KINDS.items():
        save_adapter(base, folder / name, **settings)
    return folder


def mutate_tensors(tensors: dict[str, torch.Tensor], draw: random.Random) -> str:
    """Change one tensor or two, and return how."""
    name, other = draw.sample(sorted(tensors), 2)
    one, how = (
        tensors[name],
        draw.choice(["drop", "swap", "rename", "copy", "cut", "turn", "nan", "scale", "half", "int"]),
    )
    match how:
        case "drop":
            del tensors[name]
        case "swap":
            tensors[name], tensors[other] = tensors[other], one
        case "rename":
            tensors[name.replace("layers.1", "layers.7").replace("lora_A", "lora_Z")] = tensors.pop(name)
        case "copy":
            tensors[name.replace("self_attn", "mlp").replace(".weight", ".wt")] = one.clone()
        case "cut":
            tensors[name] = one[1:].clone()
        case "turn":
            tensors[name] = one.reshape(one.shape[::-1]).clone()
        case "nan":
            tensors[name] = one * float("nan")
        case "scale":
            tensors[name] = 3 * one
        case "half":
            tensors[name] = one.half()
        case "int":
            tensors[name] = one.to(torch.int8)
    return f"{how} {name}"


@pytest.mark.parametrize("seed", one_in(3, range(48)))
def test_a_changed_adapter_is_refused_or_merged_as_peft_applies_it(saved: Path, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    adapter = Path(shutil.copytree(saved / draw.choice(sorted(KINDS)), tmp_path / "adapter"))
    if seed % 2:
        change_tensors(adapter, lambda tensors: mutate_tensors(tensors, draw) and None)
    else:
        change_settings(adapter, **{draw.choice(SETTINGS_READ): draw.choice(VALUES)})
    try:
        merged = merge_adapter(saved / "base", adapter, tmp_path / "merged")
    except ModelError:
        with pytest.raises(ModelError) as error:
            merge_adapter(saved / "base", adapter, tmp_path / "merged")
        only_line(error)
        return
    expected = peft_logits(saved / "base", adapter)
    changed = json.loads((adapter / SETTINGS).read_text()), load_file(adapter / "adapter_model.safetensors").keys()
    assert (logits(merged) - expected).abs().max() <= 2e-6 * expected.abs().max(), changed
