"""Running one shard of prompts through a model that is in memory."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from theodolite.errors import RankOutOfMemoryError
from theodolite.shard_counts import ShardCounts
from theodolite.sites import Site
from theodolite.spec import TokenIds
from theodolite_jobs.capture.plan import Batch, SetPlan, ShardPlan, halved, padded_tokens
from theodolite_jobs.capture.taps import POSITIVE_UNITS, TokenSelection, tapped
from theodolite_jobs.models.load import LoadedModel

Activations = dict[Site, NDArray[np.float32]]


@dataclass
class CapturedShard:
    """What came out of one shard.

    Attributes:
        activations: (sample, position, layer, d_model) for each site, (sample, position, d_model) for `resid_final`;
            NaN before a prompt's first token and for quarantined prompts.
        positive_counts: how many of the prompts that are not quarantined have each hidden unit of the MLPs positive
            before gating, (position, layer, unit); None where units are not counted.
        batches: the batches that were run; they differ from the plan's only where memory ran out.
        quarantined: sample → why its activations cannot be used.
        counts: tokens, time and splits of batches.
    """

    activations: Activations
    positive_counts: NDArray[np.int32] | None = None
    batches: list[Batch] = field(default_factory=list)
    quarantined: dict[int, str] = field(default_factory=dict)
    counts: ShardCounts = field(default_factory=ShardCounts)


class Engine:
    """A model with its taps: turns shards into arrays, and keeps the keys and values of the last shared prefix.

    Where ranks share the model, each has an engine, and all capture the same shards in the same order: each then has
    the whole result, and of keys, values and hidden units only its own.
    """

    def __init__(self, model: LoadedModel, sites: Sequence[Site], layers: Sequence[int]) -> None:
        """Take a loaded model, the block sites to keep, and the layers to keep them at."""
        self.model = model
        self.sites = tuple(sites)
        self.layers = tuple(layers)
        self._prefix: tuple[TokenIds, list[tuple[torch.Tensor, torch.Tensor]]] = ((), [])

    def capture(
        self, plan: SetPlan, shard: ShardPlan, tokens: Sequence[TokenIds], units: int = 0, halvings: int = 0
    ) -> CapturedShard:
        """Capture one shard.

        Args:
            plan: the plan of the shard's set.
            shard: which samples, in which batches.
            tokens: token ids of the shard's samples, from `shard.start` on.
            units: how many hidden units each MLP has, where their signs are to be counted.
            halvings: how often to halve each batch before it is run, for it did not fit into memory before.

        Raises:
            RankOutOfMemoryError: ranks share the model, and a batch does not fit into this one's memory.
            ValueError: the tokens are not one entry for each sample; or units are to be counted of a family whose
                record names none, or at a position that some prompt does not have.
        """
        if len(tokens) != shard.stop - shard.start:
            raise ValueError(f"shard {shard.name} has {shard.stop - shard.start} samples, not {len(tokens)}")
        if units:
            self._check_countable(plan, tokens)
        started = time.perf_counter()
        captured = self._empty(len(tokens), len(plan.positions), units)
        pending: list[tuple[Batch, Any]] = []
        for batch, kept in self._run_batches(plan, shard, tokens, captured, units, halvings):
            # One batch behind: while the device computes this one, the host stores the one before.
            pending.append((batch, _start_copy(kept)))
            if len(pending) > 1:
                self._store(pending.pop(0), shard, captured)
        for last in pending:
            self._store(last, shard, captured)
        _blank_before_first_token(captured, plan.positions, [len(ids) for ids in tokens])
        _quarantine_non_finite(captured, plan.positions, tokens, shard.start, self.layers)
        captured.counts = replace(
            captured.counts,
            tokens=sum(map(len, tokens)),
            shared_tokens=len(tokens) * plan.shared_prefix,
            seconds=round(time.perf_counter() - started, 4),
        )
        return captured

    def _run_batches(
        self,
        plan: SetPlan,
        shard: ShardPlan,
        tokens: Sequence[TokenIds],
        captured: CapturedShard,
        units: int,
        halvings: int,
    ) -> Iterator[tuple[Batch, dict[str, torch.Tensor]]]:
        """Yield each batch with its kept tensors, on the device; halve a batch that does not fit into memory."""
        waiting = deque(part for batch in shard.batches for part in halved(batch, halvings))
        captured.counts = ShardCounts(oom_backoffs=len(waiting) - len(shard.batches))
        suffix_lengths = {shard.start + i: len(ids) - plan.shared_prefix for i, ids in enumerate(tokens)}
        while waiting:
            batch, counts = waiting.popleft(), captured.counts
            kept = self._forward_or_nothing(plan, [tokens[sample - shard.start] for sample in batch], units)
            if kept is None:
                _free_memory()
                captured.counts = replace(counts, oom_backoffs=counts.oom_backoffs + 1)
                if len(batch) == 1:
                    captured.quarantined[batch[0]] = "out of memory, even in a batch of its own"
                else:
                    waiting.extendleft(reversed(halved(batch)))
                continue
            captured.batches.append(batch)
            padded = padded_tokens(batch, suffix_lengths)
            captured.counts = replace(
                counts,
                computed_tokens=counts.computed_tokens + padded,
                padding_tokens=counts.padding_tokens + padded - sum(suffix_lengths[sample] for sample in batch),
            )
            yield batch, kept

    def _forward_or_nothing(
        self, plan: SetPlan, prompts: Sequence[TokenIds], units: int
    ) -> dict[str, torch.Tensor] | None:
        """Return None where memory runs out; by then nothing holds the failed forward's tensors."""
        try:
            return self._forward(plan, prompts, units)
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            if not _is_out_of_memory(error):
                raise
            if self.model.ranks > 1:
                # The other ranks wait inside this forward, and no smaller one can be run beside it.
                advice = "it is tried in halves" if len(prompts) > 1 else "give each replica more GPUs"
                raise RankOutOfMemoryError(
                    f"a batch of {len(prompts)} prompts of {plan.prompt_set}, the longest of {max(map(len, prompts))} "
                    f"tokens, does not fit into the memory of a rank: {advice}"
                ) from error
            return None

    @torch.inference_mode()
    def _forward(self, plan: SetPlan, prompts: Sequence[TokenIds], units: int) -> dict[str, torch.Tensor]:
        """Run one batch and return (batch, position, layer, d_model) for each site, on the device; and counts of units.

        Prompts are padded on the right: no real token of a causal model sees a pad, positions are right by
        construction and no mask is needed. An encoder's tokens see all, and get one.
        """
        device = self.model.device
        shared = plan.shared_prefix
        lengths = torch.tensor([len(ids) - shared for ids in prompts])
        padded = torch.zeros((len(prompts), int(lengths.max())), dtype=torch.long)
        for row, ids in enumerate(prompts):
            padded[row, : len(ids) - shared] = torch.tensor(ids[shared:])
        # Before a prompt's first token there is nothing: take token 0, it is blanked later.
        indices = (lengths[:, None] + torch.tensor(plan.positions)).clamp(min=0)
        prefix = self._expanded_prefix(prompts[0][:shared], len(prompts))
        with tapped(self.model, self.sites, self.layers, TokenSelection(indices.to(device)), units) as kept:
            if self.model.anatomy.causal:
                self.model.run(input_ids=padded.to(device), past_key_values=prefix, use_cache=shared > 0)
            else:
                mask = torch.arange(padded.shape[1]) < lengths[:, None]
                self.model.run(input_ids=padded.to(device), attention_mask=mask.long().to(device))
        home = kept[Site.RESID_FINAL][0].device
        values: dict[str, torch.Tensor] = {
            site: torch.stack([part.to(home) for part in kept[site]], dim=2) for site in self.sites
        }
        values[Site.RESID_FINAL] = kept[Site.RESID_FINAL][0]
        if units:
            counts = _count_positive(kept[POSITIVE_UNITS], _finite_prompts(values.values()))
            values[POSITIVE_UNITS] = _of_all_ranks(counts, units, self.model.ranks)
        return values

    def _expanded_prefix(self, prefix: TokenIds, batch_size: int) -> DynamicCache | None:
        """Return keys and values of the shared prefix for a batch; computed once, expanded without a copy."""
        if not prefix:
            return None
        if self._prefix[0] != prefix:
            ids = torch.tensor([prefix], device=self.model.device)
            cache = self.model.run(input_ids=ids, use_cache=True).past_key_values
            self._prefix = (prefix, [(layer.keys, layer.values) for layer in cache.layers])
        return DynamicCache(
            [
                (keys.expand(batch_size, -1, -1, -1), values.expand(batch_size, -1, -1, -1))
                for keys, values in self._prefix[1]
            ]
        )

    def _check_countable(self, plan: SetPlan, tokens: Sequence[TokenIds]) -> None:
        if self.model.anatomy.mlp_units is None:
            raise ValueError(f"the record of {self.model.config.model_type!r} does not say where its hidden units are")
        if min(map(len, tokens)) < -min(plan.positions):
            raise ValueError(f"units are counted where every prompt of {plan.prompt_set} has all positions")

    def _empty(self, n_samples: int, n_positions: int, units: int) -> CapturedShard:
        d_model = self.model.dimensions.d_model
        shape = (n_samples, n_positions, len(self.layers), d_model)
        arrays: Activations = {site: np.full(shape, np.nan, dtype=np.float32) for site in self.sites}
        arrays[Site.RESID_FINAL] = np.full((n_samples, n_positions, d_model), np.nan, dtype=np.float32)
        counts = np.zeros((n_positions, len(self.layers), units), dtype=np.int32)
        return CapturedShard(arrays, counts if units else None)

    def _store(self, copied: tuple[Batch, Any], shard: ShardPlan, captured: CapturedShard) -> None:
        batch, (host, event) = copied
        if event is not None:
            event.synchronize()
        rows = np.asarray(batch) - shard.start
        for site, target in captured.activations.items():
            target[rows] = host[site].float().numpy()
        if captured.positive_counts is not None:
            captured.positive_counts += host[POSITIVE_UNITS].numpy()


def _finite_prompts(activations: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return which prompts of a batch are finite at every kept place, in the float32 that is stored.

    The others are quarantined once the shard is whole, by the same numbers, and must not be counted.
    """
    finite = [values.float().isfinite().flatten(1).all(dim=1) for values in activations]
    return torch.stack(finite).all(dim=0)


def _count_positive(signs: Sequence[torch.Tensor], usable: torch.Tensor) -> torch.Tensor:
    """Return how many usable prompts have each unit positive, (position, layer, unit), from signs for each layer.

    Counted on the device: a batch's counts are as small as one prompt's signs are.
    """
    counts = [
        (positive & usable.to(positive.device)[:, None, None]).sum(dim=0, dtype=torch.int32) for positive in signs
    ]
    return torch.stack([count.to(usable.device) for count in counts], dim=1)


def _of_all_ranks(counts: torch.Tensor, units: int, ranks: int) -> torch.Tensor:
    """Return the counts of all units, where each rank has counted those of its own part of a matrix."""
    if counts.shape[-1] == units:  # one process, or a family whose parts are put together before the activation
        return counts
    widest = -(-units // ranks)  # as torch cuts: all parts are as wide, but the last may be less
    own = torch.nn.functional.pad(counts, (0, widest - counts.shape[-1]))
    parts = [torch.empty_like(own) for _ in range(ranks)]
    torch.distributed.all_gather(parts, own)
    return torch.cat(parts, dim=-1)[..., :units]


def _start_copy(kept: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], Any]:
    """Start copying to pinned host memory; return the copies and the event that says they are there."""
    if next(iter(kept.values())).device.type != "cuda":
        return kept, None
    host = {}
    for site, values in kept.items():
        host[site] = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host[site].copy_(values, non_blocking=True)
    event = torch.cuda.Event()
    # The stream of the device that copies, which need not be the current one when blocks lie on several.
    event.record(torch.cuda.current_stream(values.device))
    return host, event


def _blank_before_first_token(captured: CapturedShard, positions: Sequence[int], lengths: Sequence[int]) -> None:
    missing = np.asarray(lengths)[:, None] + np.asarray(positions) < 0
    for values in captured.activations.values():
        values[missing] = np.nan


def _quarantine_non_finite(
    captured: CapturedShard,
    positions: Sequence[int],
    tokens: Sequence[TokenIds],
    start: int,
    layers: Sequence[int],
) -> None:
    """Take out prompts with NaN or infinite activations; nothing may ever average over them."""
    exists = np.asarray([len(ids) for ids in tokens])[:, None] + np.asarray(positions) >= 0
    for site, values in captured.activations.items():
        bad = ~np.isfinite(values).all(axis=-1)
        bad &= exists[:, :, None] if bad.ndim == 3 else exists
        for row in np.flatnonzero(bad.reshape(len(tokens), -1).any(axis=1)):
            place = "" if bad.ndim == 2 else f", layer {layers[int(np.argwhere(bad[row])[0][1])]}"
            captured.quarantined.setdefault(start + int(row), f"activation is not finite at {site}{place}")
    for sample in captured.quarantined:
        for values in captured.activations.values():
            values[sample - start] = np.nan


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _free_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
