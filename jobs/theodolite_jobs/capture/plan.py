"""Divide the prompts into shards and batches: a pure function of the spec and the tokens.

The number of workers is not an input. Any number of workers, and any number of crashes, therefore gives the same
batches and the same bits.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from theodolite.digests import digest_of
from theodolite.shard_bounds import ShardBounds
from theodolite.shard_counts import ShardCounts
from theodolite.spec import Spans, TokenIds
from theodolite.spec_parts import Label, counted

Batch = tuple[int, ...]

_OVERHEAD, _SHARE_OF_BUDGET = 48, 3 / 256
"""The fixed cost of a batch, in tokens: as measured on a CPU; and for a GPU, whose budgets are larger, a share of the
budget. For the 7B model, whose budget is 16,384, it is 192 tokens: on an H200, plans with 26 and with 32 batches differ
by 110 to 250 tokens a batch (fusions-gpu_h200_2026-11-29.json)."""

LONGEST_PROBE = 4096
"""The largest probe, in tokens: the attention scores of 40 heads then take 1.3 GB in half precision."""

HALF_PROBES = 32
"""The number of probes of all sets together, if the model is in half precision."""

# The smallest prefix, in tokens, that saves more than its bookkeeping costs.
_MIN_SHARED_PREFIX = 8


@dataclass(frozen=True)
class ShardPlan:
    """The unit of work, of writing and of retry: consecutive prompts of one set, in length-sorted batches."""

    prompt_set: str
    index: int  # the shard's number in its set, from 0
    start: int  # first sample of the shard in its set
    stop: int  # one past the last sample
    batches: tuple[Batch, ...]  # samples of each batch, as indices into the set
    quarantined: Mapping[int, str] = field(default_factory=dict)  # samples that are not run, and why
    is_reduced: bool = False  # whether its activations are reduced to moments and not stored

    @property
    def name(self) -> str:
        """The shard's name in messages, such as `harmful/00003`."""
        return f"{self.prompt_set}/{self.index:05d}"


@dataclass(frozen=True)
class SetLayout:
    """Which tokens of the prompts of a set are captured, and which are computed only once."""

    positions: tuple[Label, ...]  # captured positions, counted from the end and ascending, or with names
    shared_prefix: int  # the number of first tokens that all prompts share; they are computed once
    spans: Mapping[TokenIds, Spans] = field(default_factory=dict)  # of known prompts, if positions have names

    def spans_of(self, ids: TokenIds) -> Spans:
        """Return the tokens of each position; of an unknown prompt of the parity check the last one for each name."""
        places = (-1 if (place := counted(label)) is None else place for label in self.positions)
        return self.spans.get(ids) or tuple((len(ids) + place, len(ids) + place + 1) for place in places)

    def of_prompts(self, prompts: Sequence[TokenIds]) -> "SetLayout":
        """Return the layout that knows these prompts alone."""
        return replace(self, spans={ids: self.spans[ids] for ids in prompts if ids in self.spans})


@dataclass(frozen=True)
class ShardTask:
    """Everything that a replica needs to know to capture a shard, or a part of one."""

    layout: SetLayout
    shard: ShardPlan
    tokens: Sequence[TokenIds]  # of the shard's samples, from `shard.start` on
    units: int = 0  # hidden units of each MLP, whose signs are counted; 0 counts none
    choices: int = 0  # experts that a token uses in a layer, which are recorded; 0 records none
    halvings: int = 0  # how often each batch is halved before it runs, after a batch did not fit into memory
    named_spans: Sequence[Spans] = ()  # of the shard's samples, if positions have names

    @property
    def spans(self) -> Sequence[Spans]:
        """The tokens of each position of each sample."""
        return self.named_spans or list(map(self.layout.spans_of, self.tokens))

    def part(self, start: int, stop: int, batches: Iterable[Batch]) -> "ShardTask":
        """Return the task for the samples of the shard from `start` to `stop`, in these batches."""
        own = {sample: why for sample, why in self.shard.quarantined.items() if start <= sample < stop}
        shard = replace(self.shard, start=start, stop=stop, batches=tuple(batches), quarantined=own)
        rows = slice(start - self.shard.start, stop - self.shard.start)
        return replace(self, shard=shard, tokens=self.tokens[rows], named_spans=self.named_spans[rows])


@dataclass(frozen=True)
class SetPlan:
    """The capture plan of one prompt set."""

    prompt_set: str
    layout: SetLayout
    shards: tuple[ShardPlan, ...]
    tokens: int  # the number of tokens of all prompts
    computed_tokens: int  # the number of tokens that the replicas compute, with padding, without the shared prefix
    spans: Sequence[Spans] = ()  # of each prompt, if positions have names

    @property
    def n_samples(self) -> int:
        """The number of prompts in the set."""
        return self.shards[-1].stop

    def digest(self) -> str:
        """Return the digest of the plan, which no quarantine changes."""
        plan = asdict(self)
        plan |= {"positions": self.layout.positions, "shared_prefix": plan.pop("layout")["shared_prefix"]}
        if not plan["spans"]:  # positions from the end say them
            del plan["spans"]
        for shard in plan["shards"]:
            del shard["quarantined"], shard["is_reduced"]  # the bounds of the shards say the latter too
        return digest_of(plan)

    def task(self, shard: ShardPlan, tokens: Sequence[TokenIds], units: int = 0, choices: int = 0) -> ShardTask:
        """Return the task of a shard of the set, whose prompts have these token ids."""
        rows = slice(shard.start, shard.stop)
        return ShardTask(self.layout, shard, tokens[rows], units, choices, named_spans=self.spans[rows])

    def known_layout(self, tokens: Sequence[TokenIds]) -> SetLayout:
        """Return the layout with the tokens of named positions of all prompts, which have these token ids."""
        return replace(self.layout, spans=dict(zip(tokens, self.spans, strict=True))) if self.spans else self.layout


def plan_set(
    prompt_set: str,
    tokens: Sequence[TokenIds],
    positions: tuple[Label, ...],
    *,
    spans: Sequence[Spans] = (),
    shard_prompts: int,
    batch_tokens: int,
    share_prefix: bool,
    length_class: Callable[[int], int] = lambda _: 0,
    n_kept: int | None = None,
) -> SetPlan:
    """Return the capture plan of one prompt set.

    Args:
        prompt_set: the set's name.
        tokens: token ids of each prompt.
        positions: captured positions, from the end and ascending, or with names.
        spans: the tokens of the positions of each prompt, if positions have names.
        shard_prompts: the number of prompts in one shard.
        batch_tokens: the token budget of one batch, padding included; a longer prompt is a batch of its own.
        share_prefix: compute the first tokens that all prompts share once, if all prompts are of class 0.
        length_class: returns the class of a prompt's length; prompts of two classes never share a batch.
        n_kept: the number of first prompts whose activations are stored; None stores all.
    """
    bounds = ShardBounds(len(tokens), len(tokens) if n_kept is None else n_kept, shard_prompts)
    classes = [length_class(len(ids)) for ids in tokens]
    layout = SetLayout(positions, 0)
    first = min(map(min, spans or [layout.spans_of(min(tokens, key=len))]))[0]
    shared = shared_prefix(tokens, first) if share_prefix and set(classes) == {0} else 0
    lengths = [len(ids) - shared for ids in tokens]
    shards = []
    for index in range(bounds.n_shards):
        start, stop = bounds.of(index)
        batches = tuple(
            batch
            for first, end in _pieces(start, stop, bounds.shard_prompts)
            for one in sorted(set(classes[first:end]))
            for batch in batch_by_length([i for i in range(first, end) if classes[i] == one], lengths, batch_tokens)
        )
        is_reduced = index >= bounds.n_stored
        shards.append(ShardPlan(prompt_set, index, start, stop, batches, is_reduced=is_reduced))
    computed = sum(padded_tokens(batch, lengths) for shard in shards for batch in shard.batches)
    layout = replace(layout, shared_prefix=shared)
    return SetPlan(prompt_set, layout, tuple(shards), sum(map(len, tokens)), computed, spans)


def pieces(task: ShardTask, shard_prompts: int) -> list[ShardTask]:
    """Return a shard's parts of at most `shard_prompts` consecutive prompts, which are captured one after another.

    Each batch lies in one part, so that memory holds the activations of one part only.
    """
    return [
        task.part(start, stop, [batch for batch in task.shard.batches if start <= batch[0] < stop])
        for start, stop in _pieces(task.shard.start, task.shard.stop, shard_prompts)
    ]


def one_batch(prompt_set: str, layout: SetLayout, tokens: Sequence[TokenIds]) -> ShardTask:
    """Return the task of capturing some prompts in one batch."""
    shard = ShardPlan(prompt_set, 0, 0, len(tokens), (tuple(range(len(tokens))),))
    return ShardTask(layout, shard, tokens, named_spans=list(map(layout.spans_of, tokens)) if layout.spans else ())


def _pieces(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]


def count_tokens(task: ShardTask, batches: Sequence[Batch]) -> ShardCounts:
    """Return the numbers of tokens of a shard that was captured in these batches."""
    tokens, shared = task.tokens, task.layout.shared_prefix
    suffix_lengths = {task.shard.start + i: len(ids) - shared for i, ids in enumerate(tokens)}
    computed = sum(padded_tokens(batch, suffix_lengths) for batch in batches)
    return ShardCounts(
        tokens=sum(map(len, tokens)),
        shared_tokens=len(tokens) * shared,
        computed_tokens=computed,
        padding_tokens=computed - sum(suffix_lengths[sample] for batch in batches for sample in batch),
    )


def probe_prompts(tokens: Sequence[TokenIds], count: int = 2) -> list[TokenIds]:
    """Return a set's shortest and longest prompt, for the parity check, and others of lengths between, up to `count`.

    Prompts of more than `LONGEST_PROBE` tokens are only taken as the shortest: plain attention stores a score for each
    pair of tokens.
    """
    shortest = min(tokens, key=len)
    ordered = sorted({ids for ids in tokens if len(ids) <= LONGEST_PROBE}, key=lambda ids: (len(ids), ids))
    longest = max((ids for ids in tokens if len(ids) <= LONGEST_PROBE), key=len, default=shortest)
    between = [ids for ids in ordered if ids not in (shortest, longest)]
    others = min(count - 2, len(between))
    spread = [between[len(between) * index // others] for index in range(others)]
    return list(dict.fromkeys([shortest, longest, *spread]))


def shared_prefix(tokens: Sequence[TokenIds], first_captured: int) -> int:
    """Return the number of first tokens that all prompts share and that precede every captured token."""
    first, last = min(tokens), max(tokens)  # in lexicographic order, all others lie between these two
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    shared = min(same, first_captured)
    return shared if shared >= _MIN_SHARED_PREFIX and len(tokens) > 1 else 0


def batch_by_length(samples: Sequence[int], lengths: Sequence[int], batch_tokens: int) -> tuple[Batch, ...]:
    """Return batches of samples in order of length, each within the token budget, with the smallest total cost.

    A batch costs its tokens, padding included, plus a fixed overhead. Dynamic programming: the cheapest split of the
    first k samples follows from the cheapest splits of fewer samples.
    """
    overhead = max(_OVERHEAD, _SHARE_OF_BUDGET * batch_tokens)
    ordered = sorted(samples, key=lambda sample: (lengths[sample], sample))
    cheapest, last_start = [0.0], [0]
    for stop in range(1, len(ordered) + 1):
        longest = lengths[ordered[stop - 1]]  # lengths ascend, so the last one sets the padding
        first = max(0, min(stop - 1, stop - batch_tokens // longest))
        costs = {start: cheapest[start] + (stop - start) * longest + overhead for start in range(first, stop)}
        best = min(costs, key=lambda start: costs[start])
        cheapest.append(costs[best])
        last_start.append(best)
    batches: list[Batch] = []
    stop = len(ordered)
    while stop:
        batches.append(tuple(ordered[last_start[stop] : stop]))
        stop = last_start[stop]
    return tuple(reversed(batches))


def halved(batch: Batch, times: int = 1) -> list[Batch]:
    """Return the parts of a batch after `times` rounds of halving; a part of one prompt is not split."""
    if times == 0 or len(batch) == 1:
        return [batch]
    half = len(batch) // 2
    return [part for one in (batch[:half], batch[half:]) for part in halved(one, times - 1)]


def padded_tokens(batch: Batch, lengths: Sequence[int] | Mapping[int, int]) -> int:
    """Return the number of tokens that a batch computes: its size times its longest prompt."""
    return len(batch) * max(lengths[sample] for sample in batch)
