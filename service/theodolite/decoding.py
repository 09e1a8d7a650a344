"""Decode the API's JSON responses into arrays and dataclasses; null becomes NaN."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from theodolite.query.curves import CURVE_FIELDS, CURVE_LABELS, Curve
from theodolite.query.heads import TOKEN_COLUMNS, Head


def decode_array(data: Any) -> NDArray[Any]:
    """Return an array; null becomes NaN."""
    values = np.array(data)
    return values.astype(np.float64) if values.dtype == object or not values.size else values


def decode_dataset(content: Mapping[str, Any]) -> xr.Dataset:
    """Return the dataset of a response; `dims` gives the shapes, since an empty JSON list has none."""

    def variable(one: Mapping[str, Any]) -> xr.Variable:
        shape = [content["dims"][dim] for dim in one["dims"]]
        return xr.Variable(one["dims"], decode_array(one["data"]).reshape(shape), one["attrs"])

    variables = {name: variable(one) for name, one in content["data_vars"].items()}
    coords = {name: variable(one) for name, one in content["coords"].items()}
    return xr.Dataset(variables, coords, dict(content["attrs"]))


def decode_runs(items: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return short descriptions of runs as a table, one row each."""
    columns = ["run_id", "name", "tags", "model", "sets", "contrasts", "analyses", "state", "created"]
    frame = pd.DataFrame(items, columns=columns)
    return frame.assign(created=pd.to_datetime(frame["created"], utc=True))


def decode_curve(item: Mapping[str, Any]) -> Curve:
    """Return the curve of one item of a response."""
    content = {name: item[name] for name in CURVE_FIELDS if name != "of"}
    content["of"] = {dim: item[dim] for dim in CURVE_LABELS if dim in item}
    for name in ("value", "low", "high"):
        if item[name] is not None:
            content[name] = decode_array(item[name]).tolist()
    return Curve(**content)


def decode_head(content: Mapping[str, Any]) -> Head:
    """Return the head of a response."""
    numbers = {name: float(decode_array(content[name])) for name in ("effective_rank", "stable_rank", "copying_score")}
    return Head(
        name=content["name"],
        circuit=content["circuit"],
        offset=content["offset"],
        offsets=content["offsets"],
        singular_values=decode_array(content["singular_values"]),
        coverage_99=content["coverage_99"],
        tokens=pd.DataFrame(content["tokens"], columns=TOKEN_COLUMNS),
        **numbers,
    )


def curves_dataset(curves: Sequence[Curve]) -> xr.Dataset:
    """Return the curves of one statistic as a dataset.

    Args:
        curves: one curve for each combination of the labels, in the order of `itertools.product`.
    """
    first = curves[0]
    labels = {dim: list(dict.fromkeys(curve.of[dim] for curve in curves)) for dim in first.of}
    shape = [len(of_dim) for of_dim in labels.values()]
    dims = [*labels, "layer"]

    def along_layers(name: str) -> NDArray[np.float64]:
        return np.array([getattr(curve, name) for curve in curves], dtype=np.float64).reshape(*shape, -1)

    descriptions = {"value": first.description}
    if first.low is not None:
        descriptions |= {"low": "Lower end of the 95 % interval.", "high": "Upper end of the 95 % interval."}
    variables = {
        name: xr.Variable(dims, along_layers(name), {"units": first.units, "description": text})
        for name, text in descriptions.items()
    }
    first_of_others = {dim: 0 for dim in labels if dim != "site"}  # depth depends only on site and layer
    depth = xr.Variable(dims, along_layers("depth").astype(np.int64)).isel(first_of_others)
    coords: dict[str, Any] = {**labels, "layer": first.layer, "depth": depth}
    for name in first.n:
        counts = xr.Variable(dims[:-1], np.reshape([curve.n[name] for curve in curves], shape))
        coords[name] = counts.isel(site=0) if "site" in labels else counts
    return xr.Dataset(variables, coords, {"statistic": first.statistic})
