"""Find the prompt that kills its replica: capture halves of the suspected prompts until one prompt is left."""

from dataclasses import replace

from theodolite_jobs.capture.plan import ShardPlan


class PoisonSearch:
    """The search for one poison prompt of a shard, which killed its replica several times.

    The search assumes that one of the suspected prompts kills the replica. If the assumption is wrong, the shard fails
    again without the prompt that was found.
    """

    def __init__(self, shard: ShardPlan) -> None:
        """Suspect all prompts of the shard's batches."""
        self.shard = shard
        self.suspects = sorted(sample for batch in shard.batches for sample in batch)

    def probe(self) -> ShardPlan:
        """Return a shard with the first half of the suspects, or with the last suspect."""
        half = set(self._first_half())
        batches = [tuple(sample for sample in batch if sample in half) for batch in self.shard.batches]
        return replace(self.shard, start=min(half), stop=max(half) + 1, batches=tuple(filter(None, batches)))

    def narrow(self, *, died: bool) -> int | None:
        """Keep the half that contains the poison prompt; return the prompt's sample if it is the only one left."""
        half = self._first_half()
        self.suspects = half if died else self.suspects[len(half) :]
        return self.suspects[0] if len(self.suspects) == 1 else None

    def _first_half(self) -> list[int]:
        return self.suspects[: -(-len(self.suspects) // 2)]


def without(shard: ShardPlan, sample: int, reason: str) -> ShardPlan:
    """Return the shard with one more prompt in quarantine, which the engine does not run."""
    batches = [tuple(other for other in batch if other != sample) for batch in shard.batches]
    return replace(shard, batches=tuple(filter(None, batches)), quarantined={**shard.quarantined, sample: reason})
