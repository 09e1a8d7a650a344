"""A replica of a tiny model without Ray, which captures into the arrays of a new run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from support import tiny

from theodolite.shard_bounds import ShardBounds
from theodolite.sites import Site
from theodolite.spec_parts import ModelSpec
from theodolite.store.descriptions import encode_descriptions
from theodolite.store.objects import open_location, put
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.cluster import replica
from theodolite_jobs.models.load import wrap

SHARD_PROMPTS = 2


def replica_of(
    family: str, folder: Path, n_samples: int, sites: tuple[Site, ...], coordinates: Mapping[str, Sequence[int]]
) -> replica.Replica:
    """Create the arrays of the set `set` as a new run does, and return a replica that captures into them.

    `coordinates` are those of the arrays, without `d_model`.
    """
    layers = tuple(coordinates["layer"])
    location = open_location(str(folder), create=True)
    bounds, sizes = ShardBounds(n_samples, n_samples, SHARD_PROMPTS), {**coordinates, "d_model": range(48)}
    for key, content in encode_descriptions("set", bounds, sites, sizes).items():
        put(location, key, content)
    assignment = replica.Assignment(
        run_id="run-0",
        run_url=str(folder),
        model=ModelSpec(id="tiny"),
        revision="",
        folder=folder,
        cache=folder,
        sites=sites,
        layers=layers,
        shard_prompts=SHARD_PROMPTS,
        threads=1,
        gpus=0,
    )
    working = replica.Replica(assignment, {}, {})
    working._engine = Engine(wrap(tiny.tiny_model(family)), sites, layers)  # loaded, with its parity check passed
    return working
