"""Curves of a finished run, along depth."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from theodolite.errors import SpecError
from theodolite.groups import GROUPS, Variable
from theodolite.sites import Site, depth
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_ALONG_DEPTH = {"set", "contrast", "site", "position", "layer"}


def is_along_depth(variable: Variable) -> bool:
    """Return whether a statistic is a curve along depth: one number for each layer of a set or contrast."""
    return "layer" in variable.dims and set(variable.dims) <= _ALONG_DEPTH


STATISTICS = {
    variable.name: name for name, group in GROUPS.items() for variable in group.variables if is_along_depth(variable)
}
"""Every statistic that is a curve along depth, with the result group that holds it."""

INTERVALS = {
    variable.name: variable.interval for group in GROUPS.values() for variable in group.variables if variable.interval
}
"""How the names of the ends of a statistic's 95 % interval begin."""

_FILTERS = ("set", "contrast", "site", "position")


@dataclass(frozen=True)
class Curve:
    """One statistic of one set or contrast along the layers, at one site and position.

    Attributes:
        statistic: one of `STATISTICS`.
        of: its other dimensions: `set` or `contrast`, `site` but of a statistic of whole blocks, and `position`.
        n: prompts that it rests on, by set.
        units: of the values.
        description: one sentence.
        layer: 0-based blocks.
        depth: the place of each along the stream, in half-blocks: 0-pre is 0, 0-mid is 1.
        value: NaN where it is not known.
        low: lower end of the 95 % interval; None where the statistic has none.
        high: upper end.
    """

    statistic: str
    of: dict[str, Any]
    n: dict[str, int]
    units: str
    description: str
    layer: list[int]
    depth: list[int]
    value: list[float]
    low: list[float] | None
    high: list[float] | None


def select_curves(
    run: Run, statistics: Sequence[str] = (), only: Mapping[str, Sequence[Any]] | None = None
) -> list[Curve]:
    """Return curves in the order of their names; a statistic that lacks a dimension of `only` is left out.

    Args:
        run: a complete run.
        statistics: names; none are all of the group `curves`.
        only: which labels are wanted, by `set`, `contrast`, `site` and `position`; what it lacks is not narrowed.

    Raises:
        SpecError: there is no such statistic or label; the message says which there are.
        RunDamagedError: the run lacks the group that holds the statistic, or it cannot be read.
    """
    chosen = list(dict.fromkeys(statistics)) or [name for name, group in STATISTICS.items() if group == "curves"]
    unknown = [name for name in chosen if name not in STATISTICS]
    if unknown:
        raise SpecError(
            f"statistic: given {unknown[0]!r}, which is no curve along depth; allowed: {', '.join(STATISTICS)}"
        )
    wanted = {dim: list(dict.fromkeys(labels)) for dim, labels in (only or {}).items() if labels}
    groups = {name: read_group(run, name) for name in dict.fromkeys(STATISTICS[name] for name in chosen)}
    _check_labels(run, list(groups.values()), wanted)
    found = [curve for name in chosen for curve in _curves(groups[STATISTICS[name]], name, wanted)]
    if wanted and not found:
        raise SpecError(
            f"{', '.join(wanted)}: none of the statistics asked for has {' and '.join(wanted)}; leave one out"
        )
    return found


def curve_frame(curves: Sequence[Curve]) -> pd.DataFrame:
    """Return curves as one flat table, a row for each point."""
    columns = ("layer", "depth", "value", "low", "high")
    frames = [
        pd.DataFrame(
            {
                "statistic": curve.statistic,
                **{dim: curve.of.get(dim, "") for dim in _FILTERS},
                **{name: np.nan if getattr(curve, name) is None else getattr(curve, name) for name in columns},
            }
        )
        for curve in curves
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["statistic", *_FILTERS, *columns])


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


def _check_labels(run: Run, groups: Sequence[xr.Dataset], wanted: Mapping[str, Sequence[Any]]) -> None:
    for dim, labels in wanted.items():
        known = [group.variables[dim].values.tolist() for group in groups if dim in group.variables]
        there = list(dict.fromkeys(label for labels_of_group in known for label in labels_of_group))
        missing = [label for label in labels if label not in there]
        if known and missing:  # where no statistic has the dimension, there will be no curve, which says so
            raise SpecError(f"{dim}: {run.id} has no {missing[0]!r}; it has: {', '.join(map(str, there)) or 'none'}")


def _curves(group: xr.Dataset, statistic: str, wanted: Mapping[str, Sequence[Any]]) -> Iterator[Curve]:
    # Arrays are indexed by hand: selecting by label takes a millisecond, and a service answers in less.
    values = group.variables[statistic]
    if not set(wanted) <= set(values.dims):
        return
    interval = INTERVALS.get(statistic)
    ends = [group.variables[f"{interval}_{end}"].values if interval else None for end in ("low", "high")]
    dims = [dim for dim in values.dims if dim != "layer"]
    labels = {dim: group.variables[dim].values.tolist() for dim in (*dims, "layer")}
    for chosen in product(*(wanted.get(str(dim), labels[dim]) for dim in dims)):
        of = {str(dim): label for dim, label in zip(dims, chosen, strict=True)}
        if any(label not in labels[dim] for dim, label in of.items()):
            continue
        at = tuple(slice(None) if dim == "layer" else labels[dim].index(of[str(dim)]) for dim in values.dims)
        site = Site(of["site"]) if "site" in of else Site.RESID_PRE  # whole blocks stand where they begin
        low, high = (None if end is None else end[at].tolist() for end in ends)
        yield Curve(
            statistic=statistic,
            of=of,
            n=_counts(group, of),
            units=values.attrs["units"],
            description=values.attrs["description"],
            layer=labels["layer"],
            depth=[depth(site, layer) for layer in labels["layer"]],
            value=values.values[at].tolist(),
            low=low,
            high=high,
        )


def _counts(group: xr.Dataset, of: Mapping[str, Any]) -> dict[str, int]:
    """Return how many prompts a curve rests on."""
    names = {"contrast": ("n_positive", "n_negative"), "set": ("n_samples", "count")}
    of_what = "contrast" if "contrast" in of else "set"
    found = {}
    for name in names[of_what]:
        if name in group.variables and group.variables[name].dims == (of_what, "position"):
            at = tuple(group.variables[dim].values.tolist().index(of[dim]) for dim in (of_what, "position"))
            found[name] = int(group.variables[name].values[at])
    return found
