"""Which layers of a model have experts, known before its weights are loaded."""

import copy

import torch
from support import tiny
from support.each import each
from support.tiny_configs import CONFIGS
from transformers import JetMoeConfig

from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.routers import captured_experts, experts_of, has_experts, hook_router, router_of


@each(
    "family, n_experts, layers",
    [
        ("mixtral", 3, (0, 1, 2, 3, 4)),
        ("qwen3_moe", 4, (1, 3)),
        ("qwen2_moe", 4, (0, 2, 3, 4)),
        ("deepseek_v3", 4, (2, 3, 4)),
        ("gpt_oss", 4, (0, 1, 2, 3, 4)),
        ("llama4", 4, (1, 3, 4)),
        ("granitemoeshared", 4, (0, 1, 2, 3, 4)),
        ("nemotron_h", 4, (2, 3)),
        ("gemma4_text-experts", 4, (0, 1, 2, 3, 4)),
    ],
)
def test_the_skeleton_has_the_layers_with_experts(family, n_experts, layers):
    assert experts_of(CONFIGS[family]) == (n_experts, 2, layers)


def test_the_routing_of_every_family_with_experts_can_be_read():
    without = ["nemotron_h-dense"]  # it states experts, but none of its blocks has them
    assert [family for family, config in CONFIGS.items() if has_experts(config) and not experts_of(config)] == without


def test_a_model_without_experts_has_none():
    assert experts_of(CONFIGS["llama"]) is None
    assert experts_of(CONFIGS["granitemoehybrid-dense"]) is None


def test_a_family_without_a_record_has_no_known_experts():
    config = JetMoeConfig(num_hidden_layers=2, hidden_size=32, num_local_experts=4, num_experts_per_tok=2)
    assert known_anatomy(config) is None
    assert experts_of(config) is None


def test_layers_that_choose_different_numbers_of_experts_are_not_recorded():
    config = copy.deepcopy(CONFIGS["hunyuan_v1_moe"])
    config.moe_topk = [2] * 5
    assert experts_of(config) == experts_of(CONFIGS["hunyuan_v1_moe"])
    config.moe_topk = [2, 2, 1, 2, 2]
    assert experts_of(config) is None


def test_experts_are_recorded_only_if_a_captured_layer_has_them():
    config = CONFIGS["deepseek_v3"]
    assert captured_experts(config, [0, 1]) is None
    assert captured_experts(config, [1, 2]) == experts_of(config)


def test_a_block_with_two_modules_of_experts_has_no_router():
    blocks = wrap(tiny.tiny_model("mixtral")).blocks
    assert router_of(blocks[0]).module == "mlp.experts"
    assert router_of(torch.nn.ModuleList(blocks[:2])) is None


def test_a_score_of_zero_is_no_expert():
    """In half precision, the score of a selected expert of Llama 4 can be 0: the expert then adds nothing."""
    model = wrap(tiny.tiny_model("llama4_text"))
    block, kept = model.blocks[1], []
    router = router_of(block)
    with torch.no_grad(), hook_router(block, router, kept.append):
        module = block.get_submodule(router.module)
        module.weight.zero_()
        module.weight[0], module.weight[1] = 1.0, -1.0
        module(torch.full((1, module.in_features), 1000.0 / module.in_features))
        module(torch.full((1, module.in_features), -1000.0 / module.in_features))
    first, second = (one[0].tolist() for one in kept)
    assert first[0] == 0
    assert second[0] == 1
    with torch.no_grad(), hook_router(block, router, kept.append):
        module.weight[:] = -1.0
        module(torch.full((1, module.in_features), 1000.0 / module.in_features))
    assert kept[-1].tolist() == [[-1, -1]]
