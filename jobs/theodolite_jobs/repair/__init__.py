"""The repair of a damaged run: its description, its shards and commit records, and its results."""
