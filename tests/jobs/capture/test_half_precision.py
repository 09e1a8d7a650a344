"""The parity check in half precision: sound models pass, and a mistake is refused, also in a mixture of experts."""

import numpy as np
import pytest
import torch
from support import tiny
from support.each import each
from support.tiny_configs import CONFIGS
from support.tiny_sizes import GROUPED, PLAIN
from transformers import AutoModel, DeepseekV32Config, Llama4TextConfig, Olmo3Config, PhimoeConfig, Qwen3MoeConfig

from theodolite.errors import ParityError
from theodolite.sites import Site
from theodolite_jobs.capture import parity
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.parity import certify
from theodolite_jobs.capture.plan import HALF_PROBES, plan_set, probe_prompts
from theodolite_jobs.capture.rounding import ROUNDING, Rounding, excess
from theodolite_jobs.models.batching import can_share_prefix, length_class_of
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.precision import computed_in
from theodolite_jobs.models.reference import read_sites

_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
_LATENT = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
HALF_CONFIGS = {
    "llama4": Llama4TextConfig(
        **GROUPED,
        head_dim=16,
        intermediate_size_mlp=80,
        num_local_experts=4,
        num_experts_per_tok=1,
        interleave_moe_layer_step=1,
        attention_chunk_size=16,
    ),
    "olmo3": Olmo3Config(**GROUPED, sliding_window=6),
    "phimoe": PhimoeConfig(**GROUPED, **_EXPERTS),
    "qwen3_moe": Qwen3MoeConfig(**GROUPED, head_dim=16, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32),
}


def tiny_half(family):
    config = HALF_CONFIGS.get(family) or CONFIGS[family]
    return wrap(tiny.random_model(type(config).from_dict(config.to_dict()), AutoModel).to(torch.bfloat16))


def certify_half(model, lengths=range(11, 27), positions=(-3, -1)):
    tokens = {"set": tiny.random_tokens(lengths, 9)}
    plan = plan_set(
        "set",
        tokens["set"],
        positions,
        shard_prompts=64,
        batch_tokens=512,
        share_prefix=can_share_prefix(model.config, model.anatomy),
        length_class=length_class_of(model.config),
    )
    probes = {"set": probe_prompts(tokens["set"], HALF_PROBES)}
    return certify(model, (*model.anatomy.taps, Site.RESID_FINAL), range(5), {"set": plan.layout}, probes)


# Before, the bound between captured and plain vectors refused each of them.
@each("family", HALF_CONFIGS)
def test_sound_models_pass(family):
    certificate = certify_half(tiny_half(family))
    assert certificate.prompts == HALF_PROBES
    assert certificate.bound is None
    for site, distances in certificate.float32_distances.items():
        assert distances["captured"][0] <= 2 * distances["plain"][0] + ROUNDING[torch.bfloat16], site
    assert certificate.routing == ("no experts" if family == "olmo3" else "compared")
    if family == "phimoe":
        assert 0 < certificate.routing_flips < certificate.routed


def off_by_one_layer(activations):
    for site, values in activations.items():
        if site is not Site.RESID_FINAL:
            values[:] = np.roll(values, 1, axis=2)


def other_prompt(activations):
    for values in activations.values():
        values[:] = np.roll(values, 1, axis=0)


def other_position(activations):
    for values in activations.values():
        values[:] = np.roll(values, 1, axis=1)


def wrong_site(activations):
    activations[Site.RESID_MID][:] = activations[Site.RESID_PRE]


def part_of_one_layer(activations):
    activations[Site.RESID_POST][:, :, 4] *= 1.1


def one_prompt(activations):
    if len(activations[Site.RESID_PRE]) == 2:  # the batch of the shortest and the longest prompt
        activations[Site.RESID_PRE][0, :, 2:] *= 1.2


@pytest.fixture
def unarbitrated(monkeypatch):
    """Leave out the runs in float64, which only explain a failure."""
    monkeypatch.setattr(parity, "_arbitrate", lambda *_: "the cause was not measured")


@pytest.mark.parametrize(
    ("family", "mistake"),
    [
        ("llama", other_prompt),
        ("llama", other_position),
        ("llama", wrong_site),
        ("llama", one_prompt),
        ("qwen3_moe", off_by_one_layer),
        ("qwen3_moe", part_of_one_layer),
    ],
)
def test_a_mistake_in_half_precision_alone_is_refused(monkeypatch, unarbitrated, family, mistake):
    capture = Engine.capture

    def mistaken(self, *arguments):
        captured = capture(self, *arguments)
        if self.model.dtype == torch.bfloat16:
            mistake(captured.activations)
        return captured

    monkeypatch.setattr(Engine, "capture", mistaken)
    with pytest.raises(ParityError, match="farther from float32 than rounding explains"):
        certify_half(tiny_half(family))


def test_padding_that_leaks_is_refused(monkeypatch, unarbitrated):
    forward = Engine._forward

    def leaking(self, task, prompts, spans):
        if self.model.dtype == torch.float32:
            return forward(self, task, prompts, spans)
        padding = [max(map(len, prompts)) - len(ids) for ids in prompts]
        padded = [(*ids, *ids[-1:] * more) for ids, more in zip(prompts, padding, strict=True)]
        moved = [
            tuple((start + more, stop + more) for start, stop in own) for own, more in zip(spans, padding, strict=True)
        ]
        return forward(self, task, padded, moved)

    monkeypatch.setattr(Engine, "_forward", leaking)
    with pytest.raises(ParityError, match="farther from float32 than rounding explains"):
        certify_half(tiny_half("phimoe"))


def test_a_model_that_is_not_continuous_is_reported(monkeypatch):
    config = DeepseekV32Config(
        **PLAIN,
        **_LATENT,
        num_key_value_heads=4,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
        index_topk=4,
        index_n_heads=1,
        index_head_dim=16,
    )
    model = wrap(tiny.random_model(config, AutoModel))
    certify_half(model)  # only prompts of one length share a batch, so padding does not change what the indexer selects

    def one_class(_config):
        return lambda _length: 0

    monkeypatch.setattr("theodolite_jobs.capture.probes.length_class_of", one_class)
    monkeypatch.setitem(globals(), "length_class_of", one_class)
    with pytest.raises(ParityError, match=r"plain Hugging Face itself changes by .* not continuous .as with ties"):
        certify_half(model)


def rounding_of(captured, plain, rerouted=np.inf):
    """Return distances at one site and layer."""
    as_column = {Site.RESID_PRE: np.asarray(captured)[:, None]}, {Site.RESID_PRE: np.asarray(plain)[:, None]}
    return Rounding(
        {site: [3] for site in as_column[0]}, *as_column, np.broadcast_to(rerouted, len(captured)), "compared", 0, 100
    )


def test_two_draws_of_the_same_distances_pass():
    unit = ROUNDING[torch.bfloat16]
    rng = np.random.default_rng(0)
    for _ in range(500):  # half of the probes are routed elsewhere, and far away
        captured, plain = np.exp(rng.normal(-5, 0.3, (2, 32))) + (rng.random((2, 32)) < 0.5) * rng.random((2, 32))
        assert excess(rounding_of(captured, plain, rerouted=0.0), unit) is None


def test_distances_that_are_farther_in_most_probes_are_refused():
    unit = ROUNDING[torch.bfloat16]
    plain = np.full(32, 0.01)
    captured = np.where(np.arange(32) < 20, 0.03, 0.01)
    assert "farther in 20 of 32 probes, nearer in 0" in excess(rounding_of(captured, plain), unit)
    assert excess(rounding_of(np.where(np.arange(32) < 19, 0.03, 0.01), plain), unit) is None


def test_one_distance_above_the_others_is_refused_unless_it_is_routed_elsewhere():
    unit = ROUNDING[torch.bfloat16]
    plain = np.full(32, 0.01)
    captured = np.where(np.arange(32) == 7, 0.05, 0.01)
    assert "1 of 32 probes above 4.4e-02" in excess(rounding_of(captured, plain), unit)
    assert excess(rounding_of(captured, plain, rerouted=2.0), unit) is None
    assert "1 of 32" in excess(rounding_of(captured, plain, rerouted=3.0), unit)  # its attention precedes the experts
    elsewhere = np.where(np.arange(32) == 8, 2.0, np.inf)
    plain[8] = 1.0  # a plain vector after other experts is no measure of the others
    assert "1 of 32 probes above 4.4e-02" in excess(rounding_of(captured, plain, rerouted=elsewhere), unit)


@each("family", ["gemma3_text", "mixtral", "bert"])
def test_a_model_computes_in_float32_with_its_own_weights(family):
    ids = tuple(range(3, 20))
    half = wrap(tiny.tiny_model(family).bfloat16())
    before = dict(half.module.named_parameters())
    with computed_in(half, torch.float32):
        read = read_sites(half, ids, [-2, -1])
    assert all(weight is before[name] for name, weight in half.module.named_parameters())
    assert not any(module._forward_pre_hooks for module in half.module.modules())
    expected = read_sites(wrap(half.module.float()), ids, [-2, -1])
    for site, values in expected.items():
        np.testing.assert_array_equal(read[site], values)
