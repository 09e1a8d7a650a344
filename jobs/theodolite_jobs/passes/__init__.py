"""From captured activations to result groups: one task on one shard, merged in their order."""
