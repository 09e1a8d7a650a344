"""A replica of a tiny model without Ray."""

from collections.abc import Sequence
from pathlib import Path

from support import tiny

from theodolite.sites import Site
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.cluster import replica
from theodolite_jobs.models.load import wrap

SHARD_PROMPTS = 2


def replica_of(family: str, folder: Path, sites: tuple[Site, ...], layers: Sequence[int]) -> replica.Replica:
    """Return a replica that writes shards of `SHARD_PROMPTS` prompts into a folder."""
    assignment = replica.Assignment(
        run_id="run-0",
        run_url=str(folder),
        model=ModelSpec(id="tiny"),
        revision="",
        folder=folder,
        cache=folder,
        sites=sites,
        layers=tuple(layers),
        shard_prompts=SHARD_PROMPTS,
        threads=1,
        gpus=0,
    )
    working = replica.Replica(assignment)
    working._engine = Engine(wrap(tiny.tiny_model(family)), sites, layers)  # loaded, with its parity check passed
    return working
