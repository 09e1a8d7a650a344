"""Build and write the results of analyses: xarray datasets in results.zarr, each with its own digest and version."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray
from zarr.storage import MemoryStore

from theodolite.errors import RunDamagedError, StoreError, first_line
from theodolite.groups import GROUPS, Variable
from theodolite.groups.dimensions import DIMENSIONS
from theodolite.store.checksums import damage_of, sha256
from theodolite.store.layout import ACTIVATIONS, RESULTS
from theodolite.store.manifest import drop_groups, drop_outdated, finished_groups, list_groups, listed_checksums
from theodolite.store.objects import delete, get, get_all, keys, put
from theodolite.store.runs import Run
from theodolite.store.tables import table_key


def build_group(
    name: str,
    values: Mapping[str, NDArray[Any]],
    coordinates: Mapping[str, Any],
    attributes: Mapping[str, Any],
    beside: Mapping[str, tuple[str, Sequence[Any]]] = {},
) -> xr.Dataset:
    """Return the results of an analysis, with the dimensions, unit and description of each variable in the registry.

    Args:
        name: the group.
        values: an array for each of the group's variables; one with an empty dimension may be left out.
        coordinates: labels of every dimension without labels in the registry.
        attributes: attributes of the group.
        beside: further coordinates by name: their dimension, and the labels.

    Raises:
        KeyError: the values of a registered variable are missing.
    """
    coordinates, variables = {**coordinates, **GROUPS[name].labels}, {}
    for variable in GROUPS[name].variables:
        if not variable.by_layer:
            shape = GROUPS[name].shape(variable, coordinates)
            # A survey without contrasts has no values along them.
            array = np.asarray(values[variable.name], variable.dtype) if all(shape) else np.empty(shape, variable.dtype)
            variables[variable.name] = xr.Variable(variable.dims, array, _described(variable))
    used = {dim for variable in GROUPS[name].variables for dim in variable.dims}
    coords = {dim: _coordinate(dim, dim, coordinates[dim]) for dim in sorted(used)}
    coords |= {name: _coordinate(name, dim, labels) for name, (dim, labels) in beside.items()}
    return xr.Dataset(variables, coords, dict(attributes))


def _described(variable: Variable) -> dict[str, Any]:
    return {"units": variable.units, "description": variable.description}


def remove_groups(run: Run, names: Collection[str]) -> None:
    """Remove damaged groups from COMPLETE and from the store, where their metadata would stop Zarr."""
    if names:
        drop_groups(run, names)
        delete(run.location, [key for name in names for key in keys(run.location, f"{RESULTS}/{name}")])


def claim_layers(run: Run, group: str, digest: str) -> None:
    """Record that the arrays of a group that are stored by layer are being written for this digest."""
    put(run.location, _claim(group), digest.encode())


def check_claim(run: Run, group: str, digest: str) -> None:
    """Raise StoreError if another process has written these layers for another digest since `claim_layers`."""
    claim = get(run.location, _claim(group))
    # A driver that computed the same has finished the group, and `drop_claims` then removed the claim.
    is_finished = claim is None and finished_groups(run).get(group) == digest
    if claim != digest.encode() and not is_finished:
        raise StoreError(
            f"{run.id}: another process computes {group} with other options, or has computed it meanwhile; "
            f"run `theodolite run analyse {run.id}` when it has finished"
        )


def drop_claims(run: Run) -> None:
    """Remove the claims of finished groups."""
    for group, digest in finished_groups(run).items():
        if group in GROUPS and GROUPS[group].by_layer and get(run.location, _claim(group)) == digest.encode():
            delete(run.location, [_claim(group)])


def _claim(group: str) -> str:
    return f"pending/{group}.digest"


def write_groups(
    run: Run,
    groups: Mapping[str, xr.Dataset],
    tables: Mapping[str, bytes],
    digests: Mapping[str, str],
    layers: Mapping[str, str] = {},
) -> None:
    """Write the results of analyses and their tables; COMPLETE drops outdated ones first and lists the new ones last.

    A group is encoded in memory and its objects are put one by one. Two drivers that write the same group thus write
    the same bytes to the same keys, and neither removes an object of the other.

    Args:
        run: the run.
        groups: the arrays of each group, without those that are stored by layer.
        tables: the content of each table of the groups.
        digests: the digest of each group.
        layers: the checksums that `write_layer` returned for the groups, by key.
    """
    drop_outdated(run, digests)
    objects = {table_key(name): content for name, content in tables.items()}
    for name, dataset in groups.items():
        of_group = _encode_group(name, dataset)
        current_keys = {*of_group, *_chunk_keys(name, dataset.sizes)}
        delete(run.location, [key for key in keys(run.location, f"{RESULTS}/{name}") if key not in current_keys])
        objects |= of_group
    for key, content in objects.items():
        put(run.location, key, content)
    written = {key: sha256(content) for key, content in objects.items()}
    list_groups(run, digests, {**layers, **written, **consolidate(run, RESULTS)})


def write_layer(
    run: Run, group: str, name: str, lengths: Mapping[str, int], layer: int, values: NDArray[Any]
) -> dict[str, str]:
    """Write one layer of a variable that is stored by layer, before its group is written; return its checksums by key.

    `lengths` are those of the variable's dimensions; `values` is the array without the layer's dimension.
    """
    variable = GROUPS[group].by_layer[name]
    memory: dict[str, Any] = {}
    array = _create_by_layer(zarr.create_group(MemoryStore(memory)), variable, lengths)
    array[tuple(layer if dim == "layer" else slice(None) for dim in variable.dims)] = values
    chunks = {key: content.to_bytes() for key, content in memory.items() if key.startswith(f"{name}/c/")}
    for key, content in chunks.items():
        put(run.location, f"{RESULTS}/{group}/{key}", content)
    return {f"{RESULTS}/{group}/{key}": sha256(content) for key, content in chunks.items()}


def _encode_group(name: str, dataset: xr.Dataset) -> dict[str, bytes]:
    """Return the objects of an analysis by their keys in the run; for arrays stored by layer, only the metadata."""
    memory: dict[str, Any] = {}
    # Zarr also writes chunks that contain only the fill value, so a missing chunk always means lost data.
    with zarr.config.set({"array.write_empty_chunks": True}):
        dataset.to_zarr(
            MemoryStore(memory), group=name, mode="w", zarr_format=3, consolidated=False, encoding=_encoding(dataset)
        )
    group = zarr.open_group(MemoryStore(memory), path=name, mode="a")
    for variable in GROUPS[name].by_layer.values():
        _create_by_layer(group, variable, dataset.sizes)
    return {f"{RESULTS}/{key}": stored.to_bytes() for key, stored in memory.items() if key.startswith(f"{name}/")}


def _create_by_layer(group: zarr.Group, variable: Variable, lengths: Mapping[Any, int]) -> zarr.Array[Any]:
    """Create an array that is stored by layer."""
    return group.create_array(
        variable.name,
        shape=tuple(lengths[dim] for dim in variable.dims),
        chunks=variable.chunk_shape(lengths),
        dtype=variable.dtype,
        fill_value=np.nan,
        compressors=None,  # the digits of singular vectors do not compress
        dimension_names=variable.dims,
        attributes=_described(variable),
    )


def _chunk_keys(group: str, lengths: Mapping[Any, int]) -> Iterator[str]:
    """Yield the keys of the chunks that the variables stored by layer may have."""
    for variable in GROUPS[group].by_layer.values():
        shape = [lengths[dim] for dim in variable.dims]
        inner = variable.dims.index("layer") + 1
        if not all(shape):
            continue
        for indices in np.ndindex(*shape[:inner], *[1] * len(shape[inner:])):
            yield "/".join([RESULTS, group, variable.name, "c", *map(str, indices)])


def consolidate(run: Run, hierarchy: str = ACTIVATIONS) -> dict[str, str]:
    """Write all metadata of a Zarr hierarchy into one object, for readers; return the object's checksum by its key.

    The object is that of `zarr.consolidate_metadata`, which takes three times as long because it parses each array's.

    Raises RunDamagedError if metadata in the hierarchy is no JSON.
    """
    root, metadata = f"{hierarchy}/zarr.json", dict[str, Any]()
    described = sorted(key for key in keys(run.location, hierarchy) if key.endswith("/zarr.json") and key != root)
    for key, content in zip(described, get_all(run.location, described), strict=True):
        try:
            metadata[key.removeprefix(f"{hierarchy}/").removesuffix("/zarr.json")] = json.loads(content or b"")
        except ValueError as error:
            raise RunDamagedError(
                f"{run.id}: the metadata {key} cannot be read: {first_line(error)}; "
                f"run `theodolite run verify {run.id} --repair`"
            ) from error
    inline = {"kind": "inline", "must_understand": False, "metadata": metadata}
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": inline}
    consolidated = json.dumps(group).encode()
    put(run.location, root, consolidated)
    return {root: sha256(consolidated)}


def restore_root(run: Run) -> None:
    """Write the consolidated metadata of the results again if it is not what COMPLETE lists."""
    root = f"{RESULTS}/zarr.json"
    if finished_groups(run) and damage_of(get(run.location, root), listed_checksums(run).get(root, "")):
        list_groups(run, {}, consolidate(run, RESULTS))


def _coordinate(name: str, dim: str, labels: Any) -> xr.Variable:
    values = np.asarray(labels)
    if values.dtype.kind == "U" or not len(values):
        # Variable-length strings; fixed-length ones have no stable Zarr specification.
        values = values.astype(object)
    return xr.Variable((dim,), values, {"description": DIMENSIONS[name]})


def _encoding(dataset: xr.Dataset) -> dict[str, dict[str, Any]]:
    """Return the encodings: the fill value is NaN for floats and -1 for integers, and xarray masks no integers."""
    fills: dict[str, dict[str, Any]] = {"f": {"_FillValue": np.nan}, "i": {"_FillValue": None, "fill_value": -1}}
    return {str(name): fills[variable.dtype.kind] for name, variable in dataset.data_vars.items()}
