"""Activations on disk: one Zarr shard per capture shard and site, one chunk per layer inside it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.buffer.cpu import Buffer
from zarr.codecs import BloscCodec
from zarr.storage import MemoryStore

from theodolite.errors import RunDamagedError
from theodolite.sites import Site
from theodolite.store.commits import Commit, array_key, sha256
from theodolite.store.layout import ACTIVATIONS, COORDINATES, resid_variable, shard_key
from theodolite.store.objects import Location, get, put_new
from theodolite.store.runs import Run


def create_activations(
    location: Location,
    prompt_set: str,
    n_samples: int,
    shard_prompts: int,
    sites: Sequence[Site],
    coordinates: dict[str, Any],
) -> None:
    """Describe a set's arrays at full shape; they hold NaN until shards are moved in.

    Only what is not there yet is written, so a second writer of the same run takes nothing away from the first.

    Args:
        location: the run's objects.
        prompt_set: the set's name.
        n_samples: prompts in the set.
        shard_prompts: prompts in one shard.
        sites: sites to keep, `resid_final` left out.
        coordinates: `position`, `layer` and `d_model` as sequences.
    """
    memory: dict[str, Any] = {}
    group = zarr.create_group(MemoryStore(memory))
    lengths = {name: len(values) for name, values in coordinates.items()}
    for name, values in {"sample": range(n_samples), **coordinates}.items():
        group.create_array(
            name,
            data=np.asarray(values, dtype=np.int64),
            fill_value=-1,
            dimension_names=(name,),
            attributes={"description": COORDINATES[name]},
            config={"write_empty_chunks": True},  # position -1 equals the fill value
        )
    for site in (*sites, Site.RESID_FINAL):
        _create_array(group, site, n_samples, shard_prompts, lengths)
    for key, content in memory.items():
        put_new(location, f"{ACTIVATIONS}/{prompt_set}/{key}", content.to_bytes())


def encode_shard(site: Site, values: NDArray[np.float32], start: int, shard_prompts: int) -> bytes:
    """Return the bytes of the Zarr shard that holds `values`, whose first sample is `start` of its set."""
    lengths = {"position": values.shape[1], "layer": values.shape[2], "d_model": values.shape[-1]}
    memory: dict[str, Any] = {}
    group = zarr.create_group(MemoryStore(memory))
    array = _create_array(group, site, start + len(values), shard_prompts, lengths)
    array[start:] = values
    content: bytes = memory[shard_key(site, start // shard_prompts)].to_bytes()
    return content


def read_shard(run: Run, commit: Commit, site: Site) -> NDArray[np.float32]:
    """Return one shard's activations, (sample, position, layer, d_model) or without layer for `resid_final`.

    Raises:
        RunDamagedError: the shard is missing, or its bytes are not those that were committed. Zarr alone would read
            NaN or other numbers, silently.
    """
    key = shard_key(site, commit.index)
    content = get(run.location, array_key(commit, site))
    if content is None or sha256(content) != commit.checksums[site]:
        wrong = "is missing" if content is None else "its bytes are not those that were committed"
        raise RunDamagedError(f"{run.id}: shard {commit.name}, {site}: {wrong}; run `theodolite verify {run.id}`")
    facts = run.record.sets[commit.prompt_set]
    lengths = {"position": len(facts.positions), "layer": len(run.record.layers), "d_model": run.record.model.d_model}
    memory: dict[str, Any] = {}
    group = zarr.create_group(MemoryStore(memory))
    array = _create_array(group, site, commit.stop, run.record.spec.capture.shard_prompts, lengths)
    memory[key] = Buffer.from_bytes(content)
    return np.asarray(array[commit.start : commit.stop], dtype=np.float32)


def _create_array(
    group: zarr.Group, site: Site, n_samples: int, shard_prompts: int, lengths: dict[str, int]
) -> zarr.Array[Any]:
    """Create one site's array; the one place that knows chunks, codecs and fill values."""
    variable = resid_variable(site)
    trailing = tuple(lengths[dim] for dim in variable.dims[1:])
    chunk = tuple(1 if dim == "layer" else lengths[dim] for dim in variable.dims[1:])
    return group.create_array(
        str(site),
        shape=(n_samples, *trailing),
        shards=(shard_prompts, *trailing),
        chunks=(shard_prompts, *chunk),
        dtype=variable.dtype,
        fill_value=np.nan,
        # lz4 with shuffle: the low bytes of float32 that holds bf16 are empty and vanish.
        compressors=BloscCodec(cname="lz4", shuffle="shuffle", typesize=4),
        dimension_names=variable.dims,
        attributes={"units": variable.units, "description": variable.description},
        config={"write_empty_chunks": True},
    )
