"""Passes over captured activations: one Dask task for each shard, merged in the order of shards."""
