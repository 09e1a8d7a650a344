"""Curves of a finished run, along depth."""

import numpy as np
import xarray as xr

from theodolite.sites import Site, depth


def along_depth(values: xr.DataArray) -> xr.DataArray:
    """Return a (site, layer) statistic as one curve over `depth`, in the order of the stream.

    Args:
        values: one statistic of one set or contrast at one position.
    """
    stacked = values.stack(point=("site", "layer"))
    depths = [
        depth(Site(site), layer) for site, layer in zip(stacked["site"].values, stacked["layer"].values, strict=True)
    ]
    order = np.argsort(depths, kind="stable")
    return xr.DataArray(
        stacked.values[order], dims=("depth",), coords={"depth": np.asarray(depths)[order]}, name=values.name
    )
