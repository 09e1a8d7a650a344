"""A replica that measures the effects of interventions: its shards are parts of the prompts of a contrast."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from theodolite.errors import ParityError, RankOutOfMemoryError
from theodolite.store.objects import open_location
from theodolite_jobs.capture.plan import ShardPlan, ShardTask
from theodolite_jobs.cluster.replica import Assignment, Replica, full_arithmetic, model_files


@dataclass(frozen=True)
class EffectsAssignment(Assignment):
    """The configuration of a replica for effects: the digest of the analysis, and the question of each label."""

    digest: str = ""
    questions: Mapping[str, Any] = field(default_factory=dict)


class EffectsReplica(Replica):
    """A replica whose shards are parts of `EffectsWork`; it starts, restarts and joins groups as one for captures."""

    assignment: EffectsAssignment
    _head: Any = None
    _vectors: Mapping[str, Any] = {}

    def capture(self, call: int, task: ShardTask) -> None:
        """Measure a part, which another thread then writes; `written` with the same number waits for it.

        Each halving halves the number of tokens that run at once.

        Raises:
            RankOutOfMemoryError: the memory of the device is too small for these tokens.
            RankOutOfStepError: an earlier call of this rank failed.
        """
        with self._writes.slot(call) as slot, self._in_step():
            arrays = self._measured(task)
            if self.rank is None or self.rank.index == 0:
                slot.write = partial(self._write_part, task.shard, arrays)

    def probe(self, task: ShardTask) -> None:
        """Run some prompts of a part without an intervention and discard them; raises as `capture` does."""
        from theodolite_jobs.effects.routes import prepare_variants

        with self._in_step():
            model = self._ready().model
            for sample in sorted(sample for batch in task.shard.batches for sample in batch):
                prepare_variants(model, [task.tokens[sample - task.shard.start]], [])

    def _measured(self, task: ShardTask) -> dict[str, Any]:
        """Return the numbers of a part; those of a pair with a prompt in quarantine are NaN."""
        import torch

        from theodolite_jobs.effects.measure import measure
        from theodolite_jobs.effects.one_token import COLUMNS

        engine, part, tokens = self._ready(), task.shard, task.tokens
        label = part.prompt_set
        if self._head is None:
            self._head = self._load_head(engine.model)
        if label not in self._vectors:  # of one label at a time, since they are large
            self._vectors = {label: self._stored().read_vectors(label)}
        bad = {sample // 2 for sample in part.quarantined}
        rows = [row for row in range(len(tokens)) if (part.start + row) // 2 not in bad]
        if not rows:
            return {}
        question, kept = self.assignment.questions[label], [tokens[row] for row in rows]
        columns = max(2, COLUMNS >> task.halvings)
        try:
            found = measure(engine.model, self._head, question, self._vectors[label], kept, columns)
        except torch.OutOfMemoryError as error:
            raise RankOutOfMemoryError(f"{columns} tokens at once do not fit into memory: {error}") from error
        _check_route(engine.model, found["route_error"])
        arrays = {name: np.full((len(tokens), *values.shape[1:]), np.nan) for name, values in found.items()}
        for name, values in found.items():
            arrays[name][rows] = values
        return arrays

    def _load_head(self, model: Any) -> Any:
        from theodolite_jobs.effects.next_token import logit_head
        from theodolite_jobs.models.load import load_config
        from theodolite_jobs.models.weights import Weights

        files = model_files(self.assignment)
        weights = Weights(files, load_config(files, self.assignment.model.trust_remote_code))
        return logit_head(weights, model.device)

    def _stored(self) -> Any:
        from theodolite_jobs.effects.part_store import PartStore

        run = self.assignment
        return PartStore(open_location(run.run_url), run.run_id, run.digest)

    def _write_part(self, part: ShardPlan, arrays: dict[str, Any]) -> dict[str, Any]:
        from theodolite_jobs.effects.routes import why_full_route

        reason = why_full_route(self._ready().model)
        facts = {"arithmetic": full_arithmetic(self._certificate), "full_route": reason or ""}
        self._stored().write_part(part, arrays, **facts)
        return {"prompts": part.stop - part.start}


def _check_route(model: Any, errors: Any) -> None:
    """Raise ParityError if float32 interventions differ from those in forward passes of all tokens.

    `errors` are NaN for prompts that were not compared.
    """
    import torch

    from theodolite_jobs.capture.parity import FLOAT32_BOUND

    compared = errors[~np.isnan(errors)]
    if model.dtype == torch.float32 and not (compared <= FLOAT32_BOUND).all():
        raise ParityError(
            f"effects: interventions that cost one token differ by {compared.max():.1e} from those in forward passes "
            f"of all tokens (allowed {FLOAT32_BOUND:.0e}); nothing of them is stored. Please report it with the model"
        )
