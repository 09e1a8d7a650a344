"""Select from the result group `effects`: the stricter kind of controls, and the first or largest effect."""

from typing import Any

import numpy as np
import xarray as xr

from theodolite.groups.effects import CONTROLS_OF
from theodolite.sites import Site, depth


def strictest(effects: xr.Dataset, intervention: str, part: str) -> xr.DataArray:
    """Return the larger p, or the smaller z, of an intervention's KL divergence over both kinds of its controls.

    Args:
        effects: the result group.
        intervention: `remove` or `add`.
        part: `z`, `p` or `p_family`.
    """
    of_controls = effects[f"kl_{part}"].sel(intervention=intervention, control=list(CONTROLS_OF[intervention]))
    return of_controls.min("control", skipna=False) if part == "z" else of_controls.max("control", skipna=False)


def largest(values: xr.DataArray) -> dict[str, Any]:
    """Return the labels of the largest value of an array, by dimension; the first ones if there is none."""
    flat = values.values
    index = np.unravel_index(int(np.nanargmax(flat)) if np.isfinite(flat).any() else 0, flat.shape)
    return {str(dim): values[dim].values.tolist()[at] for dim, at in zip(values.dims, index, strict=True)}


def first_place(is_wanted: xr.DataArray) -> dict[str, Any] | None:
    """Return the site and the layer of the first true value along depth, from (site, layer); None if all are false."""
    places = [
        {"site": site, "layer": layer}
        for site in is_wanted["site"].values.tolist()
        for layer in is_wanted["layer"].values.tolist()
        if bool(is_wanted.sel(site=site, layer=layer))
    ]
    return min(places, key=lambda place: depth(Site(place["site"]), place["layer"]), default=None)
