from hypothesis import given
from hypothesis import strategies as st

from theodolite_jobs.capture.plan import (
    batch_by_length,
    halved,
    padded_tokens,
    pieces,
    plan_set,
    probe_prompts,
    shared_prefix,
)

prompts = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=30).map(tuple), min_size=1, max_size=60)


@given(prompts, st.integers(1, 20), st.integers(1, 200), st.booleans())
def test_every_prompt_is_in_exactly_one_batch_of_its_own_shard(tokens, shard_prompts, batch_tokens, share):
    plan = plan_set("set", tokens, (-1,), shard_prompts=shard_prompts, batch_tokens=batch_tokens, share_prefix=share)
    for shard in plan.shards:
        assert sorted(sample for batch in shard.batches for sample in batch) == list(range(shard.start, shard.stop))
    assert [shard.start for shard in plan.shards] == list(range(0, len(tokens), shard_prompts))
    assert plan.n_samples == len(tokens)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 120))
def test_only_a_single_long_prompt_exceeds_the_budget(lengths, batch_tokens):
    for batch in batch_by_length(range(len(lengths)), lengths, batch_tokens):
        assert len(batch) == 1 or padded_tokens(batch, lengths) <= batch_tokens


def test_batches_are_sorted_by_length_and_within_the_budget():
    assert batch_by_length(range(5), [9, 2, 9, 2, 3], 12) == ((1, 3, 4), (0,), (2,))


def test_batches_are_split_for_the_least_padding_even_if_the_budget_allows_larger_ones():
    lengths = [100] * 3 + [10] * 6
    assert batch_by_length(range(9), lengths, 10_000) == ((3, 4, 5, 6, 7, 8), (0, 1, 2))
    assert batch_by_length(range(4), [10, 11, 11, 12], 10_000) == ((0, 1, 2, 3),)  # each batch has a fixed cost


def test_a_larger_budget_gives_fewer_batches_with_more_padding():
    lengths = [70] * 6 + [40] * 6
    # Padding of the short prompts takes 180 tokens. A batch costs 48 tokens at a budget of 2048, and 192 at 16384.
    assert batch_by_length(range(12), lengths, 2048) == (tuple(range(6, 12)), tuple(range(6)))
    assert batch_by_length(range(12), lengths, 16384) == ((*range(6, 12), *range(6)),)


@given(prompts, st.integers(1, 3))
def test_shared_prefix_is_common_and_excludes_every_captured_position(tokens, reach):
    shared = shared_prefix(tokens, min(map(len, tokens)) - reach)
    assert len({ids[:shared] for ids in tokens}) == 1
    assert shared == 0 or shared + reach <= min(map(len, tokens))


def test_shared_prefix_is_as_long_as_possible():
    template = tuple(range(10))
    tokens = [(*template, 1, 2, 99), (*template, 3, 99), (*template, 1, 99)]
    assert shared_prefix(tokens, 12 - 1) == 10
    assert shared_prefix(tokens, 12 - 2) == 10
    assert shared_prefix(tokens, 12 - 4) == 8
    assert shared_prefix(tokens[:1], 12) == 0  # one prompt has no other to share with


def test_a_prompt_too_long_for_plain_attention_is_not_a_probe():
    prompts = [(1,) * 10, (2,) * 5000, (3,) * 4000]
    assert probe_prompts(prompts) == [prompts[0], prompts[2]]
    assert probe_prompts([(1,) * 5000]) == [(1,) * 5000]


def test_a_batch_is_halved_in_order_until_each_part_has_one_prompt():
    batch = (1, 2, 3, 4, 5)
    assert halved(batch, 0) == [batch]
    assert halved(batch) == [(1, 2), (3, 4, 5)]
    assert halved(batch, 2) == [(1,), (2,), (3,), (4, 5)]
    assert halved(batch, 9) == [(1,), (2,), (3,), (4,), (5,)]


@given(prompts, st.integers(1, 20), st.integers(1, 60), st.integers(1, 200))
def test_parts_of_reduced_shards_have_all_batches(tokens, shard_prompts, n_kept, batch_tokens):
    options = {"shard_prompts": shard_prompts, "batch_tokens": batch_tokens, "share_prefix": False}
    plan = plan_set("set", tokens, (-1,), **options, n_kept=min(n_kept, len(tokens)))
    for shard in plan.shards:
        assert shard.is_reduced == (shard.start >= n_kept)
        parts = [part.shard for part in pieces(plan.task(shard, tokens), shard_prompts)]
        assert tuple(batch for part in parts for batch in part.batches) == shard.batches
        for part in parts:
            assert part.stop - part.start <= shard_prompts
            assert sorted(sample for batch in part.batches for sample in batch) == list(range(part.start, part.stop))
