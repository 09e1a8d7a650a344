"""Activations on disk: one Zarr shard per capture shard and site, one chunk per layer inside it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec
from zarr.storage import MemoryStore

from theodolite.errors import RunDamagedError
from theodolite.sites import Site
from theodolite.store.layout import ACTIVATIONS, COORDINATES, RESID, RESID_FINAL
from theodolite.store.objects import get, join, open_zarr_store
from theodolite.store.runs import Run


def create_activations(
    url: str,
    prompt_set: str,
    n_samples: int,
    shard_prompts: int,
    sites: Sequence[Site],
    coordinates: dict[str, Any],
) -> None:
    """Create a set's arrays at full shape, once; they hold NaN until shards are moved in.

    Args:
        url: the run's place.
        prompt_set: the set's name.
        n_samples: prompts in the set.
        shard_prompts: prompts in one shard.
        sites: sites to keep, `resid_final` left out.
        coordinates: `position`, `layer` and `d_model` as sequences.
    """
    store = open_zarr_store(join(url, ACTIVATIONS))
    group = zarr.create_group(store, path=prompt_set, overwrite=True)
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


def encode_shard(site: Site, values: NDArray[np.float32], start: int, shard_prompts: int) -> bytes:
    """Return the bytes of the Zarr shard that holds `values`, whose first sample is `start` of its set."""
    lengths = {"position": values.shape[1], "layer": values.shape[2], "d_model": values.shape[-1]}
    memory: dict[str, Any] = {}
    group = zarr.create_group(MemoryStore(memory))
    array = _create_array(group, site, start + len(values), shard_prompts, lengths)
    array[start:] = values
    content: bytes = memory[shard_key(site, start // shard_prompts)].to_bytes()
    return content


def shard_key(site: Site, shard_index: int) -> str:
    """Return the key of a shard inside its set's group; its length is that of the array's dimensions."""
    trailing = len(_variable(site).dims) - 1
    return "/".join([site, "c", str(shard_index), *["0"] * trailing])


def read_shard(run: Run, prompt_set: str, site: Site, shard_index: int) -> NDArray[np.float32]:
    """Return one shard's activations, (sample, position, layer, d_model) or without layer for `resid_final`.

    Raises:
        RunDamagedError: the shard is missing or cannot be decoded. Zarr alone would read NaN, silently.
    """
    facts, size = run.record.sets[prompt_set], run.record.spec.capture.shard_prompts
    start, stop = shard_index * size, min((shard_index + 1) * size, facts.n_samples)
    name = f"{run.id}: shard {prompt_set}/{shard_index:05d}, {site}"
    key = shard_key(site, shard_index)
    content = get(run.location, f"{ACTIVATIONS}/{prompt_set}/{key}")
    if content is None:
        raise RunDamagedError(f"{name}: is missing; run `theodolite verify {run.id}`")
    lengths = {
        "position": len(facts.positions),
        "layer": len(run.record.layers),
        "d_model": run.record.model.d_model,
    }
    memory: dict[str, Any] = {}
    array = _create_array(zarr.create_group(MemoryStore(memory)), site, stop, size, lengths)
    memory[key] = zarr.core.buffer.cpu.Buffer.from_bytes(content)
    try:
        return np.asarray(array[start:stop], dtype=np.float32)
    # A flipped or missing byte surfaces from the index, the checksum or the codec, each with its own kind.
    except Exception as error:
        raise RunDamagedError(f"{name}: cannot be read: {error}; run `theodolite verify {run.id}`") from error


def _variable(site: Site) -> Any:
    return RESID_FINAL if site is Site.RESID_FINAL else RESID


def _create_array(
    group: zarr.Group, site: Site, n_samples: int, shard_prompts: int, lengths: dict[str, int]
) -> zarr.Array[Any]:
    """Create one site's array; the one place that knows chunks, codecs and fill values."""
    variable = _variable(site)
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
