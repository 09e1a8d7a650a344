"""Result groups: xarray datasets inside results.zarr, each with its own digest and version."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
import zarr
from numpy.typing import NDArray
from zarr.errors import ZarrUserWarning
from zarr.storage import MemoryStore

from theodolite.errors import RunDamagedError
from theodolite.store.complete import finished_groups, write_complete
from theodolite.store.layout import ACTIVATIONS, COORDINATES, GROUPS, RESULTS
from theodolite.store.objects import delete, join, keys, open_zarr_store, put
from theodolite.store.runs import Run
from theodolite.store.tables import write_table


def build_group(
    name: str,
    values: Mapping[str, NDArray[Any]],
    coordinates: Mapping[str, Any],
    attributes: Mapping[str, Any],
) -> xr.Dataset:
    """Return a result group with the dimensions, units and sentences that the layout gives each variable.

    Args:
        name: the group.
        values: an array for each of the group's variables; one with a dimension of no labels may be left out.
        coordinates: labels of every dimension.
        attributes: what the whole group says of itself.

    Raises:
        KeyError: a variable of the layout is missing.
    """
    variables = {}
    for variable in GROUPS[name]:
        if all(len(coordinates[dim]) for dim in variable.dims):
            array = np.asarray(values[variable.name], dtype=variable.dtype)
        else:  # a survey without contrasts
            array = np.empty([len(coordinates[dim]) for dim in variable.dims], dtype=variable.dtype)
        attributes_of_it = {"units": variable.units, "description": variable.description}
        variables[variable.name] = xr.Variable(variable.dims, array, attributes_of_it)
    used = {dim for variable in GROUPS[name] for dim in variable.dims}
    coords = {dim: _coordinate(dim, coordinates[dim]) for dim in sorted(used)}
    return xr.Dataset(variables, coords, dict(attributes))


def write_groups(
    run: Run, groups: Mapping[str, xr.Dataset], tables: Mapping[str, pd.DataFrame], digests: Mapping[str, str]
) -> None:
    """Write result groups and their tables: COMPLETE drops what they replace first, and lists them again last.

    A group is encoded in memory and its objects are put one by one, so two drivers that write the same group write
    the same bytes to the same keys, and neither takes anything from the other.
    """
    finished = finished_groups(run)
    kept = {name: digest for name, digest in finished.items() if digests.get(name, digest) == digest}
    if kept != finished:
        write_complete(run, kept)
    for name, dataset in groups.items():
        objects = _encode_group(name, dataset)
        for key, content in objects.items():
            put(run.location, key, content)
        delete(run.location, [key for key in keys(run.location, f"{RESULTS}/{name}") if key not in objects])
    for name, table in tables.items():
        write_table(run.location, f"tables/{name}.parquet", table)
    consolidate(run, RESULTS)
    write_complete(run, {**kept, **digests})


def _encode_group(name: str, dataset: xr.Dataset) -> dict[str, bytes]:
    """Return the objects of a result group by their keys in the run."""
    memory: dict[str, Any] = {}
    dataset.to_zarr(
        MemoryStore(memory), group=name, mode="w", zarr_format=3, consolidated=False, encoding=_encoding(dataset)
    )
    inside = f"{name}/"
    return {f"{RESULTS}/{key}": content.to_bytes() for key, content in memory.items() if key.startswith(inside)}


def read_group(run: Run, name: str) -> xr.Dataset:
    """Read one finished result group into memory; raises RunDamagedError where it is not there or not readable."""
    if name not in finished_groups(run):
        raise RunDamagedError(f"{run.id} has no finished results {name!r}; run `theodolite analyse {run.id}`")
    with _reading(run, name) as store, xr.open_zarr(store, group=name, chunks=None) as dataset:
        loaded: xr.Dataset = dataset.load()
    return loaded


def read_contrasts(run: Run, finished: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the contrasts that results were computed for, or those of the spec while there are none.

    Each has `positive`, `negative` and `paired`. `finished` are the run's finished groups. Raises RunDamagedError.
    """
    if "curves" not in finished:
        return run.record.spec.resolved_contrasts()
    with _reading(run, "curves") as store:
        return dict(zarr.open_group(store, path="curves", mode="r").attrs["contrasts"])  # type: ignore[arg-type]


@contextmanager
def _reading(run: Run, name: str) -> Iterator[Any]:
    try:
        yield open_zarr_store(join(run.url, RESULTS), read_only=True)
    # Zarr's metadata readers and codecs each raise their own kinds for bytes that changed.
    except Exception as error:
        raise RunDamagedError(
            f"{run.id}: results {name!r} cannot be read: {error}; "
            f"remove the run's COMPLETE, and `theodolite analyse {run.id}` computes all results again"
        ) from error


def consolidate(run: Run, what: str = ACTIVATIONS) -> None:
    """Put all metadata of a Zarr hierarchy into one object, so that it opens with one request."""
    with warnings.catch_warnings():
        # Zarr warns that consolidation is not in the specification yet; readers without it still work.
        warnings.simplefilter("ignore", ZarrUserWarning)
        store = open_zarr_store(join(run.url, what))
        zarr.open_group(store, mode="a")
        zarr.consolidate_metadata(store)


def _coordinate(dim: str, labels: Any) -> xr.Variable:
    values = np.asarray(labels)
    if values.dtype.kind == "U" or not len(values):
        # Variable-length strings; fixed-length ones have no stable Zarr specification.
        values = values.astype(object)
    return xr.Variable((dim,), values, {"description": COORDINATES[dim]})


def _encoding(dataset: xr.Dataset) -> dict[str, dict[str, Any]]:
    """Return NaN as the fill value of floats and -1 of integers; xarray must not mask integers with theirs."""
    fills: dict[str, dict[str, Any]] = {"f": {"_FillValue": np.nan}, "i": {"_FillValue": None, "fill_value": -1}}
    return {str(name): fills[variable.dtype.kind] for name, variable in dataset.data_vars.items()}
