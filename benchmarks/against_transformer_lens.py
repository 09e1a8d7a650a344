"""Compare Theodolite's sites with TransformerLens' hooks, on tiny random models of common families and a real model.

TransformerLens is not a dependency: install the pinned version in a separate environment for this check. Its bridge
runs transformers' modules with its own attention code, and maps hooks to modules by its own table of families. Weights
are raw (not folded or centred), arithmetic is float32, and each side has its own copy of the model. The error is the
largest ‖x − y‖ / ‖y‖ over a prompt's positions and all layers. Each error above TOLERANCE needs an explanation, which
the script tests: our code, changed as the explanation says, must equal TransformerLens (`error_if_so`). The result
lists families that TransformerLens cannot run with its error. The last line is one JSON object.

Usage: python benchmarks/against_transformer_lens.py --help
"""

import copy
from collections.abc import Callable, Sequence
from importlib.metadata import distributions
from typing import Any
from unittest.mock import patch

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMaskedLM
from transformers.models.falcon import modeling_falcon

from theodolite.sites import BLOCK_SITES, Site
from theodolite_jobs.models.load import load_tokenizer, wrap
from theodolite_jobs.models.quiet import quiet_transformers
from theodolite_jobs.models.reference import Reading, read_sites, relative_errors

PINNED = "4.3.0"
TOLERANCE = 1e-5
CHAT = [{"role": "user", "content": "List three facts about the theodolite."}]

PLAIN: dict[str, Any] = {"vocab_size": 64, "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4}
PLAIN |= {"intermediate_size": 80, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1}
GROUPED = {**PLAIN, "num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 16}  # heads wider than d_model / n_heads
SLIDING = {**WIDE, "sliding_window": 6}
EXPERTS = {**GROUPED, "num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
FALCON = {**PLAIN, "bias": True, "ffn_hidden_size": 80, "multi_query": False}
GROUPS = {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}

CONFIGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bert", "bloom", "gpt2", "gpt_neox", "roberta", "xlm-roberta", "mpnet"), PLAIN),
    **dict.fromkeys(("cohere", "olmo", "olmo2", "phi", "phi3", "qwen2"), GROUPED),
    **dict.fromkeys(("gemma", "llama", "qwen3"), WIDE),
    **dict.fromkeys(("cohere2", "gemma2", "gemma3_text", "mistral"), SLIDING),
    "gemma3": {"text_config": SLIDING, "vision_config": {**VISION, "image_size": 28, "patch_size": 14}},
    "gptj": {**PLAIN, "rotary_dim": 8},
    "gpt_neox/sequential": {**PLAIN, "use_parallel_residual": False},
    "granite": {**GROUPED, "residual_multiplier": 0.4, "embedding_multiplier": 3.0},
    "mixtral": EXPERTS,
    "opt": {**PLAIN, "ffn_dim": 80, "word_embed_proj_dim": 48},
    "opt/post-norm": {**PLAIN, "ffn_dim": 80, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    "phi/qk norm": {**PLAIN, "qk_layernorm": True},
    "stablelm": {**GROUPED, "partial_rotary_factor": 0.5},
    "stablelm/parallel": {**GROUPED, "partial_rotary_factor": 0.5, "use_parallel_residual": True},
    "falcon/multi-query": {**FALCON, "multi_query": True},
    "falcon/sequential": {**FALCON, "parallel_attn": False},
    "falcon/sequential, ALiBi": {**FALCON, "parallel_attn": False, "alibi": True},
    "falcon/groups": GROUPS,
    "falcon/groups, multi_query": {**GROUPS, "multi_query": True},  # the default; the groups decide
    "falcon/groups, one norm": {**GROUPS, "num_ln_in_parallel_attn": 1},
    # Families without a record; a probe finds their sites.
    **dict.fromkeys(("apertus", "ernie4_5", "exaone4", "glm", "glm4", "olmo3", "smollm3", "starcoder2"), GROUPED),
    **dict.fromkeys(("gpt_oss", "granitemoe", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"), EXPERTS),
    **dict.fromkeys(("gpt_bigcode", "mpt"), PLAIN),
    "codegen": {**PLAIN, "rotary_dim": 8},
}
"""By `config.model_type`, optionally followed by a slash and the special option."""
CLASSES: dict[str, Any] = dict.fromkeys(("bert", "roberta", "xlm-roberta", "mpnet"), AutoModelForMaskedLM)
CLASSES["gemma3"] = AutoModelForImageTextToText


def main() -> None:
    options = measuring.read_options("Compare sites with TransformerLens' hooks; print JSON.")
    require_transformer_lens()
    ids = torch.randint(3, 64, (24,), generator=torch.Generator().manual_seed(0)).tolist()
    families = {name: compare(name, tiny_model(name), ids) for name in CONFIGS}
    families[measuring.MODEL] = compare(measuring.MODEL, *real_model())
    result = {"families": families, "tolerance": TOLERANCE}
    measuring.publish(result, options.out, transformer_lens=PINNED)
    differing = {name: result["disagreement"] for name, result in families.items() if "disagreement" in result}
    unexplained = [name for name, result in differing.items() if not result["error_if_so"] <= TOLERANCE]
    if unexplained:
        raise SystemExit(f"models that differ without a confirmed explanation: {', '.join(unexplained)}")


def require_transformer_lens() -> None:
    installed = next((one.version for one in distributions(name="transformer-lens")), "none")
    if installed != PINNED:
        install = f"in a separate environment, run pip install transformer-lens=={PINNED}"
        raise SystemExit(f"TransformerLens {installed} is installed, this check needs {PINNED}; {install}")


def tiny_model(name: str) -> Any:
    """Return a model with random biases and norm scales too, so that mistakes have an effect."""
    torch.manual_seed(0)
    family = name.partition("/")[0]
    config = AutoConfig.for_model(family, **copy.deepcopy(CONFIGS[name]))
    model = CLASSES.get(family, AutoModelForCausalLM).from_config(config).float().eval().requires_grad_(False)
    for path, parameter in model.named_parameters():
        if parameter.ndim == 1 or "norm" in path:
            parameter.add_(0.3 * torch.randn_like(parameter))
        else:
            parameter.mul_(4)  # about as large as trained weights, so that each branch has an effect
    return model


def real_model() -> tuple[Any, list[int]]:
    folder = measuring.chat_model()
    ids = load_tokenizer(folder).apply_chat_template(CHAT, add_generation_prompt=True, return_dict=True)["input_ids"]
    with quiet_transformers():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), ids


def compare(name: str, model: Any, ids: Sequence[int]) -> dict[str, Any]:
    ours = read_ours(copy.deepcopy(model), ids)
    try:
        theirs = read_theirs(copy.deepcopy(model), ids)
    except Exception as error:  # each family fails with another error
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        measuring.say(f"{name}: TransformerLens fails: {reason}")
        return {"error": reason}
    errors = largest_errors(ours, theirs)
    measuring.say(f"{name}: " + ", ".join(f"{site} {error:.1e}" for site, error in errors.items()))
    known_by = wrap(model.base_model).anatomy.known_by
    one_sided = [site for site in BLOCK_SITES if (site in ours) != (site in theirs)]
    result: dict[str, Any] = {"errors": errors, "one_sided": one_sided, "known_by": known_by}
    differing = [site for site, error in errors.items() if not error <= TOLERANCE]  # a NaN differs too
    if differing:
        because, as_they_do = EXPLANATIONS.get(name, ("unknown", read_ours))
        error = max(largest_errors(as_they_do(copy.deepcopy(model), ids), theirs).values())
        result["disagreement"] = {"sites": differing, "because": because, "error_if_so": error}
        measuring.say(f"  {because}: error {error:.1e} with this change")
    return result


def read_ours(model: Any, ids: Sequence[int]) -> Reading:
    return read_sites(wrap(model.base_model), tuple(ids), range(-len(ids), 0))


@torch.inference_mode()
def read_theirs(model: Any, ids: Sequence[int]) -> Reading:
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    with quiet_transformers():
        model.set_attn_implementation("eager")  # as TransformerLens does when it loads a model
    bridge = build_bridge_from_module(model, type(model).__name__, hf_config=model.config)
    _, cache = bridge.run_with_cache(torch.tensor([ids]))
    hooks = {site: [f"blocks.{layer}.hook_{site}" for layer in range(bridge.cfg.n_layers)] for site in BLOCK_SITES}
    cached = {site: names for site, names in hooks.items() if names[0] in cache}
    return {site: np.stack([cache[name][0].double().numpy() for name in names], 1) for site, names in cached.items()}


def largest_errors(ours: Reading, theirs: Reading) -> dict[Site, float]:
    return {site: float(relative_errors(ours[site], theirs[site]).max()) for site in theirs if site in ours}


def around_norms(model: Any, ids: Sequence[int]) -> Reading:
    ours = read_ours(model, ids)
    return {**ours, Site.ATTN_OUT: ours[Site.RESID_MID], Site.RESID_MID: ours[Site.RESID_MID] + ours[Site.MLP_OUT]}


def alibi_twice(model: Any, ids: Sequence[int]) -> Reading:
    once = modeling_falcon.build_alibi_tensor
    with patch.object(modeling_falcon, "build_alibi_tensor", lambda *args, **options: 2 * once(*args, **options)):
        return read_ours(model, ids)


def queries_first(model: Any, ids: Sequence[int]) -> Reading:
    groups, width = model.config.num_kv_heads, model.config.head_dim
    for block in model.base_model.h:
        for stored in block.self_attention.query_key_value.parameters():
            parts = stored.split([stored.shape[0] - 2 * groups * width, groups * width, groups * width])
            stored.copy_(torch.cat([part.unflatten(0, (groups, -1)) for part in parts], dim=1).flatten(0, 1))
    return read_ours(model, ids)


_ENCODER = (
    "post-norm: their attn_out is normalised (our resid_mid), and their resid_mid is the sum after the MLP",
    around_norms,
)
EXPLANATIONS: dict[str, tuple[str, Callable[[Any, Sequence[int]], Reading]]] = {
    "bert": _ENCODER,
    "roberta": _ENCODER,
    "falcon/sequential, ALiBi": ("they add ALiBi twice, as transformers' eager attention does", alibi_twice),
    "falcon/groups": (
        "they read all queries, then all keys, then all values; the file has them group by group",
        queries_first,
    ),
}

if __name__ == "__main__":
    main()
