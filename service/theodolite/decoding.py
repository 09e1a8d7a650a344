"""Answers read back into arrays: what was null in JSON is NaN, and nothing shares memory with what is kept."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from theodolite.query.curves import Curve


def decode_array(data: Any) -> NDArray[Any]:
    """Return a copy as an array; None, which is null in JSON, becomes NaN."""
    values = np.array(data)
    return values.astype(np.float64) if values.dtype == object or not values.size else values


def decode_number(value: float | None) -> float:
    """Return a number; None, which is null in JSON, is NaN."""
    return float("nan") if value is None else float(value)


def decode_dataset(content: Mapping[str, Any]) -> xr.Dataset:
    """Return the dataset that a JSON answer holds; lengths of dimensions count, for an empty list has lost its own."""

    def variable(one: Mapping[str, Any]) -> xr.Variable:
        shape = [content["dims"][dim] for dim in one["dims"]]
        return xr.Variable(one["dims"], decode_array(one["data"]).reshape(shape), one["attrs"])

    variables = {name: variable(one) for name, one in content["data_vars"].items()}
    coords = {name: variable(one) for name, one in content["coords"].items()}
    return xr.Dataset(variables, coords, dict(content["attrs"]))


def decode_curve(item: Mapping[str, Any]) -> Curve:
    """Return the curve that an item of an answer is."""
    return Curve(
        statistic=item["statistic"],
        of={dim: item[dim] for dim in ("contrast", "set", "site", "position") if dim in item},
        n=item["n"],
        units=item["units"],
        description=item["description"],
        layer=item["layer"],
        depth=item["depth"],
        value=[decode_number(value) for value in item["value"]],
        low=None if item["low"] is None else [decode_number(value) for value in item["low"]],
        high=None if item["high"] is None else [decode_number(value) for value in item["high"]],
    )


def curves_dataset(curves: Sequence[Curve]) -> xr.Dataset:
    """Return one statistic's curves as arrays: they come as the product of their labels, in order."""
    first = curves[0]
    labels = {dim: list(dict.fromkeys(curve.of[dim] for curve in curves)) for dim in first.of}
    shape = [len(of_dim) for of_dim in labels.values()]
    dims = [*labels, "layer"]

    def along_layers(name: str) -> NDArray[np.float64]:
        return np.array([getattr(curve, name) for curve in curves], dtype=np.float64).reshape(*shape, -1)

    said = {"value": first.description}
    if first.low is not None:
        said |= {"low": "Lower end of the 95 % interval.", "high": "Upper end of the 95 % interval."}
    variables = {
        name: xr.Variable(dims, along_layers(name), {"units": first.units, "description": text})
        for name, text in said.items()
    }
    in_place = {dim: 0 for dim in labels if dim != "site"}
    depth = xr.Variable(dims, along_layers("depth").astype(np.int64)).isel(in_place)
    coords: dict[str, Any] = {**labels, "layer": first.layer, "depth": depth}
    for name in first.n:
        counts = xr.Variable(dims[:-1], np.reshape([curve.n[name] for curve in curves], shape))
        coords[name] = counts.isel(site=0) if "site" in labels else counts
    return xr.Dataset(variables, coords, {"statistic": first.statistic})
