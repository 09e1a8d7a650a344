"""The Zarr metadata and the coordinates of a run's captured arrays: they follow from run.json.

Each capture shard is one Zarr shard of an array of activations, and one chunk of the arrays of counts and experts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec
from zarr.storage import MemoryStore

from theodolite.groups.dimensions import DIMENSIONS
from theodolite.shard_bounds import ShardBounds
from theodolite.sites import Site
from theodolite.spec_parts import Label
from theodolite.store.layout import ACTIVATIONS, CAPTURED, EXPERTS, MLP_POSITIVE
from theodolite.store.runs import RunRecord

# lz4 with shuffle compresses the zero bytes: the low ones of bf16 in float32, and the high ones of counts.
_CODEC = BloscCodec(cname="lz4", shuffle="shuffle", typesize=4)


def descriptions_of(record: RunRecord, prompt_set: str) -> dict[str, bytes]:
    """Return the objects that describe a set's arrays, by their keys in the run."""
    sites, model, facts = record.spec.capture.all_sites, record.model, record.sets[prompt_set]
    coordinates: dict[str, Sequence[Label]] = {
        "position": facts.positions,
        "layer": record.layers,
        "d_model": range(model.d_model),
    }
    if Site.HEAD_OUT in sites:
        coordinates |= {"head": range(model.n_heads), "d_head": range(model.d_head)}
    if facts.n_units:
        coordinates["unit"] = range(facts.n_units)
    if facts.n_choices:
        coordinates["choice"] = range(facts.n_choices)
    return encode_descriptions(prompt_set, record.bounds(prompt_set), sites, coordinates)


def encode_descriptions(
    prompt_set: str, bounds: ShardBounds, sites: Sequence[Site], coordinates: Mapping[str, Sequence[Label]]
) -> dict[str, bytes]:
    """Return the metadata and coordinates of a set's arrays, which hold fill values until shards are moved in.

    Args:
        prompt_set: the set's name.
        bounds: of the set's shards.
        sites: captured sites, `resid_final` included.
        coordinates: the labels of `position`, `layer` and `d_model`; with `head_out` those of `head` and `d_head`, and
            those of `unit` if active neurons are counted, and of `choice` if experts are recorded.
    """
    group, memory = group_in_memory()
    lengths = {name: len(values) for name, values in coordinates.items()}
    labels = {"sample": range(bounds.n_kept), **coordinates}
    if "unit" in coordinates:
        labels["shard"] = range(bounds.n_shards)
        create_counts(group, bounds.n_shards, lengths)
    if "choice" in coordinates:
        create_experts(group, bounds.n_kept, bounds.shard_prompts, lengths)
    for name, values in labels.items():
        is_text = isinstance(values[0], str)  # positions with names
        group.create_array(
            name,
            data=np.asarray(values, dtype=np.dtypes.StringDType() if is_text else np.int64),
            fill_value="" if is_text else -1,
            dimension_names=(name,),
            attributes={"description": DIMENSIONS[name]},
            config={"write_empty_chunks": True},  # position -1 equals the fill value
        )
    for site in sites:
        _create_array(group, site, bounds.n_kept, bounds.shard_prompts, lengths)
    return {f"{ACTIVATIONS}/{prompt_set}/{key}": content.to_bytes() for key, content in memory.items()}


def group_in_memory() -> tuple[zarr.Group, dict[str, Any]]:
    """Return an empty group, and the objects that Zarr writes to it, by key."""
    memory: dict[str, Any] = {}
    return zarr.create_group(MemoryStore(memory)), memory


# Only these three functions choose chunk shapes.


def _create_array(
    group: zarr.Group, site: Site, n_samples: int, shard_prompts: int, lengths: dict[str, int]
) -> zarr.Array[Any]:
    """Create one site's array with one Zarr shard for each capture shard: one layer of it takes two range requests."""
    dims = CAPTURED[site].dims[1:]
    shape, chunk = [lengths[dim] for dim in dims], [1 if dim == "layer" else lengths[dim] for dim in dims]
    return _create(group, site, (n_samples, *shape), shards=(shard_prompts, *shape), chunks=(shard_prompts, *chunk))


def create_counts(group: zarr.Group, n_shards: int, lengths: dict[str, int]) -> zarr.Array[Any]:
    """Create the array of counts with one chunk for each capture shard; readers always read a whole chunk."""
    shape = [lengths[dim] for dim in MLP_POSITIVE.dims[1:]]
    return _create(group, MLP_POSITIVE.name, (n_shards, *shape), chunks=(1, *shape))


def create_experts(group: zarr.Group, n_samples: int, shard_prompts: int, lengths: dict[str, int]) -> zarr.Array[Any]:
    """Create the array of experts with one chunk for each capture shard."""
    shape = [lengths[dim] for dim in EXPERTS.dims[1:]]
    return _create(group, EXPERTS.name, (n_samples, *shape), chunks=(shard_prompts, *shape))


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
