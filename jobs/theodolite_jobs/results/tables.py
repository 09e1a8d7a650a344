"""Result groups of activations as flat tables."""

from collections.abc import Hashable

import numpy as np
import pandas as pd
import xarray as xr

from theodolite.sites import Site, depth

_LONG = ("d_model", "layer_other", "norm_other", "n_prompts")
_ORDER = ("contrast", "set", "site", "norm", "position", "layer")


def flat_table(group: xr.Dataset) -> pd.DataFrame:
    """Return a group as a table with one row for each statistic and each combination of labels.

    The table leaves out statistics of single features, of pairs of layers or norm layers, and of other numbers of
    prompts. If the group has sites and layers, `depth` counts half blocks along the stream. In the column of a
    dimension that a statistic lacks, a label is an empty string, a whole number is −1, and another number is NaN.
    """
    labels: dict[tuple[Hashable, ...], pd.DataFrame] = {}  # by dimensions, since xarray takes 10 ms for each table
    parts = []
    for name, variable in group.data_vars.items():
        dims = variable.dims
        if "position" not in dims or any(dim in _LONG for dim in dims):
            continue
        if dims not in labels:
            labels[dims] = variable.reset_coords(drop=True).to_dataframe(name="value").reset_index()
        parts.append(labels[dims].assign(statistic=str(name), value=variable.values.ravel().astype(np.float64)))
    table = pd.concat(parts, ignore_index=True)
    columns = [str(dim) for dim in group.dims if dim not in _LONG]
    columns = [dim for dim in _ORDER if dim in columns] + sorted(set(columns) - set(_ORDER))
    table = table.reindex(columns=["statistic", *columns, "value"])
    for dim in columns:
        if group[dim].dtype.kind == "i":
            table[dim] = table[dim].fillna(-1).astype("int64")
        elif group[dim].dtype.kind == "f":
            table[dim] = table[dim].astype("float64")
        else:
            table[dim] = table[dim].astype(object).where(table[dim].notna(), "")
    table["statistic"] = table["statistic"].astype(object)
    if {"site", "layer"} <= set(columns):
        points = zip(table["site"], table["layer"], strict=True)
        table["depth"] = [depth(Site(site), layer) if site else -1 for site, layer in points]
    return table
