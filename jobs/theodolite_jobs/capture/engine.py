"""Run one shard of prompts through a model that is in memory."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from theodolite.errors import RankOutOfMemoryError
from theodolite.shard_counts import ShardCounts
from theodolite.sites import Site
from theodolite.spec import Spans, TokenIds
from theodolite_jobs.capture.fused import Fused, applied, fused_on_device
from theodolite_jobs.capture.plan import Batch, ShardPlan, ShardTask, count_tokens, halved
from theodolite_jobs.capture.taps import CHOSEN_EXPERTS, POSITIVE_UNITS, tapped
from theodolite_jobs.models.anatomy import Anatomy
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.routers import Router, router_of

Activations = dict[Site, NDArray[np.float32]]


@dataclass
class CapturedShard:
    """The result of capturing one shard.

    `activations` are (sample, position, layer, d_model) for each site, (sample, position, d_model) for `resid_final`,
    (sample, position, layer, head, d_head) for `head_out`; NaN before a prompt's first token, for quarantined prompts,
    and at layers without the site. `positive_counts` are (position, layer, unit): for each hidden unit of the MLPs, the
    number of prompts in which it is positive before gating, without quarantined prompts; None if units are not counted.
    `experts` are those that each token uses, ascending, (sample, position, layer, choice): -1 in layers without
    experts, before a prompt's first token and for quarantined prompts; None if they are not recorded.
    """

    activations: Activations
    positive_counts: NDArray[np.int32] | None = None
    batches: list[Batch] = field(default_factory=list)  # as run; they differ from the plan's only if memory ran out
    quarantined: dict[int, str] = field(default_factory=dict)  # sample → why its activations cannot be used
    counts: ShardCounts = field(default_factory=ShardCounts)
    experts: NDArray[np.int16] | None = None


class Engine:
    """A model with its taps: captures shards, and caches the keys and values of the last shared prefix.

    If ranks share the model, each rank has an engine, and all engines capture the same shards in the same order.
    Each rank then has the full activations; keys, values and hidden units are sharded.
    """

    def __init__(self, model: LoadedModel, sites: Sequence[Site], layers: Sequence[int]) -> None:
        """Take a loaded model, the sites to capture, and the layers to capture the sites of blocks at."""
        self.model = model
        self.sites = tuple(sites)
        self.layers = tuple(layers)
        self.rows = rows_of_sites(model.anatomy, self.sites, self.layers)
        self._prefix: tuple[TokenIds, list[tuple[torch.Tensor, torch.Tensor]]] = ((), [])

    @cached_property
    def fused(self) -> Sequence[Fused]:
        """The norms that are computed with one kernel each."""
        return fused_on_device(self.model)

    @cached_property
    def routers(self) -> dict[int, Router]:
        """The routers of the captured layers that have experts."""
        routers = {layer: router_of(self.model.blocks[layer]) for layer in self.layers}
        return {layer: router for layer, router in routers.items() if router is not None}

    def shard_bytes(self, task: ShardTask) -> int:
        """Return the number of bytes of a captured shard's arrays."""
        samples, positions = len(task.tokens), len(task.layout.positions)
        features = sum(math.prod(self._shape_of(site)) for site in self.sites)
        experts = 2 * samples * positions * len(self.layers) * task.choices
        return 4 * positions * (samples * features + len(self.layers) * task.units) + experts

    def _shape_of(self, site: Site) -> tuple[int, ...]:
        """Return the shape of a site's activations at a position: (layer, d_model), (d_model,) for `resid_final`."""
        layers, sizes = () if site is Site.RESID_FINAL else (len(self.layers),), self.model.dimensions
        return (*layers, *((sizes.n_heads, sizes.d_head) if site is Site.HEAD_OUT else (sizes.d_model,)))

    def width(self, site: Site) -> int:
        """Return the number of features of a vector of a site; a vector of `head_out` has those of all heads."""
        sizes = self.model.dimensions
        return sizes.n_heads * sizes.d_head if site is Site.HEAD_OUT else sizes.d_model

    def layers_with(self, site: Site) -> tuple[int, ...]:
        """Return the captured layers that have a site."""
        return self.model.anatomy.layers_with(site, self.layers)

    def measured(self, site: Site, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the activations of a site, (sample, position, layer, …), at the layers that have it."""
        return _at_rows(self.rows, site, values)

    def capture(self, task: ShardTask) -> CapturedShard:
        """Return the captured activations of one shard; see `launch`."""
        return self.launch(task)()

    def launch(self, task: ShardTask, *, is_kept: bool = True) -> Callable[[], CapturedShard]:
        """Run the forward passes of one shard; a batch that does not fit into memory is halved.

        Return a function that waits until the activations are on the host, and returns them. A GPU may still compute
        when this method returns, and goes on with the next shard without a pause. Another thread may call the function.

        Args:
            task: the shard.
            is_kept: False if another rank keeps the activations; then nothing is copied, and the function is of no use.

        Raises:
            RankOutOfMemoryError: ranks share the model, and a batch does not fit into this rank's memory.
            ValueError: the task does not have the tokens of each sample; or units are to be counted, but the family's
                record names none, or a prompt is too short for a position.
        """
        shard, tokens, spans = task.shard, task.tokens, task.spans
        if len(tokens) != shard.stop - shard.start:
            raise ValueError(f"shard {shard.name} has {shard.stop - shard.start} samples, not {len(tokens)}")
        if task.units:
            self._check_countable(task)
        started = time.perf_counter()
        waiting = deque(part for batch in shard.batches for part in halved(batch, task.halvings))
        oom_backoffs = len(waiting) - len(shard.batches)
        quarantined = dict(shard.quarantined)
        copies: list[tuple[Batch, Any]] = []
        while waiting:
            batch = waiting.popleft()
            rows = [sample - shard.start for sample in batch]
            selected = self._forward_or_none(task, [tokens[row] for row in rows], [spans[row] for row in rows])
            if selected is not None:
                if is_kept:
                    copies.append((batch, _start_copy(selected)))
                continue
            torch.cuda.empty_cache()
            oom_backoffs += 1
            if len(batch) == 1:
                quarantined[batch[0]] = "out of memory, even as the only prompt of a batch"
            else:
                waiting.extendleft(reversed(halved(batch)))

        launched = time.perf_counter()

        def finish() -> CapturedShard:
            captured = self._empty(task)
            captured.batches, captured.quarantined = [batch for batch, _ in copies], quarantined
            while copies:
                _store(copies.pop(0), shard, captured, self.rows)
            # On the CPU the forward passes have ended; on a GPU the copies above have waited for them.
            seconds = (launched if self.model.device.type == "cpu" else time.perf_counter()) - started
            _blank_unusable(captured, task, self.layers, self.rows)
            counts = count_tokens(task, captured.batches)
            captured.counts = replace(counts, oom_backoffs=oom_backoffs, seconds=round(seconds, 4))
            return captured

        return finish

    def _forward_or_none(
        self, task: ShardTask, prompts: Sequence[TokenIds], spans: Sequence[Spans]
    ) -> dict[str, torch.Tensor] | None:
        """Return the result of `_forward`, or None if memory runs out; the failed forward's tensors are then free."""
        try:
            with applied(self.fused):
                return self._forward(task, prompts, spans)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                raise
            if self.model.ranks > 1:
                # The other ranks wait inside this forward, so this rank cannot run a smaller batch.
                advice = (
                    "the scheduling loop retries it in halves" if len(prompts) > 1 else "give each replica more GPUs"
                )
                raise RankOutOfMemoryError(
                    f"a batch of {len(prompts)} prompts of {task.shard.prompt_set}, with up to "
                    f"{max(map(len, prompts))} tokens each, does not fit into the memory of a rank; {advice}"
                ) from error
            return None

    @torch.inference_mode()
    def _forward(self, task: ShardTask, prompts: Sequence[TokenIds], spans: Sequence[Spans]) -> dict[str, torch.Tensor]:
        """Run one batch; return (batch, position, layer, d_model) for each site, counts and experts, on the device.

        The layers of a site are those that have it.

        Prompts are padded on the right. A causal model's tokens do not attend to the padding after them, so no mask
        is needed and positions are correct. An encoder's tokens attend to all tokens, so an encoder gets a mask.
        """
        device, units, choices = self.model.device, task.units, task.choices
        shared = task.layout.shared_prefix
        lengths = torch.tensor([len(ids) - shared for ids in prompts])
        padded = torch.zeros((len(prompts), int(lengths.max())), dtype=torch.long)
        for row, ids in enumerate(prompts):
            padded[row, : len(ids) - shared] = torch.tensor(ids[shared:])
        # A position before a prompt's first token reads token 0 here; its values become NaN later.
        tokens = (torch.tensor(spans) - shared).clamp(min=0)
        prefix = self._expanded_prefix(prompts[0][:shared], len(prompts))
        routers = self.routers if choices else {}
        has_means = bool((tokens[..., 1] - tokens[..., 0] > 1).any())
        with tapped(self.model, self.sites, self.layers, _to(device, tokens), has_means, units, routers) as collected:
            if self.model.anatomy.causal:
                self.model.run(input_ids=_to(device, padded), past_key_values=prefix, use_cache=shared > 0)
            else:
                mask = torch.arange(padded.shape[1]) < lengths[:, None]
                self.model.run(input_ids=_to(device, padded), attention_mask=_to(device, mask.long()))
        home = collected[self.sites[-1]][-1].device
        values: dict[str, torch.Tensor] = {
            site: collected[site][0].to(home)
            if site is Site.RESID_FINAL
            else torch.stack([part.to(home) for part in collected[site]], dim=2)
            for site in self.sites
        }
        if Site.HEAD_OUT in values:
            values[Site.HEAD_OUT] = self._by_head(values[Site.HEAD_OUT])
        if units:
            counts = _count_positive(collected[POSITIVE_UNITS], _finite_prompts(values.values()))
            values[POSITIVE_UNITS] = gather_ranks(counts, units, self.model.ranks)
        if choices:
            shape = (*tokens.shape[:2], len(self.layers), choices)
            experts = torch.full(shape, -1, dtype=torch.int16, device=home)
            for layer, chosen in zip(routers, collected.get(CHOSEN_EXPERTS, []), strict=True):
                experts[:, :, self.layers.index(layer)] = chosen.to(home, torch.int16)
            # Some families return them in an order without a meaning.
            values[CHOSEN_EXPERTS] = experts.sort(dim=-1).values
        return values

    def _by_head(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs of all heads, (batch, position, layer, head, d_head); ranks have those of some heads."""
        sizes = self.model.dimensions
        whole = gather_ranks(outputs, sizes.n_heads * sizes.d_head, self.model.ranks)
        return whole.view(*whole.shape[:-1], sizes.n_heads, sizes.d_head)

    def _expanded_prefix(self, prefix: TokenIds, batch_size: int) -> DynamicCache | None:
        """Return keys and values of the shared prefix for a batch; computed once, expanded without a copy."""
        if not prefix:
            return None
        if self._prefix[0] != prefix:
            ids = torch.tensor([prefix], device=self.model.device)
            cache = self.model.run(input_ids=ids, use_cache=True).past_key_values
            self._prefix = (prefix, [(layer.keys, layer.values) for layer in cache.layers])
        each = (batch_size, -1, -1, -1)
        return DynamicCache([(keys.expand(each), values.expand(each)) for keys, values in self._prefix[1]])

    def _check_countable(self, task: ShardTask) -> None:
        if self.model.anatomy.mlp_units is None:
            raise ValueError(
                f"cannot count hidden units: the record of {self.model.config.model_type!r} names no `mlp_units`; "
                "capture with units=0"
            )
        if min(map(min, task.spans))[0] < 0:
            raise ValueError(
                f"cannot count hidden units: a prompt of {task.shard.prompt_set} has {min(map(len, task.tokens))} "
                f"tokens, but all prompts must have the position {task.layout.positions[0]}; capture with units=0"
            )

    def _empty(self, task: ShardTask) -> CapturedShard:
        n_samples, n_positions = len(task.tokens), len(task.layout.positions)
        arrays: Activations = {
            site: np.full((n_samples, n_positions, *self._shape_of(site)), np.nan, dtype=np.float32)
            for site in self.sites
        }
        counts = np.zeros((n_positions, len(self.layers), task.units), dtype=np.int32)
        experts = np.full((n_samples, n_positions, len(self.layers), task.choices), -1, dtype=np.int16)
        return CapturedShard(arrays, counts if task.units else None, experts=experts if task.choices else None)


Rows = Mapping[Site, Sequence[int]]
"""For each site that only some of the captured layers have, the indices of these among the captured layers."""


def rows_of_sites(anatomy: Anatomy, sites: Sequence[Site], layers: Sequence[int]) -> Rows:
    """Return which of the captured layers have each site that not all of them have."""
    having = {site: anatomy.layers_with(site, layers) for site in sites if site is not Site.RESID_FINAL}
    return {site: [layers.index(layer) for layer in some] for site, some in having.items() if len(some) < len(layers)}


def _at_rows(site_rows: Rows, site: Site, values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the activations of a site, (sample, position, layer, …), at the captured layers that have it."""
    return values[:, :, site_rows[site]] if site in site_rows else values


def _store(copied: tuple[Batch, Any], shard: ShardPlan, captured: CapturedShard, site_rows: Rows) -> None:
    """Write a batch's copies to the shard's arrays, in float32, when they have arrived on the host."""
    batch, (host, event) = copied
    if event is not None:
        event.synchronize()
    rows = np.asarray(batch) - shard.start
    for site, target in captured.activations.items():
        values = host[site].float().numpy()
        if site not in site_rows:
            target[rows] = values
            continue
        for number, index in enumerate(site_rows[site]):
            target[rows, :, index] = values[:, :, number]
    if captured.positive_counts is not None:
        captured.positive_counts += host[POSITIVE_UNITS].numpy()
    if captured.experts is not None:
        captured.experts[rows] = host[CHOSEN_EXPERTS].numpy()


def _finite_prompts(activations: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return which prompts of a batch are finite at every captured site, in the float32 that is stored.

    Only these are counted; `_blank_unusable` applies the same test.
    """
    finite = [values.float().isfinite().flatten(1).all(dim=1) for values in activations]
    return torch.stack(finite).all(dim=0)


def _count_positive(signs: Sequence[torch.Tensor], usable: torch.Tensor) -> torch.Tensor:
    """Return the number of usable prompts with each unit positive, (position, layer, unit), from each layer's signs.

    The device counts, so the host receives one count per unit instead of one sign per unit and prompt.
    """
    counts = [
        (positive & usable.to(positive.device)[:, None, None]).sum(dim=0, dtype=torch.int32) for positive in signs
    ]
    return torch.stack([count.to(usable.device) for count in counts], dim=1)


def gather_ranks(values: torch.Tensor, width: int, ranks: int) -> torch.Tensor:
    """Return the values of all units, along the last dimension; each rank has those of its shard of a matrix.

    If there is nothing to gather, these are `values` themselves.
    """
    if values.shape[-1] == width:  # one process, or a family that gathers its shards before
        return values
    widest = -(-width // ranks)  # torch makes all shards equally wide, except that the last may be narrower
    own = torch.nn.functional.pad(values, (0, widest - values.shape[-1])).contiguous()
    parts = [torch.empty_like(own) for _ in range(ranks)]
    torch.distributed.all_gather(parts, own)
    return torch.cat(parts, dim=-1)[..., :width]


def _to(device: torch.device, values: torch.Tensor) -> torch.Tensor:
    """Return a copy on the device; a copy to a GPU does not wait until the GPU has computed what was queued before."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def _start_copy(selected: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], Any]:
    """Start to copy to pinned host memory; return the copies and the event that marks their completion."""
    if next(iter(selected.values())).device.type != "cuda":
        return selected, None
    host = {}
    for site, values in selected.items():
        host[site] = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host[site].copy_(values, non_blocking=True)
    event = torch.cuda.Event()
    # Record on the stream of the tensors' device: if blocks are on several devices, it may not be the current one.
    event.record(torch.cuda.current_stream(values.device))
    return host, event


def _blank_unusable(captured: CapturedShard, task: ShardTask, layers: Sequence[int], site_rows: Rows) -> None:
    """Set activations before a prompt's first token to NaN (experts to -1), and all those of a quarantined prompt.

    Prompts with other NaN or infinite activations are quarantined, except for the NaN at layers without a site.
    """
    start = task.shard.start
    exists = np.array(task.spans)[:, :, 0] >= 0
    for site, values in captured.activations.items():
        values[~exists] = np.nan
        rows, measured = site_rows.get(site, range(len(layers))), _at_rows(site_rows, site, values)
        bad = ~np.isfinite(measured).all(axis=tuple(range(2 if site is Site.RESID_FINAL else 3, values.ndim)))
        bad &= exists[:, :, None] if bad.ndim == 3 else exists
        for row in np.flatnonzero(bad.reshape(len(task.tokens), -1).any(axis=1)):
            where = "" if bad.ndim == 2 else f", layer {layers[rows[int(np.argwhere(bad[row])[0][1])]]}"
            captured.quarantined.setdefault(start + int(row), f"activation is not finite at {site}{where}")
    for sample in captured.quarantined:
        for values in captured.activations.values():
            values[sample - start] = np.nan
    if captured.experts is not None:
        captured.experts[~exists] = -1
        captured.experts[[sample - start for sample in captured.quarantined]] = -1
