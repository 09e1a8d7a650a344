from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from support.each import each

from theodolite.shard_bounds import ShardBounds


@given(n_samples=st.integers(1, 30_000), keep=st.integers(1, 30_000), shard_prompts=st.integers(1, 6000))
def test_every_prompt_is_in_exactly_one_shard(n_samples, keep, shard_prompts):
    bounds = ShardBounds(n_samples, min(keep, n_samples), shard_prompts)
    shards = [bounds.of(index) for index in range(bounds.n_shards)]
    assert shards[0][0] == 0
    assert shards[-1][1] == n_samples
    assert all(stop == start for (_, stop), (start, _) in pairwise(shards))
    for index, (start, stop) in enumerate(shards):
        assert start < stop
        assert stop - start <= (shard_prompts if index < bounds.n_stored else bounds.reduced_prompts)
        assert (stop <= bounds.n_kept) == (index < bounds.n_stored)
        assert bounds.index_of(start) == bounds.index_of(stop - 1) == index


@each(
    "n_samples, keep, shard_prompts, expected",
    [
        (100, 100, 64, 64),  # without reduced shards
        (1_000, 100, 64, 64),  # parts are not smaller than stored shards
        (14_336, 2_048, 64, 192),  # 64 shards
        (1_000_000, 2_048, 64, 4_096),  # the largest ones
        (1_000_000, 5_000, 5_000, 5_000),
    ],
)
def test_the_size_of_reduced_shards(n_samples, keep, shard_prompts, expected):
    assert ShardBounds(n_samples, keep, shard_prompts).reduced_prompts == expected
