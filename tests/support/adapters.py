"""Tiny bases with adapters that peft saves, and what peft computes with them."""

import copy
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from support import tiny
from support.tiny_configs import CONFIGS
from transformers import AutoConfig

from theodolite_jobs.models.quiet import quiet_transformers

TENSORS = "adapter_model.safetensors"
SETTINGS = "adapter_config.json"
IDS = torch.arange(3, 17).reshape(2, 7)

DEFAULTS = {"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 6}


def save_base(family: str, folder: Path, **changes: Any) -> Path:
    """Save a tiny model with its language-model head; `changes` are of its configuration."""
    config = copy.deepcopy(CONFIGS[family])
    config.update(changes)
    with _quiet():
        tiny.random_model(config, _HeadOf(tiny.class_with_head(config))).save_pretrained(folder)
    return folder


def save_adapter(base: Path, folder: Path, *, tokens: int | None = None, **settings: Any) -> Path:
    """Save an adapter with random weights; `tokens` is a new number of tokens."""
    with _quiet():
        model = load(base)
        if tokens:
            model.resize_token_embeddings(tokens)
        model = get_peft_model(model, LoraConfig(**{**DEFAULTS, **settings}))
        torch.manual_seed(1)
        drawn = {id(one): one for one in model.parameters() if one.requires_grad}
        with torch.no_grad():
            for one in drawn.values():
                one.add_(0.1 * torch.randn_like(one))
        model.save_pretrained(str(folder), save_embedding_layers=True if tokens else "auto")
    return folder


def logits(folder: Path) -> torch.Tensor:
    """Return what transformers computes with a plain checkpoint."""
    with _quiet(), torch.no_grad():
        result: torch.Tensor = load(folder)(IDS).logits
        return result


def peft_logits(base: Path, adapter: Path, tokens: int | None = None) -> torch.Tensor:
    """Return what peft computes with an adapter that is not merged."""
    with _quiet(), torch.no_grad():
        model = load(base)
        if tokens:
            model.resize_token_embeddings(tokens)
        result: torch.Tensor = PeftModel.from_pretrained(model, adapter).eval()(IDS).logits
        return result


def change_settings(folder: Path, **changes: Any) -> None:
    file = folder / SETTINGS
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def save_tensors(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Write the weights of a base."""
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / TENSORS)
    change(tensors)
    save_file(tensors, folder / TENSORS, metadata={"format": "pt"})


def load(folder: Path) -> Any:
    """Return the model in a folder with its language-model head, in float32."""
    config = AutoConfig.from_pretrained(folder)
    return tiny.class_with_head(config).from_pretrained(folder, dtype=torch.float32).eval()


class _HeadOf:
    """Builds a model of one class from its configuration, as the automatic classes do."""

    def __init__(self, model_class: Any) -> None:
        self.from_config = model_class


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers and the warnings of peft."""
    with quiet_transformers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
