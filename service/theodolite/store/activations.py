"""Read and write captured arrays: activations at each site, and counts of active neurons.

Each capture shard is one Zarr shard of an array of activations, and one chunk of the array of counts.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import google_crc32c
import numpy as np
import zarr
from numcodecs import Blosc
from numpy.typing import NDArray
from zarr.buffer.cpu import Buffer
from zarr.codecs import BloscCodec
from zarr.storage import MemoryStore

from theodolite.errors import RunDamagedError
from theodolite.groups.dimensions import DIMENSIONS
from theodolite.shard_bounds import ShardBounds
from theodolite.sites import Site
from theodolite.store.checksums import damage_of
from theodolite.store.commits import array_key
from theodolite.store.layout import ACTIVATIONS, CAPTURED, MLP_POSITIVE, shard_key
from theodolite.store.objects import Location, get, put_new
from theodolite.store.records import Commit
from theodolite.store.runs import Run

# lz4 with shuffle compresses the zero bytes: the low ones of bf16 in float32, and the high ones of counts.
_CODEC = BloscCodec(cname="lz4", shuffle="shuffle", typesize=4)
_COMPRESSOR = Blosc(cname="lz4", shuffle=Blosc.SHUFFLE)  # the same, called without Zarr


def create_activations(
    location: Location,
    prompt_set: str,
    bounds: ShardBounds,
    sites: Sequence[Site],
    coordinates: dict[str, Any],
) -> None:
    """Write the metadata and coordinates of a set's arrays; the arrays hold fill values until shards are moved in.

    Existing objects are not overwritten, so a second writer of the same run changes nothing.

    Args:
        location: the run's objects.
        prompt_set: the set's name.
        bounds: of the set's shards.
        sites: captured sites, `resid_final` included.
        coordinates: `position`, `layer` and `d_model` as sequences, and `unit` if active neurons are counted.
    """
    group, memory = _group_in_memory()
    lengths = {name: len(values) for name, values in coordinates.items()}
    labels = {"sample": range(bounds.n_kept), **coordinates}
    if "unit" in coordinates:
        labels["shard"] = range(bounds.n_shards)
        _create_counts(group, bounds.n_shards, lengths)
    for name, values in labels.items():
        group.create_array(
            name,
            data=np.asarray(values, dtype=np.int64),
            fill_value=-1,
            dimension_names=(name,),
            attributes={"description": DIMENSIONS[name]},
            config={"write_empty_chunks": True},  # position -1 equals the fill value
        )
    for site in sites:
        _create_array(group, site, bounds.n_kept, bounds.shard_prompts, lengths)
    for key, content in memory.items():
        put_new(location, f"{ACTIVATIONS}/{prompt_set}/{key}", content.to_bytes())


def encode_shard(site: Site, values: NDArray[np.float32], start: int, shard_prompts: int) -> bytes:
    """Return the bytes of the Zarr shard with `values`; their first sample has the index `start` in its set.

    `start` is a multiple of `shard_prompts`, so a shard with fewer values is the last one of its set.

    Zarr would write the same bytes, with copies of the whole shard that take more time than the compression. A shard is
    the compressed chunks, one of each layer, and an index of offsets and lengths with a CRC-32C:
    https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/
    """
    layers = [values] if site is Site.RESID_FINAL else np.moveaxis(values, 2, 0)
    chunks = []
    for layer in layers:
        padding = [(0, shard_prompts - len(layer)), *[(0, 0)] * (layer.ndim - 1)]
        chunks.append(_COMPRESSOR.encode(np.pad(layer, padding, constant_values=np.nan)))
    lengths = np.array([len(chunk) for chunk in chunks], dtype="<u8")
    index = np.stack([lengths.cumsum() - lengths, lengths], axis=1).tobytes()
    return b"".join([*chunks, index, google_crc32c.value(index).to_bytes(4, "little")])


def encode_counts(counts: NDArray[np.int32], shard_index: int) -> bytes:
    """Return the bytes of the Zarr chunk with a shard's `counts`, (position, layer, unit)."""
    lengths = dict(zip(MLP_POSITIVE.dims[1:], counts.shape, strict=True))
    group, memory = _group_in_memory()
    _create_counts(group, shard_index + 1, lengths)[shard_index] = counts
    content: bytes = memory[shard_key(MLP_POSITIVE.name, shard_index)].to_bytes()
    return content


def counted_units(location: Location, prompt_set: str) -> int:
    """Return the number of hidden units of each MLP whose activity a run counts in a set, or 0 if it counts none.

    Raises:
        RunDamagedError: the metadata of the counts cannot be read.
    """
    key = f"{ACTIVATIONS}/{prompt_set}/{MLP_POSITIVE.name}/zarr.json"
    content = get(location, key)
    if content is None:
        return 0
    with suppress(ValueError, LookupError, TypeError, OverflowError):
        units = int(json.loads(content)["shape"][-1])
        if units > 0:
            return units
    raise RunDamagedError(f"{key} is damaged; run `theodolite verify RUN --repair` with the id of this run")


def read_positive_counts(run: Run, commit: Commit) -> NDArray[np.int32] | None:
    """Return in how many of a shard's usable prompts each neuron is active, (position, layer, unit), or None.

    None means that the shard has no counts: its set has `positions: all`, or the model's hidden units are unknown, or
    an older version captured the run.

    Raises:
        RunDamagedError: the counts are missing, or their checksum differs from the commit record.
    """
    if MLP_POSITIVE.name not in commit.checksums:
        return None
    content = committed_bytes(run, commit, MLP_POSITIVE.name)
    group, memory = _group_in_memory()
    facts = {"position": len(run.record.sets[commit.prompt_set].positions), "layer": len(run.record.layers)}
    array = _create_counts(group, commit.index + 1, {**facts, "unit": counted_units(run.location, commit.prompt_set)})
    memory[shard_key(MLP_POSITIVE.name, commit.index)] = Buffer.from_bytes(content)
    try:
        return np.asarray(array[commit.index], dtype=np.int32)
    # The bytes are right, so the number of units in the array's metadata is wrong; Zarr's codecs raise many types.
    except Exception as error:
        raise RunDamagedError(
            f"{run.id}: the metadata of {commit.prompt_set}/{MLP_POSITIVE.name} does not fit its shards; "
            f"run `theodolite verify {run.id} --repair`"
        ) from error


def committed_bytes(run: Run, commit: Commit, name: str) -> bytes:
    """Return the bytes of one array of a shard; raises RunDamagedError if they are missing or have changed."""
    content = get(run.location, array_key(commit, name))
    if wrong := damage_of(content, commit.checksums[name], "committed"):
        raise RunDamagedError(
            f"{run.id}: shard {commit.name}, {name}: {wrong}; run `theodolite verify {run.id} --repair`"
        )
    return content or b""


def _group_in_memory() -> tuple[zarr.Group, dict[str, Any]]:
    """Return an empty group, and the objects that Zarr writes to it, by key."""
    memory: dict[str, Any] = {}
    return zarr.create_group(MemoryStore(memory)), memory


# Only these two functions choose chunk shapes.


def _create_array(
    group: zarr.Group, site: Site, n_samples: int, shard_prompts: int, lengths: dict[str, int]
) -> zarr.Array[Any]:
    """Create one site's array with one Zarr shard for each capture shard: one layer of it takes two range requests."""
    dims = CAPTURED[site].dims[1:]
    shape, chunk = [lengths[dim] for dim in dims], [1 if dim == "layer" else lengths[dim] for dim in dims]
    return _create(group, site, (n_samples, *shape), shards=(shard_prompts, *shape), chunks=(shard_prompts, *chunk))


def _create_counts(group: zarr.Group, n_shards: int, lengths: dict[str, int]) -> zarr.Array[Any]:
    """Create the array of counts with one chunk for each capture shard; readers always read a whole chunk."""
    shape = [lengths[dim] for dim in MLP_POSITIVE.dims[1:]]
    return _create(group, MLP_POSITIVE.name, (n_shards, *shape), chunks=(1, *shape))


def _create(group: zarr.Group, name: str, shape: tuple[int, ...], **chunks: Any) -> zarr.Array[Any]:
    variable = CAPTURED[name]
    return group.create_array(
        str(name),
        shape=shape,
        dtype=variable.dtype,
        fill_value=np.nan if np.dtype(variable.dtype).kind == "f" else -1,
        compressors=_CODEC,
        dimension_names=variable.dims,
        attributes={"units": variable.units, "description": variable.description},
        config={"write_empty_chunks": True},
        **chunks,
    )
