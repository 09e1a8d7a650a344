"""A large model without its weights: its configuration, generated activations of its shape, and norm layers."""

from collections.abc import Sequence

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Qwen2Config

from theodolite.sites import Site
from theodolite.store.runs import Run
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.statistics.norms import Norm

D_MODEL, D_HEAD, N_HEADS, N_KV_HEADS, D_MLP = 5120, 128, 40, 8, 27648
"""Sizes of Qwen2.5-32B."""


def qwen_config(layers: int, vocabulary: int, d_mlp: int = D_MLP) -> Qwen2Config:
    """Return a configuration with the sizes of Qwen2.5-32B."""
    return Qwen2Config(
        architectures=["Qwen2ForCausalLM"],
        dtype="bfloat16",
        num_hidden_layers=layers,
        hidden_size=D_MODEL,
        num_attention_heads=N_HEADS,
        num_key_value_heads=N_KV_HEADS,
        intermediate_size=d_mlp,
        vocab_size=vocabulary,
        tie_word_embeddings=False,
    )


def generated(rng: np.random.Generator, shape: Sequence[int], scales: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return normal numbers of bfloat16 precision that grow along the layers, with one large feature."""
    values = rng.standard_normal(tuple(shape), dtype=np.float32) * scales
    values[..., 7] += 100 * scales[:, 0]
    return torch.from_numpy(values).bfloat16().float().numpy()


def generated_shard(
    rng: np.random.Generator, n_prompts: int, layers: int, d_model: int
) -> dict[Site, NDArray[np.float32]]:
    """Return activations of prompts at one position: (prompt, 1, layer, d_model) at each site of the blocks."""
    scales = np.exp(np.linspace(0, 3, layers))[:, None].astype(np.float32)
    activations = {site: generated(rng, (n_prompts, 1, layers, d_model), scales) for site in measuring.SITES}
    activations[Site.RESID_FINAL] = activations[measuring.SITES[-1]][:, :, -1]
    return activations


def llama_norms(run: Run) -> list[NormLayer]:
    """Return norm layers as in Llama."""
    ones, zeros = np.ones(run.record.model.d_model), np.zeros(run.record.model.d_model)
    norm = Norm("rms", 1e-6, ones, zeros)
    norms = [
        NormLayer(which, layer, norm, (site,), layer)
        for layer in run.record.layers
        for which, site in zip(("attention", "mlp"), measuring.SITES, strict=True)
    ]
    norms.append(NormLayer("final", -1, norm, (Site.RESID_FINAL,)))
    return norms
