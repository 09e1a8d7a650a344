"""Which prompts form which shard and which batch: a pure function of the spec and the tokens.

The number of workers never enters, so any number of them, and any number of crashes, gives the same batches and
with them the same bits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from theodolite.spec import TokenIds

Batch = tuple[int, ...]

# What starting a batch costs, in tokens: measured on a CPU and foreseen for a GPU, where it hardly matters.
_TOKENS_OF_A_BATCH = 48

# Tokens of the longest probe: 40 heads' scores are then 1.3 GB in half precision.
_LONGEST_PROBE = 4096

# Sharing fewer tokens than this saves less than its own bookkeeping costs.
_MIN_SHARED_PREFIX = 8


@dataclass(frozen=True)
class ShardPlan:
    """The unit of work, of writing and of retry: consecutive prompts of one set, in length-sorted batches.

    Attributes:
        prompt_set: the set's name.
        index: the shard's place in its set.
        start: first sample of the shard in its set.
        stop: one past the last sample.
        batches: samples of each batch, as indices into the set.
    """

    prompt_set: str
    index: int
    start: int
    stop: int
    batches: tuple[Batch, ...]

    @property
    def name(self) -> str:
        """How people and messages call the shard."""
        return f"{self.prompt_set}/{self.index:05d}"


@dataclass(frozen=True)
class SetPlan:
    """How one prompt set is captured.

    Attributes:
        prompt_set: the set's name.
        positions: kept positions, counted from the end, ascending.
        shared_prefix: the first so many tokens of all prompts are the same, and are computed once.
        shards: all shards, in order.
        tokens: tokens of all prompts.
        computed_tokens: tokens that a replica computes, padding included, the shared prefix left out.
    """

    prompt_set: str
    positions: tuple[int, ...]
    shared_prefix: int
    shards: tuple[ShardPlan, ...]
    tokens: int
    computed_tokens: int

    @property
    def n_samples(self) -> int:
        """Prompts in the set."""
        return self.shards[-1].stop

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-ready values."""
        return asdict(self)


def plan_set(
    prompt_set: str,
    tokens: Sequence[TokenIds],
    positions: tuple[int, ...],
    *,
    shard_prompts: int,
    batch_tokens: int,
    share_prefix: bool,
    length_class: Callable[[int], int] = lambda _: 0,
) -> SetPlan:
    """Plan one prompt set.

    Args:
        prompt_set: the set's name.
        tokens: token ids of each prompt.
        positions: kept positions, ascending, all negative.
        shard_prompts: prompts in one shard.
        batch_tokens: most tokens in one batch, padding included; a longer prompt is a batch of its own.
        share_prefix: compute the tokens that all prompts begin with once, where all prompts are of one class.
        length_class: the class of a prompt's length; prompts of two classes never share a batch.
    """
    classes = [length_class(len(ids)) for ids in tokens]
    shared = shared_prefix(tokens, positions) if share_prefix and set(classes) == {0} else 0
    lengths = [len(ids) - shared for ids in tokens]
    shards = []
    for index, start in enumerate(range(0, len(tokens), shard_prompts)):
        stop = min(start + shard_prompts, len(tokens))
        batches = tuple(
            batch
            for one in sorted(set(classes[start:stop]))
            for batch in batch_by_length([i for i in range(start, stop) if classes[i] == one], lengths, batch_tokens)
        )
        shards.append(ShardPlan(prompt_set, index, start, stop, batches))
    computed = sum(padded_tokens(batch, lengths) for shard in shards for batch in shard.batches)
    return SetPlan(prompt_set, positions, shared, tuple(shards), sum(map(len, tokens)), computed)


def probe_prompts(tokens: Sequence[TokenIds]) -> list[TokenIds]:
    """Return a set's shortest and longest prompt, which the parity certificate is measured on.

    A longer one than plain attention can hold, which keeps a score for each pair of tokens, is left out.
    """
    shortest = min(tokens, key=len)
    longest = max((ids for ids in tokens if len(ids) <= _LONGEST_PROBE), key=len, default=shortest)
    return list(dict.fromkeys([shortest, longest]))


def shared_prefix(tokens: Sequence[TokenIds], positions: tuple[int, ...]) -> int:
    """Return how many first tokens all prompts share, leaving every kept position to be computed."""
    first, last = min(tokens), max(tokens)  # in lexicographic order, all others lie between these two
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    shared = min(same, min(map(len, tokens)) + min(positions))
    return shared if shared >= _MIN_SHARED_PREFIX and len(tokens) > 1 else 0


def batch_by_length(samples: Sequence[int], lengths: Sequence[int], batch_tokens: int) -> tuple[Batch, ...]:
    """Return batches of samples in order of length, each within the budget, cut where the whole costs least.

    A batch costs its tokens, padding included, and a little of its own; the cheapest way to cut the first k samples
    follows from the cheapest ways to cut fewer.
    """
    ordered = sorted(samples, key=lambda sample: (lengths[sample], sample))
    cheapest, cut_before = [0.0], [0]
    for stop in range(1, len(ordered) + 1):
        longest = lengths[ordered[stop - 1]]  # lengths ascend, so the last one sets the padding
        first = max(0, min(stop - 1, stop - batch_tokens // longest))
        costs = {start: cheapest[start] + (stop - start) * longest + _TOKENS_OF_A_BATCH for start in range(first, stop)}
        best = min(costs, key=lambda start: costs[start])
        cheapest.append(costs[best])
        cut_before.append(best)
    batches: list[Batch] = []
    stop = len(ordered)
    while stop:
        batches.append(tuple(ordered[cut_before[stop] : stop]))
        stop = cut_before[stop]
    return tuple(reversed(batches))


def halved(batch: Batch, times: int = 1) -> list[Batch]:
    """Return a batch cut in halves, these in halves again, so many times; a prompt alone cannot be cut."""
    if times == 0 or len(batch) == 1:
        return [batch]
    half = len(batch) // 2
    return [part for one in (batch[:half], batch[half:]) for part in halved(one, times - 1)]


def padded_tokens(batch: Batch, lengths: Sequence[int] | Mapping[int, int]) -> int:
    """Return the tokens a batch computes: its size times its longest prompt."""
    return len(batch) * max(lengths[sample] for sample in batch)
