"""Find the prompt that kills its replica: capture halves of the suspected prompts until one prompt is left."""

from dataclasses import replace

from theodolite_jobs.capture.plan import ShardTask

MAX_POISON = 3
"""Maximum number of prompts of one shard that are quarantined because they kill their replica."""

_DEATHS_ALONE = 2
"""Deaths of the replica while it runs one prompt alone, after which this prompt counts as poison."""


class PoisonSearch:
    """The search for one poison prompt of a shard, which killed its replica several times.

    A replica may also die for another reason. So a prompt counts as poison only if it killed its replica alone, twice;
    the search may end without a result. Before the search, the replica must survive one of `MAX_POISON` + 1 prompts,
    which cannot all be poison. Otherwise the replica itself has the fault, for example its GPU. A shard with fewer
    prompts is searched at once.

    Attributes:
        suspects: samples of the prompts that may be poison; empty if the search has ended without a result.
        is_replica: whether the replica died with each prompt, so the search has ended.
    """

    def __init__(self, task: ShardTask) -> None:
        """Suspect all prompts of the shard's batches."""
        self.task = task
        self.suspects = sorted({sample for batch in task.shard.batches for sample in batch})
        self.is_replica = False
        self._deaths_alone = 0
        first = self.suspects[: MAX_POISON + 1]
        self._controls = first if len(first) > MAX_POISON else []

    def probe(self) -> ShardTask:
        """Return a part of the shard with one prompt, with the first half of the suspects, or with the last suspect."""
        half = set(self._controls[:1] or self._first_half())
        batches = [tuple(sample for sample in batch if sample in half) for batch in self.task.shard.batches]
        return self.task.part(min(half), max(half) + 1, filter(None, batches))

    def narrow(self, *, died: bool) -> int | None:
        """Keep the half that may contain the poison prompt; return the prompt's sample when it is known.

        No suspects are left if no prompt kills its replica alone, or if each one does.
        """
        if self._controls:
            self._controls = self._controls[1:] if died else []
            self.is_replica = died and not self._controls
            if self.is_replica:
                self.suspects = []
            return None
        half = self._first_half()
        self.suspects = half if died else self.suspects[len(half) :]
        self._deaths_alone += died and len(half) == 1
        return half[0] if self._deaths_alone == _DEATHS_ALONE else None

    def _first_half(self) -> list[int]:
        return self.suspects[: -(-len(self.suspects) // 2)]


def without(task: ShardTask, sample: int, reason: str) -> ShardTask:
    """Return the task of the shard with one more prompt in quarantine, which the engine does not run."""
    shard = task.shard
    batches = [tuple(other for other in batch if other != sample) for batch in shard.batches]
    quarantined = {**shard.quarantined, sample: reason}
    return replace(task, shard=replace(shard, batches=tuple(filter(None, batches)), quarantined=quarantined))
