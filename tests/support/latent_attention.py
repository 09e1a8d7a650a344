"""Tiny models with multi-head latent attention in float64, and what their attention computes, read by hooks."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import tiny
from support.float64 import in_float64
from support.tiny_configs import CONFIGS
from transformers import AutoModel, AutoModelForCausalLM, DeepseekV2Config, DeepseekV3Config, Glm4MoeLiteConfig

from theodolite.sites import Site
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.reference import read_sites
from theodolite_jobs.models.threads import threads_for
from theodolite_jobs.models.weights import Weights

TOKENS = (5, 60, 17, 33, 9, 41, 28)
PLAIN, ROTARY, VALUE, LATENT, HEADS = 10, 8, 12, 14, 4
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 32}


def _changed(family: str, kind: Any, **changes: Any) -> Any:
    return kind(**{**CONFIGS[family].to_dict(), **changes})


LATENT_CONFIGS = {
    "deepseek_v2": CONFIGS["deepseek_v2"],
    "deepseek_v3": CONFIGS["deepseek_v3"],
    "glm4_moe_lite": CONFIGS["glm4_moe_lite"],
    "biases": _changed("deepseek_v3", DeepseekV3Config, attention_bias=True),
    "no-latent-of-queries": _changed("deepseek_v3", DeepseekV3Config, q_lora_rank=None),
    "yarn": _changed("deepseek_v3", DeepseekV3Config, rope_parameters={**YARN, "mscale_all_dim": 0.7, "mscale": 1.1}),
}
MORE_CONFIGS = {
    **LATENT_CONFIGS,
    "halves": _changed("deepseek_v3", DeepseekV3Config, rope_interleave=False, attention_bias=True),
    "halves-glm": _changed("glm4_moe_lite", Glm4MoeLiteConfig, rope_interleave=False, q_lora_rank=None),
    "yarn-v2": _changed(
        "deepseek_v2",
        DeepseekV2Config,
        attention_bias=True,
        rope_parameters={**YARN, "mscale_all_dim": 0.4, "mscale": 1.3},
    ),
    "yarn-glm": _changed("glm4_moe_lite", Glm4MoeLiteConfig, rope_parameters={**YARN, "attention_factor": 1.7}),
    "yarn-without-latent": _changed(
        "deepseek_v2", DeepseekV2Config, q_lora_rank=None, rope_parameters={**YARN, "mscale": 0.8}
    ),
}
"""The same, with other layouts of pairs and other scaled positions."""


def saved_in_float64(config: Any, folder: Path) -> tuple[Weights, LoadedModel]:
    """Return the weights of a random model on disk, and the base model in float64."""
    tiny.random_model(copy.deepcopy(config), AutoModelForCausalLM).save_pretrained(folder)
    base = AutoModel.from_pretrained(folder, dtype=torch.float64).double()
    base.set_experts_implementation("eager")
    base.set_attn_implementation("eager")
    return Weights(folder, base.config, torch.float64), wrap(in_float64(base))


def run_attention(
    model: LoadedModel, tokens: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[dict[str, NDArray[np.float64]]], dict[Site, NDArray[np.float64]]]:
    """Return the scores before the softmax and the outputs of attention's modules by layer, and the sites."""
    layers: list[dict[str, Any]] = [{} for _ in model.blocks]
    handles, scores = [], []
    for found, block in zip(layers, model.blocks, strict=True):
        for name, module in block.self_attn.named_children():
            keep = lambda _, args, output, found=found, name=name: found.update(  # noqa: E731
                {name: output[0].numpy(), f"{name} reads": args[0][0].numpy()}
            )
            handles.append(module.register_forward_hook(keep))

    def softmax(values: Any, *args: Any, original: Any = torch.nn.functional.softmax, **options: Any) -> Any:
        if values.ndim == 4:
            scores.append(values[0].numpy())
        return original(values, *args, **options)

    with monkeypatch.context() as patch, threads_for(1):  # with more, a function mode calls each function twice
        patch.setattr(torch.nn.functional, "softmax", softmax)
        read = read_sites(model, tokens, range(-len(tokens), 0))
    for handle in handles:
        handle.remove()
    return [{**found, "scores": one} for found, one in zip(layers, scores, strict=True)], read


def spread(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the root mean square that divides each latent, (token, 1)."""
    root: NDArray[np.float64] = np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6)
    return root
