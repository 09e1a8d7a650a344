"""The statistics along depth that models are compared by: stored curves, norm layers, and medians over heads."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from theodolite.groups import GROUPS, Group, Variable
from theodolite.groups.effects.record import INTERVENTIONS
from theodolite.groups.heads.record import CIRCUITS
from theodolite.groups.schema import ESTIMATE
from theodolite.query.curves import described_at, is_along_depth, name_at
from theodolite.sites import Site

_NORM_DIMS = ("set", "position", "norm")
_HEAD_DIMS = ("circuit", "offset", "layer", "head")

_INPUTS = {"attention": Site.RESID_PRE, "mlp": Site.RESID_MID}
"""The sites that norm layers read; other norm layers have no depth of their own."""


@dataclass(frozen=True)
class Profile:
    """A statistic with a value for each layer.

    Attributes:
        group: its analysis.
        variable: the stored variable that it is computed from.
        dims: its dimensions: `layer`, and some of `set`, `contrast`, `site` and `position`.
        description: one sentence.
        read: returns its values from the stored variable, with ESTIMATE if that has it.
    """

    group: str
    variable: str
    dims: tuple[str, ...]
    description: str
    read: Callable[[xr.DataArray], xr.DataArray] = field(default=lambda values: values, repr=False)


def _profiles(registered: Group, variable: Variable) -> Iterator[tuple[str, Profile]]:
    group, name, text = registered.name, variable.name, variable.description
    dims = tuple(dim for dim in variable.dims if dim not in registered.labels)
    if is_along_depth(registered, variable):
        for at in registered.places(variable.dims):
            yield name_at(name, at), Profile(group, name, dims, described_at(text, at), _at(at))
    elif dims == _NORM_DIMS:
        at_sites = ("set", "site", "position", "layer")
        for at in registered.places(variable.dims):
            yield name_at(name, at), Profile(group, name, at_sites, described_at(text, at), _at(at, _at_sites))
    elif variable.dims == _HEAD_DIMS:
        for circuit in CIRCUITS:
            sentence = f"Median over the heads of a layer, {circuit} circuit at offset 0. {text}"
            read = _at({"circuit": circuit, "offset": 0}, _over_heads)
            yield name_at(name, {"circuit": circuit}), Profile(group, name, ("layer",), sentence, read=read)
    elif (group, name) == ("effects", "effect"):  # the changes of the log-odds of the sides have opposite signs
        for intervention in INTERVENTIONS:
            sentence = f"Mean over both sides, intervention {intervention}. {text}"
            of_sides, at = ("contrast", "position", "site", "layer"), {"intervention": intervention, "measure": "kl"}
            yield name_at(name, at), Profile(group, name, of_sides, sentence, read=_at(at, _over_sides))
    elif dims == ("layer", "head"):
        sentence = f"Median over the heads of a layer. {text}"
        for at in registered.places(variable.dims):
            yield name_at(name, at), Profile(group, name, ("layer",), described_at(sentence, at), _at(at, _over_heads))


def _at(
    labels: Mapping[str, Any], read: Callable[[xr.DataArray], xr.DataArray] = lambda values: values
) -> Callable[[xr.DataArray], xr.DataArray]:
    return lambda values: read(values.sel(labels, drop=True))


def _at_sites(values: xr.DataArray) -> xr.DataArray:
    """Return a statistic of norm layers, (…, norm), by the site and the layer of their input, (…, site, layer)."""
    others = [dim for dim in values.dims if dim != "norm"]
    columns = values.transpose(*others, "norm").values
    places = [label.partition(".")[::2] for label in values["norm"].values.tolist()]
    layers = sorted({int(layer) for layer, which in places if which in _INPUTS})
    profile = np.full((*columns.shape[:-1], len(_INPUTS), len(layers)), np.nan)
    for column, (layer, which) in enumerate(places):
        if which in _INPUTS:
            profile[..., list(_INPUTS).index(which), layers.index(int(layer))] = columns[..., column]
    labels = {dim: values[dim].values for dim in others if dim in values.coords}
    sites = [str(site) for site in _INPUTS.values()]
    return xr.DataArray(profile, {**labels, "site": sites, "layer": layers}, (*others, "site", "layer"))


def _over_sides(values: xr.DataArray) -> xr.DataArray:
    return values.sel({ESTIMATE: "value"}, drop=True).mean("prompt_side")


def _over_heads(values: xr.DataArray) -> xr.DataArray:
    return values.where(values >= 0 if values.dtype.kind == "i" else True).median("head")  # −1: a circuit of zeros


PROFILES = {
    name: profile
    for group in GROUPS.values()
    for variable in group.variables
    for name, profile in _profiles(group, variable)
}
"""Every statistic that can be compared along depth, by name."""
