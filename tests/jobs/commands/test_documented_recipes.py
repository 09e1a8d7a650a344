"""The programs of the recipes run as they are written."""

import re
from pathlib import Path

import numpy as np
import torch

from theodolite.export import encode_safetensors

RECIPES = Path(__file__).parents[3] / "docs" / "recipes.md"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_the_hook_of_transformers_adds_the_difference_of_the_means(chat_model_folder, tmp_path, monkeypatch, capsys):
    program = re.search(r"^```python\n(import torch\n.*?)^```", RECIPES.read_text(), flags=re.MULTILINE | re.DOTALL)[1]
    assert program.count(HUB_ID) == 1
    vector = np.random.default_rng(0).normal(size=576)
    facts = {"layer": [15], "difference_norm": [2.5], "norm_mean_negative": [135.0]}
    content = encode_safetensors({15: vector / np.linalg.norm(vector)}, facts)
    (tmp_path / "direction.safetensors").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(program.replace(HUB_ID, str(chat_model_folder)), names)
    said = capsys.readouterr().out
    assert "norm of the change: 2.50, difference of the means: 2.50" in said
    assert "cosine of the change and the direction: 1.0000" in said
    # The recorded stream is resid_pre of the layer: transformers' hidden state with the layer's index.
    names["block"]._forward_pre_hooks.clear()
    with torch.no_grad():
        hidden = names["model"](**names["inputs"], output_hidden_states=True).hidden_states[15][0, -1]
    torch.testing.assert_close(hidden, names["plain"])
