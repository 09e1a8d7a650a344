"""Compare a few prompts of a survey with plain Hugging Face while it runs, as the parity check does at the start.

An error above the usual one is not yet a mistake: rounding can route a token to other experts, or move an unusual
prompt far. So the check then reads the routing of the batch, and runs the prompt in a wider dtype. Only what neither
explains stops the survey.
"""

import math
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from theodolite.errors import ParityError
from theodolite.sites import Site
from theodolite.spec import Spans, TokenIds
from theodolite_jobs.capture.engine import CapturedShard, Engine
from theodolite_jobs.capture.plan import LONGEST_PROBE, ShardPlan, ShardTask, one_batch
from theodolite_jobs.capture.rounding import OUTLIER, Limits, precedes_experts
from theodolite_jobs.models.precision import computed_in
from theodolite_jobs.models.reference import Reading, at_layers, read_sites, relative_errors
from theodolite_jobs.models.routing import Chosen, first_rerouted, recorded_routing, routing_of_batch, routing_of_prompt

_WIDER = {torch.float32: torch.float64}  # every narrower dtype is compared with float32

Errors = dict[Site, NDArray[np.float64]]
"""For each site, the largest error over positions, (layer,); `resid_final` has one layer."""

Vectors = Mapping[Site, NDArray[Any]]
"""For each site, (position, layer, feature)."""


@dataclass(frozen=True)
class _Plain:
    """A plain run of one prompt."""

    ids: TokenIds
    spans: Spans
    vectors: Vectors
    chosen: Chosen


class CheckedEngine(Engine):
    """An engine that also compares a share of the prompts with plain runs. It is for a model in one process."""

    def __init__(self, engine: Engine, share: float, limits: Limits) -> None:
        """Take an engine, the share of prompts to compare, and the limits of its parity check."""
        super().__init__(engine.model, engine.sites, engine.layers)
        self._share, self._limits = share, limits
        self._lock = threading.Lock()  # another thread compares, and may need the model

    def launch(self, task: ShardTask, *, is_kept: bool = True) -> Callable[[], CapturedShard]:
        """Run the forward passes of one shard as an engine does, and the plain runs of a few of its prompts.

        The returned function raises ParityError if a prompt differs by more than rounding explains.
        """
        with self._lock:
            finish, start, spans = super().launch(task, is_kept=is_kept), task.shard.start, task.spans
            runs = {
                sample: self._plain(task.tokens[sample - start], spans[sample - start]) for sample in self._chosen(task)
            }

        def finish_and_compare() -> CapturedShard:
            captured = finish()
            for sample, plain in runs.items():
                if plain is not None and sample not in captured.quarantined:
                    self._compare(task, captured, sample, plain)
            return captured

        return finish_and_compare

    def _chosen(self, task: ShardTask) -> list[int]:
        """Return the samples to compare: the same ones each time that the shard is captured."""
        shard = task.shard
        generator = random.Random(f"{shard.prompt_set} {shard.start} {shard.stop}")
        samples = range(shard.start, shard.stop)
        count = math.floor(self._share * len(samples) + generator.random())
        chosen = generator.sample(samples, min(count, len(samples)))
        run = {sample for batch in shard.batches for sample in batch}
        return [
            sample
            for sample in sorted(chosen)
            if sample in run and len(task.tokens[sample - shard.start]) <= LONGEST_PROBE
        ]

    def _plain(self, ids: TokenIds, spans: Spans) -> _Plain | None:
        """Return a plain run of a prompt; None if it has no captured position, or does not fit into memory."""
        spans = tuple(span for span in spans if span[0] >= 0)
        if not spans:
            return None
        try:
            with recorded_routing(self.model) as calls:
                reading = read_sites(self.model, ids, spans)
        except torch.OutOfMemoryError:
            return None
        return _Plain(ids, spans, self._vectors(reading), routing_of_prompt(calls))

    @np.errstate(invalid="ignore", over="ignore")
    def _compare(self, task: ShardTask, captured: CapturedShard, sample: int, plain: _Plain) -> None:
        """Compare one prompt, and add it to the counts of the shard; raise ParityError if it differs."""
        row, first_position = sample - task.shard.start, len(task.layout.positions) - len(plain.spans)
        ours = {
            site: self.measured(site, values)[row, first_position:].reshape(plain.vectors[site].shape)
            for site, values in captured.activations.items()
        }
        errors, first = _errors(ours, plain.vectors), math.inf
        if _above(errors, allowed := {site: self._allowed(site) for site in errors}):
            with self._lock:
                first = self._first_rerouted(task, captured, sample, plain)
                judged = {site: precedes_experts(site, self.layers_with(site), first) for site in errors}
                errors = {site: np.where(judged[site], error, 0.0) for site, error in errors.items()}
                if _above(errors, allowed):
                    self._refuse_unexplained(task.shard, sample, ours, plain, judged)
        largest = max(float(error.max()) for error in errors.values())
        counts = captured.counts
        captured.counts = replace(
            counts,
            spot_checks=counts.spot_checks + 1,
            spot_checks_rerouted=counts.spot_checks_rerouted + (not math.isinf(first)),
            spot_check_error=max(counts.spot_check_error, float(f"{largest:.3g}")),
        )

    def _allowed(self, site: Site) -> NDArray[np.float64]:
        """Return the error that needs no explanation, (layer,), or one for all layers."""
        if site not in self._limits.usual:
            return np.asarray([self._limits.bound])
        # The distance from float32 of the captured vector and that of the plain vector.
        return (OUTLIER + 1) * self._limits.usual[site] + self._limits.unit

    def _first_rerouted(self, task: ShardTask, captured: CapturedShard, sample: int, plain: _Plain) -> float:
        """Return the first layer that routes a token to other experts than the plain run, or infinity.

        The batch is captured again. If the routing cannot be read, the first layer may route differently.
        """
        if self._limits.routing != "compared":
            return 0.0 if self._limits.routing == "unknown" else math.inf
        (batch,) = [batch for batch in captured.batches if sample in batch]
        prompts = [task.tokens[one - task.shard.start] for one in batch]
        prefix: Chosen = {}
        with recorded_routing(self.model) as calls:
            Engine(self.model, self.sites, self.layers).capture(one_batch(task.shard.prompt_set, task.layout, prompts))
        rows = routing_of_batch(calls, [len(ids) - task.layout.shared_prefix for ids in prompts], prefix)
        return first_rerouted(rows[batch.index(sample)], plain.chosen)[0]

    def _refuse_unexplained(
        self, shard: ShardPlan, sample: int, ours: Vectors, plain: _Plain, judged: Mapping[Site, NDArray[np.bool_]]
    ) -> None:
        """Raise ParityError if a vector is farther from a run in a wider dtype than rounding explains.

        Rounding explains what the plain run of this prompt, or those of the probes, also have.
        """
        with computed_in(self.model, _WIDER.get(self.model.dtype, torch.float32)):
            exact = self._vectors(read_sites(self.model, plain.ids, plain.spans))
        distances, usual = _errors(ours, exact), _errors(plain.vectors, exact)
        allowed = {
            site: OUTLIER * np.maximum(own, self._limits.usual.get(site, 0.0)) + self._limits.unit
            for site, own in usual.items()
        }
        judged_alone = {site: np.where(judged[site], distance, 0.0) for site, distance in distances.items()}
        if (above := _above(judged_alone, allowed)) is None:
            return
        site, index = above
        where = str(site) if site is Site.RESID_FINAL else f"{site}, layer {self.layers_with(site)[index]}"
        raise ParityError(
            f"sample {sample} of {shard.prompt_set} differs from plain Hugging Face: the distance from a run in a "
            f"wider dtype is {distances[site][index]:.1e} at {where}, allowed {allowed[site][index]:.1e}; its shard is "
            "not stored. Run the survey again: if it fails at the same sample, please report it; else check the device"
        )

    def _vectors(self, reading: Reading) -> Vectors:
        chosen = {site: at_layers(self.model, reading, site, self.layers) for site in self.sites}
        return {site: values[:, None] if site is Site.RESID_FINAL else values for site, values in chosen.items()}


def _errors(ours: Vectors, reference: Vectors) -> Errors:
    return {site: relative_errors(values, reference[site]).max(axis=0) for site, values in ours.items()}


def _above(errors: Errors, allowed: Errors) -> tuple[Site, int] | None:
    """Return the site and the index of the layer whose error is farthest above what is allowed; None if none is."""
    ratios = {site: np.nan_to_num(error / allowed[site], nan=np.inf) for site, error in errors.items()}
    site = max(ratios, key=lambda one: float(ratios[one].max()))
    return (site, int(ratios[site].argmax())) if ratios[site].max() > 1 else None
