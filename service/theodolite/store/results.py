"""Result groups: xarray datasets inside results.zarr, each with its own digest and version."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray
from zarr.errors import ZarrUserWarning

from theodolite.errors import RunDamagedError
from theodolite.store.layout import ACTIVATIONS, COORDINATES, GROUPS, RESULTS
from theodolite.store.objects import delete, join, keys, open_zarr_store
from theodolite.store.runs import Run, read_complete, write_complete


def build_group(
    name: str,
    values: Mapping[str, NDArray[Any]],
    coordinates: Mapping[str, Any],
    attributes: Mapping[str, Any],
) -> xr.Dataset:
    """Return a result group with the dimensions, units and sentences that the layout gives each variable.

    Args:
        name: the group.
        values: an array for each of the group's variables.
        coordinates: labels of every dimension.
        attributes: what the whole group says of itself.

    Raises:
        KeyError: a variable of the layout is missing.
    """
    variables = {
        variable.name: xr.Variable(
            variable.dims,
            np.asarray(values[variable.name], dtype=variable.dtype),
            {"units": variable.units, "description": variable.description},
        )
        for variable in GROUPS[name]
    }
    used = {dim for variable in GROUPS[name] for dim in variable.dims}
    coords = {dim: _coordinate(dim, coordinates[dim]) for dim in sorted(used)}
    return xr.Dataset(variables, coords, dict(attributes))


def write_groups(run: Run, groups: Mapping[str, xr.Dataset], digests: Mapping[str, str]) -> None:
    """Write result groups: COMPLETE drops them first and lists them again last, when they are whole."""
    kept = {name: digest for name, digest in read_complete(run).items() if name not in groups}
    write_complete(run, kept)
    url = join(run.url, RESULTS)
    # The consolidated metadata in the root speaks of the old groups; it is made anew at the end.
    old = [key for name in groups for key in keys(run.location, f"{RESULTS}/{name}")]
    delete(run.location, old + [key for key in keys(run.location, RESULTS) if key == f"{RESULTS}/zarr.json"])
    for name, dataset in groups.items():
        dataset.to_zarr(
            open_zarr_store(url),
            group=name,
            mode="a",
            zarr_format=3,
            consolidated=False,
            encoding=_encoding(dataset),
        )
    consolidate(run, RESULTS)
    write_complete(run, {**kept, **digests})


def read_group(run: Run, name: str) -> xr.Dataset:
    """Read one finished result group into memory; raises RunDamagedError where it is not there."""
    if name not in read_complete(run):
        raise RunDamagedError(f"{run.id} has no finished results {name!r}; run `theodolite analyse {run.id}`")
    store = open_zarr_store(join(run.url, RESULTS), read_only=True)
    with xr.open_zarr(store, group=name, chunks=None) as dataset:
        loaded: xr.Dataset = dataset.load()
    return loaded


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
    if values.dtype.kind == "U":
        # Variable-length strings; fixed-length ones have no stable Zarr specification.
        values = values.astype(object)
    return xr.Variable((dim,), values, {"description": COORDINATES[dim]})


def _encoding(dataset: xr.Dataset) -> dict[str, dict[str, Any]]:
    fills = {"f": np.nan, "i": -1}
    return {
        str(name): {"_FillValue": fills[variable.dtype.kind]}
        for name, variable in dataset.data_vars.items()
        if variable.dtype.kind == "f"
    } | {str(name): {"_FillValue": None} for name, variable in dataset.data_vars.items() if variable.dtype.kind == "i"}
