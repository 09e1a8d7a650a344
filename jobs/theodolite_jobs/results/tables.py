"""The arrays of an analysis as a flat table."""

from collections.abc import Hashable

import numpy as np
import pandas as pd
import xarray as xr

from theodolite.groups.schema import Table, is_flat
from theodolite.sites import Site, depth


def flat_table(group: xr.Dataset, table: Table) -> pd.DataFrame:
    """Return a group as a table with one row for each statistic that is flat and each combination of its labels.

    In the column of a dimension that a statistic lacks, a label is an empty string, a whole number is −1, and another
    number is NaN.
    """
    labels: dict[tuple[Hashable, ...], pd.DataFrame] = {}  # by dimensions, since xarray takes 10 ms for each table
    parts = []
    for name, variable in group.data_vars.items():
        dims = variable.dims
        if not is_flat(dims):
            continue
        if dims not in labels:
            labels[dims] = variable.reset_coords(drop=True).to_dataframe(name="value").reset_index()
        parts.append(labels[dims].assign(statistic=str(name), value=variable.values.ravel().astype(np.float64)))
    frame = pd.concat(parts, ignore_index=True)
    frame = frame.reindex(columns=[name for name in table.names if name != "depth"])
    for axis in set(frame) - {"statistic", "value"}:
        if group[axis].dtype.kind == "i":
            frame[axis] = frame[axis].fillna(-1).astype("int64")
        elif group[axis].dtype.kind == "f":
            frame[axis] = frame[axis].astype("float64")
        else:
            frame[axis] = frame[axis].astype(object).where(frame[axis].notna(), "")
    frame["statistic"] = frame["statistic"].astype(object)
    if "depth" in table.names:
        points = zip(frame["site"], frame["layer"], strict=True)
        frame["depth"] = [depth(Site(site), layer) if site else -1 for site, layer in points]
    return frame
