"""Each prompt alone, unpadded, through the ordinary model with its head: a reference for captures."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from support.forks import PROCESSES, start_forks
from transformers import AutoModelForCausalLM

from theodolite.spec import TokenIds

Reference = dict[str, dict[str, NDArray[np.float64]]]
"""Set → site → (sample, layer, d_model), and `gates`, what the gates put out, (sample, layer, unit)."""


def unpadded_reference(folder: Path, tokens: Mapping[str, Sequence[TokenIds]]) -> Reference:
    """Run all prompts of each set in a new process, in which no other test has left a setting."""
    start_forks()
    with ProcessPoolExecutor(1, mp_context=PROCESSES) as process:
        return process.submit(_run_alone, folder, dict(tokens)).result()


def _run_alone(folder: Path, tokens: Mapping[str, Sequence[TokenIds]]) -> Reference:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    mids: list[torch.Tensor] = []
    gates: list[torch.Tensor] = []
    for block in model.model.layers:
        block.mlp.gate_proj.register_forward_hook(lambda _, __, output: gates.append(output[0, -1]))
        block.post_attention_layernorm.register_forward_pre_hook(lambda _, args: mids.append(args[0][0, -1]))
    found: Reference = {}
    for name, prompts in tokens.items():
        sites: dict[str, list[NDArray[np.float32]]] = {"resid_pre": [], "resid_mid": [], "gates": []}
        for ids in prompts:
            mids.clear()
            gates.clear()
            with torch.inference_mode():
                hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
            sites["resid_pre"].append(torch.stack([state[0, -1] for state in hidden[:-1]]).numpy())
            sites["resid_mid"].append(torch.stack(mids).numpy())
            sites["gates"].append(torch.stack(gates).numpy())
        found[name] = {site: np.stack(values).astype(np.float64) for site, values in sites.items()}
    return found
