"""Read finished results; every object is compared with its checksum in COMPLETE first.

Zarr alone would read a missing chunk as NaN and a flipped byte as another number. The module fetches whole
objects into memory: each takes one request, and xarray imports no backend plugins.
"""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
import zarr
from zarr.core.buffer.cpu import Buffer
from zarr.storage import MemoryStore

from theodolite.errors import ResultsNotFoundError, RunDamagedError, StoreError, StoreVersionError, TableNotFoundError
from theodolite.groups import GROUPS, table_owner
from theodolite.groups.schema import Variable
from theodolite.store.checksums import damage_of
from theodolite.store.layout import RESULTS
from theodolite.store.manifest import finished_groups, finished_tables, listed_checksums
from theodolite.store.objects import get, get_all, sizes
from theodolite.store.runs import Run
from theodolite.store.tables import decode_compact, decode_rows, decode_table, decode_types, table_key

_IsWanted = Callable[[str, Sequence[int]], bool]
"""Whether to fetch an object, by its variable and the indices of its chunk; metadata has no indices."""


def read_group(run: Run, name: str, vectors: Collection[str] | None = None) -> xr.Dataset:
    """Read the results of one finished analysis into memory, without the arrays that are stored by layer.

    Of the arrays along `d_model`, which are most of a group's bytes, only `vectors` are read; None reads all. The
    dataset may be shared through the run's cache: callers must not change it.

    Raises:
        ResultsNotFoundError: COMPLETE does not list the group.
        RunDamagedError: an object is missing, or its checksum is wrong.
        StoreVersionError: the group has another version than its record.
    """
    finished = finished_groups(run)
    if name not in finished:
        available = ", ".join(finished) or "none"
        raise ResultsNotFoundError(
            f"{run.id} has no finished results {name!r}; it has {available}. `theodolite run analyse {run.id}` "
            "computes requested results that are missing; to add an analysis, add it to `analyses` in the spec and "
            "survey again"
        )

    every = GROUPS[name].variables
    of_group = [one for one in every if vectors is None or "d_model" not in one.dims or one.name in vectors]
    chosen = [one for one in of_group if not one.by_layer]
    names = tuple(one.name for one in chosen)
    left_out = {one.name for one in every} - {*names}

    changing = StoreError(f"{run.id}: results {name!r} are being computed again; retry when they are finished")

    def read() -> xr.Dataset:
        try:
            return _load(run, name, lambda variable, _chunk: variable not in left_out, chosen)
        except RunDamagedError:
            if run.cache is not None and finished_groups(run.refreshed()).get(name) != finished[name]:
                raise changing from None
            raise

    group = run.cached((name, finished[name], names), read, lambda dataset: int(dataset.nbytes))
    if run.cache is not None and group.attrs["digest"] != finished[name]:
        raise changing
    return group


def read_layer(run: Run, name: str, layer: int) -> xr.Dataset:
    """Read one layer of a group's arrays that are stored by layer; raises RunDamagedError for a wrong checksum."""
    layers = _load(run, name, lambda variable, _chunk: variable == "layer")["layer"].values.tolist()
    index, by_layer = layers.index(layer), GROUPS[name].by_layer
    names = {*by_layer}.union(*(variable.dims for variable in by_layer.values()))

    def is_wanted(variable: str, chunk: Sequence[int]) -> bool:
        is_whole = variable not in by_layer or not chunk
        return variable in names and (is_whole or chunk[by_layer[variable].dims.index("layer")] == index)

    return _load(run, name, is_wanted, [*by_layer.values()], index)


def read_contrasts(run: Run, finished: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the contrasts of the finished results, or those of the spec while there are no results.

    Each has `positive`, `negative` and `paired`. `finished` are the run's finished groups. Raises RunDamagedError.
    """
    if "curves" not in finished:
        return run.record.spec.resolved_contrasts()

    def read() -> dict[str, dict[str, Any]]:
        return dict(read_attributes(run, "curves")["contrasts"])

    return run.cached(("contrasts", finished["curves"]), read, lambda _: 2_000)


def read_attributes(run: Run, name: str) -> dict[str, Any]:
    """Return the attributes of a finished group: the group's own, or if these are damaged their consolidated copy.

    Raises RunDamagedError if both are damaged.
    """
    own, copies = f"{RESULTS}/{name}/zarr.json", f"{RESULTS}/zarr.json"
    checksums = listed_checksums(run)
    try:
        try:
            return dict(json.loads(verified_object(run, own, checksums[own]))["attributes"])
        except RunDamagedError:
            metadata = json.loads(verified_object(run, copies, checksums[copies]))["consolidated_metadata"]["metadata"]
            return dict(metadata[name]["attributes"])
    except (KeyError, ValueError, TypeError) as error:
        raise _incomplete_listing(run, name) from error


def read_finished_table(run: Run, name: str, filters: Sequence[tuple[str, str, Any]] = ()) -> pd.DataFrame:
    """Read a table of results, or its rows that pass all filters; raises as `table_bytes` does."""
    return decode_table(table_bytes(run, name), table_key(name), filters)


def read_compact_table(run: Run, name: str) -> pd.DataFrame:
    """Read a table of results through the cache, with texts as categories and integers in their smallest type."""
    checksum = listed_checksums(run).get(table_key(name))

    def size(frame: pd.DataFrame) -> int:
        return int(frame.memory_usage(deep=True).sum())

    return run.cached(("compact", name, checksum), lambda: read_passing_rows(run, name), size)


def read_passing_rows(
    run: Run,
    name: str,
    columns: Sequence[str] = (),
    passes: Callable[[pd.DataFrame], np.ndarray] | None = None,
) -> pd.DataFrame:
    """Read the rows of a table of results that pass a test, with compact types; see `decode_compact`."""
    return decode_compact(table_bytes(run, name), table_key(name), columns, passes)


def read_table_types(run: Run, name: str) -> tuple[dict[str, Any], int]:
    """Return the type of each column of a table of results, with `str` for texts, and its number of rows."""
    return decode_types(table_bytes(run, name), table_key(name))


def read_table_rows(run: Run, name: str, start: int, stop: int) -> tuple[pd.DataFrame, int]:
    """Read rows `start` to `stop` of a table of results, and its total number of rows; raises as `table_bytes` does."""
    return decode_rows(table_bytes(run, name), table_key(name), start, stop)


def table_bytes(run: Run, name: str) -> bytes:
    """Return a whole table of results as it is stored, Parquet.

    Raises:
        TableNotFoundError: the run has no finished table of this name; the message names those that it has.
        RunDamagedError: the table is missing, or its checksum is wrong.
    """
    key, checksums = table_key(name), listed_checksums(run)
    if key not in checksums:
        raise TableNotFoundError(f"{run.id} has no table {name!r}; it has {', '.join(finished_tables(run)) or 'none'}")
    return run.cached((key, checksums[key]), partial(verified_object, run, key, checksums[key]), len)


def verified_object(run: Run, key: str, checksum: str) -> bytes:
    """Return an object of the results; raises RunDamagedError if it is missing, or its checksum is another one."""
    return _verified(run, key, get(run.location, key), checksum)


def damaged_groups(run: Run) -> list[str]:
    """Return the finished groups with a missing object, a wrong checksum, or another version than their record.

    For arrays that are stored by layer, the function checks only that each chunk exists and has its size.
    """
    finished, stored = [name for name in finished_groups(run) if name in GROUPS], sizes(run.location, RESULTS)
    damaged = {name for name in finished if not _is_whole(partial(read_group, run, name))}
    for table in finished_tables(run):
        owner = table_owner(table)
        if owner in finished and not _is_whole(partial(table_bytes, run, table)):
            damaged.add(owner)
    missing = [key for key in listed_checksums(run) if key.startswith(f"{RESULTS}/") and key not in stored]
    damaged |= {key.split("/")[1] for key in missing} & set(finished)
    by_layer = [name for name in finished if GROUPS[name].by_layer and name not in damaged]
    return sorted(damaged | {name for name in by_layer if not _has_chunk_sizes(run, name, stored)})


def _has_chunk_sizes(run: Run, group: str, stored: Mapping[str, int]) -> bool:
    """Return whether the chunks of a group that are stored by layer have the size of their values."""
    lengths, listed = read_group(run, group).sizes, listed_checksums(run)
    for variable in GROUPS[group].by_layer.values():
        n_bytes = math.prod(variable.chunk_shape(lengths)) * np.dtype(variable.dtype).itemsize
        chunks = f"{RESULTS}/{group}/{variable.name}/c/"
        if any(stored[key] != n_bytes for key in listed if key.startswith(chunks)):
            return False
    return True


def _is_whole(read: Callable[[], Any]) -> bool:
    try:
        read()
    except (RunDamagedError, StoreVersionError):
        return False
    return True


def _load(
    run: Run, name: str, is_wanted: _IsWanted, required: Sequence[Variable] = (), layer_index: int | None = None
) -> xr.Dataset:
    """Return the wanted arrays of a group, or of their layers only the one at `layer_index`.

    The required variables and their labels must be among the wanted arrays.
    """
    objects = _fetch(run, name, is_wanted)
    try:
        group = zarr.open_group(MemoryStore(objects), path=name, mode="r", use_consolidated=False)
        arrays = dict(group.arrays())
        variables = {key: _variable(array, layer_index) for key, array in arrays.items()}
        has_all_chunks = all(  # Zarr reads a missing chunk as its fill value
            sum(f"{stored}/".startswith(f"{name}/{key}/c/") for stored in objects) == array.nchunks
            for key, array in arrays.items()
            if key not in GROUPS[name].by_layer
        )
    # The checksums are right, but another version of Zarr may have written the objects.
    except Exception as error:
        raise RunDamagedError(f"{run.id}: results {name!r} cannot be read: {error}") from error
    if (written := group.attrs.get("version")) != GROUPS[name].version:
        raise StoreVersionError(
            f"{run.id}: results {name!r} are of version {written}; this Theodolite reads version "
            f"{GROUPS[name].version}; `theodolite run analyse {run.id}` computes them again"
        )
    expected = {variable.name for variable in required}.union(*(variable.dims for variable in required))
    if not has_all_chunks or not expected <= set(variables):
        raise _incomplete_listing(run, name)
    measured = {variable.name for variable in GROUPS[name].variables}
    labels = {key: variables.pop(key) for key in set(variables) - measured}
    return xr.Dataset(variables, labels, {key: value for key, value in group.attrs.items() if key != "coordinates"})


def _fetch(run: Run, name: str, is_wanted: _IsWanted) -> dict[str, Any]:
    """Return the wanted objects of a group, by their keys in results.zarr."""
    wanted: dict[str, str] = {}
    for key, checksum in listed_checksums(run).items():
        results, _, inside = key.partition(f"/{name}/")
        if results == RESULTS:
            variable, _, chunk = inside.partition("/c/")
            try:
                indices = [int(index) for index in chunk.split("/")] if chunk else []
            except ValueError as error:
                raise _incomplete_listing(run, name) from error
            if inside == "zarr.json" or is_wanted(variable.removesuffix("/zarr.json"), indices):
                wanted[key] = checksum
    contents = zip(wanted.items(), get_all(run.location, wanted), strict=True)
    return {
        key.removeprefix(f"{RESULTS}/"): Buffer.from_bytes(_verified(run, key, content, checksum))
        for (key, checksum), content in contents
    }


def _incomplete_listing(run: Run, name: str) -> RunDamagedError:
    return RunDamagedError(
        f"{run.id}: COMPLETE does not list all objects of {name!r}; `theodolite run analyse {run.id}` computes it again"
    )


def _verified(run: Run, key: str, content: bytes | None, checksum: str) -> bytes:
    if wrong := damage_of(content, checksum):
        raise RunDamagedError(f"{run.id}: {key}: {wrong}; `theodolite run analyse {run.id}` computes it again")
    return content or b""


def _variable(array: Any, layer_index: int | None) -> xr.Variable:
    # xarray stored both for its own use: the fill value, and the names of non-dimension coordinates.
    attributes = {name: value for name, value in array.attrs.items() if name not in ("_FillValue", "coordinates")}
    dims = array.metadata.dimension_names or ()  # a single number has no dimension
    if layer_index is None or "layer" not in dims:
        return xr.Variable(dims, array[...], attributes)
    selection = tuple(layer_index if dim == "layer" else slice(None) for dim in dims)
    return xr.Variable([dim for dim in dims if dim != "layer"], array[selection], attributes)
