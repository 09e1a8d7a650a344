"""The facts of a model, taken from its configuration."""

import math
from typing import Any

import pytest
import torch
from families.facts import LATENT, LLAMA4, facts_of
from families.sites import POST_NORM
from support import tiny
from support.each import each
from support.tiny_configs import CONFIGS
from transformers import DeepseekV3Config, GPTNeoXJapaneseConfig

from theodolite_jobs.models.facts import describe_model, skeleton

# The facts


BIASES = {
    "bert": (True, True, True),
    "bloom": (True, True, True),
    "cohere": (False, False, False),
    "deberta": (True, True, True),
    "gemma3": (False, False, False),
    "gte": (True, True, True),
    "gpt2": (True, True, True),
    "gptj": (False, False, True),
    "jina_embeddings_v3": (True, True, True),
    "llama": (True, True, True),  # the tiny model has all of them
    "llama-yarn": (False, False, False),
    "mixtral": (False, False, False),
    "mpnet": (True, True, True),
    "olmo": (False, False, False),
    "opt": (True, True, True),
    "phi": (True, True, True),
    "phi-qk-norm": (True, True, True),
    "qwen2": (True, False, False),
    "stablelm": (True, False, False),
    "stablelm-parallel": (False, False, False),
}


@each("family", BIASES)
def test_biases_match_the_architecture(family: str) -> None:
    biases = facts_of(family)["biases"]
    assert biases == dict(zip(("query_key_value", "output", "mlp"), BIASES[family], strict=True))


@each("family, kind, offset, affine, epsilon, branches, final", [
    ("bert", "layer", 0, "scale and bias", 1e-12, ["attention_output", "mlp_output"], None),
    ("cohere", "layer", 0, "scale", 1e-5, ["attention", "mlp"], "norm"),
    ("gemma2", "rms", 1, "scale", 1e-6, ["attention", "attention_output", "mlp", "mlp_output"], "norm"),
    ("gemma3_text", "rms", 1, "scale", 1e-6, ["attention", "attention_output", "mlp", "mlp_output"], "norm"),
    ("gpt2", "layer", 0, "scale and bias", 1e-5, ["attention", "mlp"], "ln_f"),
    ("olmo", "layer", 0, "none", 1e-5, ["attention", "mlp"], "norm"),
    ("olmo2", "rms", 0, "scale", 1e-5, ["attention_output", "mlp_output"], "norm"),
    ("qwen2", "rms", 0, "scale", 1e-6, ["attention", "mlp"], "norm"),
])  # fmt: skip
def test_norms_have_kind_epsilon_and_learned_parameters(
    family: str, kind: str, offset: float, affine: str, epsilon: float, branches: list[str], final: str | None
) -> None:
    norms = facts_of(family)["norms"]
    assert (norms["kind"], norms["scale_offset"], norms["post_norm"]) == (kind, offset, family in POST_NORM)
    assert list(norms["block"]) == branches
    assert (norms["final"] and norms["final"]["module"]) == final
    for norm in [*norms["block"].values(), *([norms["final"]] if final else [])]:
        assert (norm["affine"], norm["epsilon"]) == (affine, epsilon)


def test_the_epsilon_in_the_code_of_olmo_is_the_one_its_norm_uses() -> None:
    norm = tiny.tiny_model("olmo").layers[0].input_layernorm
    deviation = 1e-3
    normed = norm(torch.tensor([deviation, -deviation] * 24))
    epsilon = (deviation / normed[0].item()) ** 2 - deviation**2
    assert facts_of("olmo")["norms"]["final"]["epsilon"] == pytest.approx(epsilon, rel=1e-4)  # float32 in, float32 out


# Positions


def rotary(family: str) -> Any:
    return facts_of(family)["positions"]["rotary"]


@each(
    "family, fraction",
    [
        ("gpt_neox", 4 / 12),  # the configuration requests a quarter; three entries make two pairs
        ("glm4", 0.5),
        ("gptj", 8 / 12),
        ("llama", 1),
        ("nemotron", 0.5),
        ("phi", 0.5),
        ("phi3-partial", 0.5),
        ("phi3-longrope", 1),
        ("stablelm", 0.5),
    ],
)
def test_the_rotated_fraction_of_a_head(family: str, fraction: float) -> None:
    assert rotary(family)["all"]["rotated_fraction"] == pytest.approx(fraction)


def test_rotary_settings_name_kind_base_and_factor() -> None:
    assert rotary("llama-yarn")["all"] == {"kind": "yarn", "base": 10000.0, "factor": 4.0, "rotated_fraction": 1.0}
    assert rotary("phi3-longrope")["all"]["kind"] == "longrope"
    assert rotary("llama-dynamic")["all"]["kind"] == "dynamic"


def test_rotary_settings_may_differ_by_layer_type() -> None:
    for family in ("gemma3", "gemma3_text"):
        bases = {layers: settings["base"] for layers, settings in rotary(family).items()}
        assert bases == {"sliding_attention": 10000.0, "full_attention": 1000000.0}
    gemma4 = rotary("gemma4_text")
    assert gemma4["sliding_attention"] == {"kind": "default", "base": 10000.0, "factor": None, "rotated_fraction": 1}
    assert gemma4["full_attention"]["kind"] == "proportional"
    assert gemma4["full_attention"]["rotated_fraction"] == 0.25
    assert rotary("cohere2")["full_attention"] is None  # these layers have no positions
    assert rotary("cohere2")["sliding_attention"]["rotated_fraction"] == 1.0
    assert rotary("exaone4")["full_attention"] is None
    assert set(rotary("exaone4-without-window")) == {"all"}
    assert rotary("smollm3")["layers 1, 4"] is None
    assert rotary("smollm3")["all"]["rotated_fraction"] == 1.0


def test_the_base_in_the_code_of_gptj_is_the_one_it_uses() -> None:
    second_sine = tiny.tiny_model("gptj").h[0].attn.embed_positions[1, 1].item()
    base = math.asin(second_sine) ** (-8 / 2)  # its angle is base ** (-2 / 8) at position 1
    assert rotary("gptj")["all"] == {
        "kind": "default",
        "base": pytest.approx(base, rel=1e-5),
        "factor": None,
        "rotated_fraction": 8 / 12,
    }


@each(
    "family, kind",
    [
        ("bert", "learned"),
        ("bloom", "ALiBi"),
        ("falcon-heads", "ALiBi"),
        ("gpt2", "learned"),
        ("deberta", "relative"),
        ("deberta-learned", "learned"),
        ("deberta-v2", "learned and relative"),
        ("mpnet", "learned and relative"),
        ("opt", "learned"),
    ],
)
def test_other_positions_have_no_rotary_settings(family: str, kind: str) -> None:
    assert facts_of(family)["positions"] == {"kind": kind, "rotary": None}


def test_interleaved_rotary_positions_are_recognised() -> None:
    interleaved = {family for family in CONFIGS if "interleaved" in facts_of(family)["positions"]["kind"]}
    assert (
        interleaved
        == {"cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "glm", "glm4", "gptj", "helium"} | LLAMA4 | LATENT
    )


def test_encoders_are_not_causal_and_may_have_reserved_positions() -> None:
    assert not facts_of("bert")["causal"]
    assert facts_of("gpt2")["causal"]
    assert facts_of("bert")["context_length"] == 128
    assert facts_of("roberta")["context_length"] == 126


# Unknown families


def test_an_unknown_family_has_a_note_on_the_probe_and_no_guessed_facts() -> None:
    config = GPTNeoXJapaneseConfig(vocab_size=64, hidden_size=48, num_hidden_layers=2, num_attention_heads=4)
    facts = describe_model(config)
    assert (
        "'gpt_neox_japanese' is not in the table; a survey probes the loaded model for its sites" in facts["notes"][0]
    )
    assert facts["d_head"] == 12
    assert not {"sites", "absent_sites", "norms", "positions", "biases", "qk_norm"} & set(facts)


def test_describe_model_does_not_change_the_configuration() -> None:
    config = DeepseekV3Config(num_hidden_layers=1, n_routed_experts=8, dtype="bfloat16")
    before = config.to_dict()
    assert all(parameter.is_meta for parameter in skeleton(config).parameters())
    describe_model(config)
    assert config.to_dict() == before
