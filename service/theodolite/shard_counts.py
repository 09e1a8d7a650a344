"""Counts of a captured shard: the engine counts, the commit record stores the counts, and the metrics add them up."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class ShardCounts:
    """Counts of one shard."""

    oom_backoffs: int = 0  # batches that were split because memory ran out
    tokens: int = 0
    shared_tokens: int = 0  # not computed, because they are in the set's shared prefix
    computed_tokens: int = 0  # padding included
    padding_tokens: int = 0
    seconds: float = 0.0  # of the forward passes and device copies

    def counts_by_name(self) -> dict[str, float]:
        """Return the counts by name, without the fields of subclasses."""
        return {field.name: getattr(self, field.name) for field in fields(ShardCounts)}
