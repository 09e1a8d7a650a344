"""Counts of a captured shard: the engine counts, the commit record stores the counts, and the metrics add them up."""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ShardCounts:
    """Counts of one shard."""

    oom_backoffs: int = 0  # batches that were split because memory ran out
    tokens: int = 0
    shared_tokens: int = 0  # not computed, because they are in the set's shared prefix
    computed_tokens: int = 0  # padding included
    padding_tokens: int = 0
    seconds: float = 0.0  # of the forward passes and device copies
    spot_checks: int = 0  # prompts that were compared with a plain run while the survey ran
    spot_checks_rerouted: int = 0  # those in which rounding routed a token to other experts
    spot_check_error: float = 0.0  # the largest error of the compared vectors

    def counts_by_name(self) -> dict[str, float]:
        """Return the counts by name, without the fields of subclasses."""
        return {field.name: getattr(self, field.name) for field in fields(ShardCounts)}

    def merged(self, other: "ShardCounts") -> "ShardCounts":
        """Return the counts of two parts of a shard together."""
        ours, theirs = self.counts_by_name(), other.counts_by_name()
        sums: dict[str, Any] = {name: ours[name] + theirs[name] for name in ours}
        return ShardCounts(**sums | {"spot_check_error": max(self.spot_check_error, other.spot_check_error)})
