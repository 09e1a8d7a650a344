"""The facts of a family, taken from its configuration, are those of its model."""

import json
from functools import cache
from typing import Any

import yaml
from support.hand_runs import HYBRIDS
from support.tiny_configs import CONFIGS

from families.sites import PARALLEL, POST_NORM
from theodolite_jobs.estimate import count_parameters
from theodolite_jobs.models.facts import describe_model
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.text_part import text_part

GEMMA4 = {"gemma4", "gemma4_text", "gemma4_text-experts", "gemma4_unified_text"}
LLAMA4 = {"llama4", "llama4_text"}
LATENT = {"deepseek_v2", "deepseek_v3", "glm4_moe_lite"}
FUSED_ON_DISK = {"gte", "jina_embeddings_v3", "nomic_bert"}


@cache
def facts_of(family: str) -> dict[str, Any]:
    return describe_model(CONFIGS[family])


def plain_types(family: str, _base: Any) -> None:
    facts = facts_of(family)
    assert json.loads(json.dumps(facts)) == facts == yaml.safe_load(yaml.safe_dump(facts))
    assert facts["family"] == CONFIGS[family].model_type
    assert facts["notes"] == []


def sizes(family: str, base: Any) -> None:
    facts, config = facts_of(family), CONFIGS[family]
    anatomy = known_anatomy(config)
    assert anatomy is not None
    model = text_part(base)
    pooler = sum(parameter.numel() for name, parameter in model.named_parameters() if name.startswith("pooler."))
    total = sum(parameter.numel() for parameter in model.parameters()) - pooler  # load_options exclude it
    assert facts["class"] == type(model).__name__
    assert facts["n_layers"] == len(wrap(model).blocks) == 5
    assert facts["parameters"]["base_model"] == total == count_parameters(config)
    assert facts["weights"] == {"dtype": "float32", "bytes": 4 * total, "quantised": None}
    embedding = model.get_input_embeddings().weight
    assert facts["parameters"]["embedding"] == embedding.numel()
    assert facts["vocabulary_size"] == embedding.shape[0] == 64


def heads(family: str, base: Any) -> None:
    if family in LATENT | FUSED_ON_DISK:
        return
    facts, model, files = facts_of(family), wrap(base), known_anatomy(CONFIGS[family]).files
    weights = {path: weight.numel() // 48 for path, weight in model.blocks[0].named_parameters() if weight.ndim == 2}
    n_heads, n_kv_heads, d_head = facts["n_heads"], facts["n_kv_heads"], facts["d_head"]
    assert n_heads == 4
    assert weights[f"{files.output}.weight"] == n_heads * d_head
    read = sum(weights[f"{path}.weight"] for path in files.qkv)
    gated = {"qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"}  # a gate beside each query
    queries = n_heads * 2 if CONFIGS[family].get_text_config().model_type in gated else n_heads
    assert read == (queries + 2 * n_kv_heads) * d_head
    layers = known_anatomy(CONFIGS[family]).attention_layers(len(model.blocks))
    widths = [model.blocks[layer].get_submodule(files.output).weight.numel() // 48 // n_heads for layer in layers]
    assert facts.get("head_widths", [d_head] * len(layers)) == widths
    assert ("head_widths" in facts) == (len(set(widths)) > 1)


def sites(family: str, _base: Any) -> None:
    facts = facts_of(family)
    absent = {"resid_mid_sum": "norms follow the sums"}
    if family in POST_NORM:
        absent = {}
    elif family in PARALLEL:
        absent = dict.fromkeys(["resid_mid", "resid_mid_sum"], "in parallel")
    elif family in HYBRIDS:
        partial = {"attn_out": [0, 4], "head_out": [0, 4]}
        if family.startswith("nemotron_h"):
            absent |= {"resid_mid": "an MLP alone"}
            partial |= {"mlp_out": [1, 3] if family.endswith("dense") else [2, 3]}
        assert facts["partial_sites"] == partial
        assert facts["attention_layers"] == [0, 4]
    elif family in GEMMA4:
        absent |= {"mlp_out": "a vector of its per-layer input", "head_out": "have several widths"}
    elif family == "diffllama":
        absent |= {"head_out": "two heads share what they put out"}
    elif family == "falcon_h1":
        absent |= dict.fromkeys(["attn_out", "head_out"], "attention and a state space in one sum")
    all_sites = {"resid_pre", "resid_mid", "resid_mid_sum", "resid_post", "head_out", "attn_out", "mlp_out"}
    all_sites.add("resid_final")
    assert set(facts["sites"]) == all_sites - set(absent) - set(facts.get("partial_sites", ()))
    assert set(facts["absent_sites"]) == set(absent)
    for site, words in absent.items():
        assert words in facts["absent_sites"][site]


def norms_of_queries_and_keys(family: str, _base: Any) -> None:
    per_head = {"cohere", "gemma3", "gemma3_text", "phi-qk-norm", "qwen3", "stablelm"}
    per_head |= {"apertus", "exaone4", "exaone4-without-window", "hunyuan_v1_dense", "hunyuan_v1_moe"}
    per_head |= {"lfm2", "lfm2_moe"}
    per_head |= GEMMA4 | {"dots1", "glm4_moe", "qwen3_moe", "qwen3_vl"}
    per_head |= {"qwen3_5", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_5_text-attention", "qwen3_next"}
    full_width = {"flex_olmo", "minimax_m2", "olmo2", "olmo3", "olmoe", "olmoe-clipped"}
    expected = "per head" if family in per_head else "full width" if family in full_width else "none"
    expected = "per head, without a scale" if family == "llama4" else expected
    assert facts_of(family)["qk_norm"] == expected


def sliding_windows(family: str, _base: Any) -> None:
    some, every = {"tokens": 6, "layers": [0, 1, 3]}, {"tokens": 6, "layers": [0, 1, 2, 3, 4]}
    alternating = {"cohere2", "cwm", "exaone4", "gemma2", "gemma3", "gemma3_text", "ministral", "olmo3", "vaultgemma"}
    alternating |= {"gpt_oss"}
    expected = {
        "mistral": every,
        "starcoder2": every,
        "modernbert": {**some, "tokens": 8},  # on each side
        **dict.fromkeys(alternating | GEMMA4, some),
    }
    assert facts_of(family)["sliding_window"] == expected.get(family)


CHECKS = (plain_types, sizes, sites, norms_of_queries_and_keys, sliding_windows, heads)
