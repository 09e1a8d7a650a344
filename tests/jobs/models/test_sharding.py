"""Which models can be sharded over several GPUs, and the errors for the others."""

import pytest
from support.each import each
from support.tiny_configs import CONFIGS
from transformers import CodeGenConfig

from theodolite.errors import UnsupportedModelError
from theodolite.settings import Settings
from theodolite_jobs.models.load import load_model
from theodolite_jobs.models.sharding import check_shardable, choose_ranks


def test_auto_shards_every_model_that_can_be_sharded():
    assert Settings().parallelism == "auto"
    llama, gpt2 = CONFIGS["llama"], CONFIGS["gpt2"]
    assert choose_ranks("auto", llama, 2) == choose_ranks("tensor", llama, 2) == 2
    assert choose_ranks("auto", gpt2, 2) == 1
    assert choose_ranks("pipeline", llama, 2) == 1
    assert choose_ranks("auto", llama, 4) == 1
    for gpus in (0, 1):
        assert choose_ranks("auto", llama, gpus) == choose_ranks("tensor", gpt2, gpus) == 1


@each("family", ["bert", "bloom", "falcon-groups", "gpt2", "gptj", "opt", "stablelm"])
def test_a_family_without_a_plan_is_refused(family):
    with pytest.raises(
        UnsupportedModelError, match=r"over 2 GPUs: transformers has no tensor-parallel plan for its family.*pipeline"
    ):
        choose_ranks("tensor", CONFIGS[family], 2)


def test_heads_that_do_not_divide_are_refused_with_their_numbers():
    with pytest.raises(
        UnsupportedModelError, match="its 4 heads and 2 key-value heads are not both divisible by 4; allowed: 1, 2"
    ):
        check_shardable(CONFIGS["qwen2"], 4)


def test_all_numbers_of_keys_are_named():
    with pytest.raises(UnsupportedModelError, match=r"1 or 2 key-value heads are not both divisible by 2; allowed: 1;"):
        check_shardable(CONFIGS["gemma4_text-experts"], 2)


def test_norms_with_a_scale_per_head_are_refused():
    with pytest.raises(UnsupportedModelError, match="one scale per head"):
        check_shardable(CONFIGS["cohere"], 2)


def test_a_family_that_must_be_probed_is_refused():
    with pytest.raises(UnsupportedModelError, match="not in the table"):
        check_shardable(CodeGenConfig(), 2)


def test_load_model_refuses_before_it_reads_a_weight(tmp_path):
    CONFIGS["gpt2"].save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="no tensor-parallel plan"):
        load_model(tmp_path, ranks=2)
