"""Active hidden units of experts, against what the experts of tiny models compute inside a forward pass."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support import tiny
from support.analysing import context_of
from support.each import each
from support.sentences import assert_says
from support.stored import store_run
from support.tiny_configs import CONFIGS
from transformers import AutoModel

from theodolite.errors import ModelError
from theodolite.sections.parts import texts_of
from theodolite_jobs.groups.routing import compute as routing
from theodolite_jobs.groups.routing.formulas import active_share
from theodolite_jobs.models.load import load_config, wrap
from theodolite_jobs.models.routers import experts_of, hook_router, router_of
from theodolite_jobs.models.text_part import text_part
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.statistics.norms import Norm

PROMPTS, TOKENS, LAYERS = 12, 6, 5
POSITIONS = [-2, -1]
READ_SOMETHING_ELSE = {"flex_olmo", "gemma4_text-experts", "nemotron_h"}
"""Experts that read resid_mid without a norm, or with a norm of their own, or follow no attention in their block."""
ROUTED = sorted(family for family, config in CONFIGS.items() if experts_of(config))
COMPUTED = [family for family in ROUTED if family not in READ_SOMETHING_ELSE]


@dataclass
class Forward:
    """What a forward pass computes.

    Attributes:
        mid: the state before the norm of the MLP, (sample, position, layer, d_model).
        experts: the experts of each token, (sample, position, layer, choice); -1 is none.
        active: by layer and expert, for each of its tokens (prompt, position) the share of active units.
    """

    mid: np.ndarray
    experts: np.ndarray
    active: dict


def saved(family, folder):
    tiny.model_with_head(family).save_pretrained(folder)
    return Weights(folder, load_config(folder))


def forward(family, folder, dtype=torch.float32):
    """Run a model that computes its experts one after the other, and keep the inputs of its activation functions."""
    base = AutoModel.from_pretrained(folder, dtype=dtype)
    if CONFIGS[family]._experts_implementation != "eager":
        base.set_experts_implementation("eager")
    model = wrap(text_part(base))
    ids = torch.randint(3, 64, (PROMPTS, TOKENS), generator=torch.Generator().manual_seed(5))
    inputs, indices, gates = {}, {}, {}
    for layer, block in enumerate(model.blocks):
        router = router_of(block)
        norm = block.get_submodule(model.anatomy.norms["mlp"])
        norm.register_forward_pre_hook(lambda _, args, layer=layer: inputs.update({layer: args[0].detach()}))
        if router is None:
            continue
        hook_router(block, router, lambda chosen, layer=layer: indices.update({layer: chosen.detach()}))
        (experts,) = [
            module for module in block.modules() if "Experts" in type(module).__name__ and hasattr(module, "down_proj")
        ]
        gates[layer] = []
        keep_gates(experts, gates[layer])
    with torch.no_grad():
        model.run(input_ids=ids, use_cache=False)
    own = [TOKENS + position for position in POSITIONS]
    mid = np.stack([inputs[layer].double().numpy()[:, own] for layer in range(LAYERS)], axis=2)
    n_choices = experts_of(CONFIGS[family]).n_choices
    chosen = np.full((PROMPTS, len(POSITIONS), LAYERS, n_choices), -1)
    active = {}
    for layer, of_layer in indices.items():
        chosen[:, :, layer] = of_layer.numpy().reshape(PROMPTS, TOKENS, -1)[:, own]
        of_experts = by_expert(family, of_layer, gates[layer])
        active |= {(layer, expert): positions_of(units) for expert, units in of_experts.items()}
    return Forward(mid, np.sort(chosen, axis=-1), active)


def keep_gates(experts, gates):
    """Append the inputs of the experts' activation function to a list, in the order of the calls."""
    if isinstance(getattr(experts, "act_fn", None), torch.nn.Module):
        experts.act_fn.register_forward_pre_hook(lambda _, args: gates.append(args[0].detach()))
        return
    name = "act_fn" if hasattr(experts, "act_fn") else "_apply_gate"  # LFM2 has a function; gpt-oss one of gate and up
    plain = getattr(experts, name)

    def kept(inputs):
        gates.append((inputs if name == "act_fn" else inputs[..., ::2]).detach())
        return plain(inputs)

    setattr(experts, name, kept)


def by_expert(family, indices, gates):
    """Return, for each expert, the share of active units of each of its tokens, by the token's index in the batch."""
    tokens = {
        expert: [int(token) for choice in indices.T for token in torch.where(choice == expert)[0]]
        for expert in sorted(set(indices.flatten().tolist()) - {-1})
    }
    if family.startswith("llama4"):  # all experts compute all tokens; those that are not chosen get an input of 0
        (every,) = gates
        every = every.reshape(-1, PROMPTS * TOKENS, every.shape[-1])
        return {e: {token: (every[e, token] > 0).double().mean().item() for token in own} for e, own in tokens.items()}
    assert len(gates) == len(tokens)
    found = {}
    for (expert, own), gate in zip(tokens.items(), gates, strict=True):
        assert len(gate) == len(own)
        found[expert] = dict(zip(own, (gate > 0).double().mean(dim=1).tolist(), strict=True))
    return found


def positions_of(units):
    """Return the shares of active units by prompt and captured position."""
    found = {divmod(token, TOKENS): share for token, share in units.items()}
    return {(sample, at - TOKENS): share for (sample, at), share in found.items() if at - TOKENS in POSITIONS}


def computed(folder, ran, weights, quarantined=(), layers=range(LAYERS), **options):
    """Return the group of a run of two sets, which are the first and the second half of the prompts."""
    halves = {"bad": slice(0, PROMPTS // 2), "good": slice(PROMPTS // 2, PROMPTS)}
    layers = list(layers)
    run = store_run(
        folder,
        {name: {"resid_mid": ran.mid[half][:, :, layers].astype(np.float32)} for name, half in halves.items()},
        experts={name: ran.experts[half][:, :, layers] for name, half in halves.items()},
        n_experts=weights.config.num_local_experts if hasattr(weights.config, "num_local_experts") else 4,
        quarantined={"good": dict.fromkeys(quarantined, "not finite")},
        layers=layers,
        **options,
    )
    return routing.compute(context_of(run, {}, weights=weights))


def expected_shares(ran, shape, quarantined=(), layers=range(LAYERS)):
    shares = np.full(shape, np.nan)
    for row, position, index, expert in np.ndindex(shape):
        units = ran.active.get((layers[index], expert), {})
        samples = [
            sample
            for sample in range(row * PROMPTS // 2, (row + 1) * PROMPTS // 2)
            if (sample, POSITIONS[position]) in units and (row == 0 or sample - PROMPTS // 2 not in quarantined)
        ]
        if samples:
            shares[row, position, index, expert] = np.mean([units[sample, POSITIONS[position]] for sample in samples])
    return shares


@each("family", COMPUTED)
def test_active_units_are_those_of_the_models_own_experts(family, tmp_path):
    weights = saved(family, tmp_path / "model")
    ran = forward(family, tmp_path / "model")
    result = computed(tmp_path / "store", ran, weights)
    shares = result.arrays["expert_active_units"]
    expected = expected_shares(ran, shares.shape)
    np.testing.assert_allclose(shares, expected, rtol=0, atol=1e-12)
    assert np.unique(shares[np.isfinite(shares)]).size > 5
    np.testing.assert_array_equal(np.isfinite(shares), result.arrays["expert_share"][..., 0] > 0)
    assert "notes" not in result.attributes


@each("family", ["qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss", "granitemoe"])
def test_a_model_in_float64_gives_the_same(family, tmp_path):
    weights = saved(family, tmp_path / "model")
    ran = forward(family, tmp_path / "model", torch.float64)
    shares = computed(tmp_path / "store", ran, weights).arrays["expert_active_units"]
    np.testing.assert_allclose(shares, expected_shares(ran, shares.shape), rtol=0, atol=1e-12)


def test_quarantined_prompts_and_layers_that_were_not_captured_are_left_out(tmp_path):
    weights, layers, bad = saved("mixtral", tmp_path / "model"), [1, 4], (0, 3)
    ran = forward("mixtral", tmp_path / "model")
    shares = computed(tmp_path / "store", ran, weights, bad, layers).arrays["expert_active_units"]
    expected = expected_shares(ran, shares.shape, bad, layers)
    assert not np.array_equal(expected, expected_shares(ran, shares.shape, (), layers), equal_nan=True)
    np.testing.assert_allclose(shares, expected, rtol=0, atol=1e-12)


def made_up(d_model):
    rng = np.random.default_rng(0)
    experts = np.sort(rng.random((PROMPTS, 2, LAYERS, 4)).argsort(axis=-1)[..., :2])
    return Forward(rng.standard_normal((PROMPTS, 2, LAYERS, d_model)), experts, {})


@each("family", sorted(READ_SOMETHING_ELSE))
def test_experts_that_do_not_read_the_norm_of_resid_mid_are_refused(family, tmp_path):
    weights = saved(family, tmp_path / "model")
    result = computed(tmp_path / "store", made_up(48), weights)
    assert np.isnan(result.arrays["expert_active_units"]).all()
    assert np.isfinite(result.arrays["expert_share"]).any()
    (note,) = texts_of(result.attributes["notes"])
    assert_says(note, "missing … read something else than … norm of resid_mid")


def test_without_the_weights_the_group_has_its_other_arrays(tmp_path):
    weights = saved("mixtral", tmp_path / "model")
    ran = made_up(48)
    run = store_run(tmp_path / "store", {"bad": {"resid_mid": ran.mid}}, experts={"bad": ran.experts}, n_experts=4)
    context = context_of(run, {}, weights=weights)

    def lost():
        raise ModelError("the files are gone")

    context.open_weights = lost
    result = routing.compute(context)
    assert np.isnan(result.arrays["expert_active_units"]).all()
    assert np.isfinite(result.arrays["expert_share"]).any()
    (note,) = result.attributes["notes"]
    assert_says(note, "missing … the files are gone")


def test_without_resid_mid_no_weights_are_opened(tmp_path):
    ran = made_up(48)
    run = store_run(tmp_path / "store", {"bad": {"resid_pre": ran.mid}}, experts={"bad": ran.experts}, n_experts=4)
    context = context_of(run, {})
    context.open_weights = pytest.fail
    result = routing.compute(context)
    assert np.isnan(result.arrays["expert_active_units"]).all()
    assert "did not capture resid_mid" in result.attributes["notes"][0]


@pytest.mark.parametrize("bias", [None, np.array([0.0, 0.0, -2.0])])
def test_an_active_share_by_hand(bias):
    """Two tokens with the norms (1, 1) and (-1, 1), and the units x₁, x₂ and x₁ + x₂."""
    matrix = np.array([[1.0, 0, 1], [0, 1, 1]])
    norm = Norm("rms", 0.0, np.ones(2), np.zeros(2))
    share = active_share(np.array([[2.0, 2], [-3, 3]], np.float32), norm, matrix, bias)
    # (1, 1, 2) has three positive inputs, (-1, 1, 0) one; the bias makes 2 to 0, which is not positive
    assert share == (4 if bias is None else 3) / 6


def test_many_tokens_are_computed_in_parts():
    rng = np.random.default_rng(1)
    states, matrix = rng.standard_normal((2500, 6)), rng.standard_normal((6, 9))
    norm = Norm("layer", 1e-5, rng.standard_normal(6), rng.standard_normal(6))
    centred = states - states.mean(axis=1, keepdims=True)
    dense = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * norm.scale + norm.bias
    assert active_share(states, norm, matrix, None) == (dense @ matrix > 0).mean()
