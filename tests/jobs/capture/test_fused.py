"""Fused kernels: which modules have one, and that it computes the same."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from support import tiny
from support.each import each

from theodolite.sites import Site
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.fused import applied, fused_norms, fused_on_device
from theodolite_jobs.capture.plan import plan_set
from theodolite_jobs.models.load import wrap

LAYERS = range(5)
TOKENS = [tuple(range(1, 1 + length)) for length in (12, 30, 17, 25)]


def captured(model, norms):
    plan = plan_set("set", TOKENS, (-2, -1), shard_prompts=4, batch_tokens=64, share_prefix=False)
    engine = Engine(model, (Site.RESID_PRE, Site.RESID_MID, Site.RESID_FINAL), LAYERS)
    engine.fused = norms
    return engine.capture(plan.task(plan.shards[0], TOKENS)).activations


@each(
    "family, per_block",
    # two norms; with those of queries and keys; weights of which 1 is added; with a mean
    [("llama", 2), ("qwen3", 4), ("olmo2", 4), ("gemma2", 0), ("gpt2", 0)],
)
def test_norms_with_a_weight_alone_are_fused(family, per_block):
    model = wrap(tiny.tiny_model(family))
    inside = [one for one, _ in fused_norms(model) if any(one is module for module in model.blocks.modules())]
    assert len(inside) == per_block * len(model.blocks)


@each("family", ["llama", "qwen3"])
def test_fused_norms_give_the_same_activations(family):
    model = wrap(tiny.tiny_model(family))
    plain, ours = captured(model, []), captured(model, list(fused_norms(model)))
    for site, values in plain.items():
        assert np.linalg.norm(ours[site] - values) <= 1e-6 * np.linalg.norm(values)
    assert all("forward" not in vars(module) for module in model.module.modules())


def test_the_fused_kernel_is_what_runs():
    model, calls = wrap(tiny.tiny_model("llama")), []

    def counted(hidden):
        calls.append(hidden)
        return torch.zeros_like(hidden)

    captured(model, [(module, counted) for module, _ in fused_norms(model)])
    n_batches = 2
    assert len(calls) == n_batches * 2 * len(model.blocks)  # the forward ends before the final norm


def test_a_module_that_accelerate_moves_is_left_alone():
    model = wrap(tiny.tiny_model("llama"))
    moved = model.blocks[0].input_layernorm
    moved.forward = moved.forward
    assert all(module is not moved for module, _ in fused_norms(model))


def test_a_cpu_fuses_nothing():
    assert fused_on_device(wrap(tiny.tiny_model("llama"))) == []


def test_norms_are_as_before_after_an_error():
    model = wrap(tiny.tiny_model("llama"))
    with suppress(RuntimeError), applied(list(fused_norms(model))):
        assert "forward" in vars(model.blocks[0].input_layernorm)
        raise RuntimeError
    assert all("forward" not in vars(module) for module in model.module.modules())


@pytest.mark.gpu
@each("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_computes_the_same_with_fused_kernels(dtype):
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    model = wrap(tiny.tiny_model("llama").to("cuda", dtype))
    norms = fused_on_device(model)
    assert len(norms) == 11
    plain, ours = captured(model, []), captured(model, norms)
    bound = 1e-6 if dtype is torch.float32 else 0.02
    for site, values in plain.items():
        assert np.linalg.norm(ours[site] - values) <= bound * np.linalg.norm(values)
