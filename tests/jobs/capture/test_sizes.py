"""Sizes of batches and shards that the plan chooses for a kind of device."""

from math import inf

import pytest
from support.each import each

from theodolite.spec_parts import CaptureSpec
from theodolite_jobs.capture.sizes import SetSizes, with_sizes

QWEN_7B, QWEN_32B, SMOLLM2 = 233e6, 487e6, 3.5e6  # weights of a block


def sizes(device, block_weights, n_prompts, prompt_bytes=4 * 57 * 3584, tokens=76, **capture):
    sets = [SetSizes(n_prompts // 2, tokens * n_prompts // 2, prompt_bytes) for _ in range(2)]
    return tuple(with_sizes(CaptureSpec(**capture), device, block_weights, sets).sizes)


@each("block_weights, n_prompts", [(QWEN_7B, 1_000_000), (SMOLLM2, 100), (0, 0)])
def test_a_cpu_has_the_same_sizes_for_every_survey(block_weights, n_prompts):
    assert sizes("cpu", block_weights, n_prompts) == (2048, 64)


@each(
    "block_weights, tokens",
    # A block takes 1.6 ms to launch, in which a GPU multiplies 1,528 tokens with the weights of the 7B model's block.
    [(QWEN_7B, 16_384), (QWEN_32B, 16_384), (100e6, 32_768), (SMOLLM2, 65_536), (inf, 16_384)],
)
def test_computation_hides_the_launches_on_a_gpu(block_weights, tokens):
    assert sizes("gpu", block_weights, 1_000_000)[0] == tokens


@each("n_prompts, tokens", [(2 * 64, 2048), (2 * 256, 4096), (2 * 1024, 16_384), (2, 2048), (0, 2048)])
def test_a_small_survey_has_several_batches(n_prompts, tokens):
    assert sizes("gpu", QWEN_7B, n_prompts)[0] == tokens


@each(
    "tokens, prompt_bytes, prompts",
    [(76, 4 * 57 * 3584, 1024), (10, 4 * 57 * 3584, 1024), (1000, 2**19, 128), (10, 2**22, 256), (10, 2**26, 64)],
)
def test_a_shard_fills_several_batches_and_fits_into_memory(tokens, prompt_bytes, prompts):
    assert sizes("gpu", QWEN_7B, 1_000_000, prompt_bytes, tokens)[1] == prompts


def test_a_set_of_few_prompts_does_not_make_the_shards_smaller():
    sets = [SetSizes(100_000, 1_000_000, 2**20), SetSizes(2, 20, 2**26)]
    assert with_sizes(CaptureSpec(), "gpu", QWEN_7B, sets).sizes.shard_prompts == 1024


@each("device", ["cpu", "gpu"])
def test_sizes_of_the_spec_are_kept(device):
    assert sizes(device, QWEN_7B, 1_000_000, batch_tokens=300, shard_prompts=7) == (300, 7)
    chosen = sizes(device, QWEN_7B, 1_000_000, shard_prompts=7)
    assert chosen == (2048 if device == "cpu" else 16_384, 7)
    assert sizes(device, QWEN_7B, 1_000_000, batch_tokens=300) == (
        300,
        64,
    )  # 300 tokens are four prompts, and four batches 16


def test_open_sizes_are_no_numbers():
    with pytest.raises(ValueError, match="auto"):
        CaptureSpec().sizes  # noqa: B018
