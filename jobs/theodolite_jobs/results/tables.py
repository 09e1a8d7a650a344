"""Result groups of activations as flat tables, and the table of growth along the stream."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from theodolite.sites import Site, depth
from theodolite_jobs.statistics.travel_growth import growth_fits

_LONG = ("d_model", "layer_other")
_LABELS = ("contrast", "set", "site", "norm")

_GROWING = {"norm_mean": "moments", "variance_mean": "curves", "variance_max": "curves"}
"""What is fitted, and which group it is of."""


def flat_table(group: xr.Dataset) -> pd.DataFrame:
    """Return a group as a table: a row for each statistic and each label of its dimensions.

    Statistics of single features or of pairs of layers are left out. Where there are sites and layers, `depth` counts
    half blocks along the stream. A dimension that a statistic does not have is empty, a layer −1.
    """
    parts = []
    for name, variable in group.data_vars.items():
        if "position" not in variable.dims or any(dim in _LONG for dim in variable.dims):
            continue
        frame = variable.reset_coords(drop=True).to_dataframe(name="value").reset_index()
        frame.insert(0, "statistic", str(name))
        parts.append(frame.astype({"value": "float64"}))
    table = pd.concat(parts, ignore_index=True)
    dims = [str(dim) for dim in group.dims if dim not in _LONG]
    table = table.reindex(columns=["statistic", *sorted(dims, key=_order), "value"])
    for dim in dims:
        if dim in _LABELS:
            table[dim] = table[dim].astype(object).where(table[dim].notna(), "")
        else:
            table[dim] = table[dim].fillna(-1).astype("int64")
    table["statistic"] = table["statistic"].astype(object)
    if {"site", "layer"} <= set(dims):
        places = zip(table["site"], table["layer"], strict=True)
        table["depth"] = [depth(Site(site), layer) if site else -1 for site, layer in places]
    return table


def _order(dim: str) -> int:
    """Return where a column stands: labels first, then position and layer."""
    return [*_LABELS, "position", "layer"].index(dim)


def growth_table(moments: xr.Dataset, curves: xr.Dataset) -> pd.DataFrame:
    """Return both laws fitted to norms and variances along depth: a row for each quantity, set, site, position and law.

    Depth is in blocks: what enters block l is at l, what is between its attention and MLP at l + ½.

    Args:
        moments: the result group.
        curves: the result group.
    """
    groups = {"moments": moments, "curves": curves}
    rows = [row for name, group in _GROWING.items() for row in _fits(name, groups[group][name])]
    columns = ["quantity", "set", "site", "position", "law", "intercept", "slope", "r_squared", "aic", "n"]
    return pd.DataFrame(rows, columns=columns).astype({"n": "int64", "position": "int64"})


def _fits(name: str, values: xr.DataArray) -> Iterator[dict[str, Any]]:
    for (of_set, site, position), curve in values.stack(curve=("set", "site", "position")).groupby("curve"):
        along = np.array([depth(Site(site), layer) / 2 for layer in values["layer"].values.tolist()])
        for fit in growth_fits(along, curve.values.reshape(-1).astype(np.float64)):
            yield {"quantity": name, "set": of_set, "site": site, "position": int(position), **asdict(fit)}
