"""Where the shards of a prompt set begin and end: first those with stored activations, then the reduced shards.

The activations of a reduced shard are reduced to their moments while the model runs, and are not stored.
"""

from dataclasses import dataclass

MOST_REDUCED_PROMPTS = 4096
"""Maximum number of prompts in a reduced shard: after a crash, they are computed again."""

_LEAST_REDUCED_SHARDS = 64
"""Number of reduced shards that a set is divided into, unless they would be smaller than stored shards: their means
give the standard errors."""


@dataclass(frozen=True)
class ShardBounds:
    """The bounds of all shards of a set."""

    n_samples: int  # prompts of the set
    n_kept: int  # first prompts, whose activations are stored
    shard_prompts: int  # prompts in a stored shard

    @property
    def n_stored(self) -> int:
        """The number of shards with stored activations; the first reduced shard has this index."""
        return -(-self.n_kept // self.shard_prompts)

    @property
    def n_shards(self) -> int:
        """The number of all shards."""
        return self.n_stored + -(-(self.n_samples - self.n_kept) // self.reduced_prompts)

    @property
    def reduced_prompts(self) -> int:
        """The number of prompts in a reduced shard, a multiple of `shard_prompts` if that is not larger than 4096."""
        pieces = (self.n_samples - self.n_kept) // (_LEAST_REDUCED_SHARDS * self.shard_prompts)
        return self.shard_prompts * min(max(1, pieces), max(1, MOST_REDUCED_PROMPTS // self.shard_prompts))

    def of(self, index: int) -> tuple[int, int]:
        """Return the first sample of a shard, and one past its last sample."""
        if index < self.n_stored:
            start = index * self.shard_prompts
            return start, min(start + self.shard_prompts, self.n_kept)
        start = self.n_kept + (index - self.n_stored) * self.reduced_prompts
        return start, min(start + self.reduced_prompts, self.n_samples)

    def index_of(self, sample: int) -> int:
        """Return the index of a sample's shard."""
        if sample < self.n_kept:
            return sample // self.shard_prompts
        return self.n_stored + (sample - self.n_kept) // self.reduced_prompts
