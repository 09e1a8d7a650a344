"""Select from the analysis `effects`: changes towards the other set, their tests, and where they pass."""

from typing import Any

import numpy as np
import xarray as xr

from theodolite.groups.effects.record import ADD
from theodolite.groups.schema import INTERVAL, LEVEL
from theodolite.query.curves import onset
from theodolite.sites import Site, depth


def towards_other(effects: xr.Dataset, name: str = "effect") -> xr.Dataset:
    """Return a change of the log-odds and its interval with the sign that is positive towards the other set.

    The variables are `value`, `low` and `high`; NaN where the contrast predicts no sign.
    """
    sign = effects["expected_sign"]
    change = effects[name].sel(measure="log_odds", drop=True)
    value, one, other = (sign * change.sel(estimate=end, drop=True) for end in INTERVAL)
    return xr.Dataset({"value": value, "low": np.minimum(one, other), "high": np.maximum(one, other)})


def strictest(effects: xr.Dataset, measure: str, intervention: str, part: str) -> xr.DataArray:
    """Return the larger p, or the smaller z, of an intervention over the kinds of controls that are tested.

    NaN where none is tested.

    Args:
        effects: the results.
        measure: `log_odds` or `kl`.
        intervention: `remove` or `add`.
        part: `z`, `p` or `p_family`.
    """
    of_controls = effects["effect_null"].sel(measure=measure, intervention=intervention, null=part, drop=True)
    return of_controls.min("control") if part == "z" else of_controls.max("control")


def moves_both(effects: xr.Dataset) -> xr.DataArray:
    """Return where an added difference moves the log-odds of both sets towards the other set, (site, layer).

    The whole intervals lie above 0.
    """
    return (towards_other(effects.sel(intervention=ADD))["low"] > 0).all("prompt_side")


def exceeds_controls(effects: xr.Dataset) -> xr.DataArray:
    """Return where an added difference moves the log-odds of both sets farther than all controls, (site, layer).

    It moves them towards the other set, as `moves_both` says, and is compared with one kind of controls or both.
    """
    return moves_both(effects) & (strictest(effects, "log_odds", ADD, "p_family") <= LEVEL).all("prompt_side")


def changes_more(effects: xr.Dataset) -> xr.DataArray:
    """Return where an added difference changes the next token of both sets more than all controls, (site, layer).

    By KL divergence, which has no direction.
    """
    return (strictest(effects, "kl", ADD, "p_family") <= LEVEL).all("prompt_side")


def control_kinds(effects: xr.Dataset, measure: str) -> xr.DataArray:
    """Return how many kinds of controls an added difference is compared with for both sets, (site, layer)."""
    p = effects["effect_null"].sel(measure=measure, intervention=ADD, null="p_family", drop=True)
    return p.notnull().all("prompt_side").sum("control")


def largest(values: xr.DataArray) -> dict[str, Any]:
    """Return the labels of the largest value of an array, by dimension; the first ones if there is none."""
    flat = values.values
    index = np.unravel_index(int(np.nanargmax(flat)) if np.isfinite(flat).any() else 0, flat.shape)
    return {str(dim): values[dim].values.tolist()[at] for dim, at in zip(values.dims, index, strict=True)}


def places(values: xr.DataArray | xr.Dataset) -> list[dict[str, Any]]:
    """Return the site and the layer of each place along depth."""
    found = [
        {"site": site, "layer": layer}
        for site in values["site"].values.tolist()
        for layer in values["layer"].values.tolist()
    ]
    return sorted(found, key=lambda place: depth(Site(place["site"]), place["layer"]))


def first_place(is_wanted: xr.DataArray) -> dict[str, Any] | None:
    """Return the first place along depth where an array (site, layer) is true; None if it is false everywhere."""
    return next((place for place in places(is_wanted) if bool(is_wanted.sel(place))), None)


def onset_place(is_wanted: xr.DataArray, is_known: xr.DataArray | None = None) -> dict[str, Any] | None:
    """Return the first place along depth from which on an array (site, layer) is true; None if the last is false.

    Places that are not known are passed over.
    """
    known = [place for place in places(is_wanted) if is_known is None or bool(is_known.sel(place))]
    first = onset([bool(is_wanted.sel(place)) for place in known])
    return None if first is None else known[first]


def from_on(place: dict[str, Any], values: xr.DataArray) -> xr.DataArray:
    """Return which places of an array (site, layer) are a place or come after it along depth."""
    at = [[depth(Site(site), layer) for layer in values["layer"].values] for site in values["site"].values]
    start = depth(Site(place["site"]), place["layer"])
    return xr.DataArray(np.array(at) >= start, {"site": values["site"], "layer": values["layer"]}, ("site", "layer"))


def rank_correlation(one: xr.DataArray, other: xr.DataArray) -> float:
    """Return Spearman's correlation of two arrays (site, layer) over their common places; NaN for fewer than three."""
    one, other = xr.align(one, other, join="inner")
    known = np.isfinite(one.values) & np.isfinite(other.transpose(*one.dims).values)
    pair = [values.transpose(*one.dims).where(known).to_series().dropna().rank() for values in (one, other)]
    varies = all(ranks.nunique() > 1 for ranks in pair)
    return float(pair[0].corr(pair[1])) if len(pair[0]) > 2 and varies else float("nan")
