"""What is counted while a shard is captured: the engine counts it, the commit record keeps it, metrics add it up."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class ShardCounts:
    """Counts of one shard.

    Attributes:
        oom_backoffs: batches split because memory ran out.
        tokens: tokens of the shard's prompts.
        shared_tokens: tokens that were not computed, since all prompts of the set begin with them.
        computed_tokens: tokens computed, padding included.
        padding_tokens: those of them that only fill batches.
        seconds: time of the forward passes and copies.
    """

    oom_backoffs: int = 0
    tokens: int = 0
    shared_tokens: int = 0
    computed_tokens: int = 0
    padding_tokens: int = 0
    seconds: float = 0.0

    def counts_by_name(self) -> dict[str, float]:
        """Return the counts by name; of a class that adds fields, these alone."""
        return {field.name: getattr(self, field.name) for field in fields(ShardCounts)}
