"""Select statistics of a finished run as curves along depth."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from theodolite.errors import SpecError, choices_text
from theodolite.groups import GROUPS, Group, Variable
from theodolite.groups.schema import BAND, ESTIMATE, SIDES
from theodolite.sites import Site, depth, site_name
from theodolite.spec_parts import same_labels
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_ENDS = {
    "low": "Lower end of the 95 % interval, for one depth.",
    "high": "Upper end of the 95 % interval, for one depth.",
    "band_low": "Lower end of the 95 % band, for all depths at once.",
    "band_high": "Upper end of the 95 % band, for all depths at once.",
}

CURVE_LABELS = ("set", "contrast", "site", "position")
"""Dimensions that label a curve and narrow a selection of curves."""


@dataclass(frozen=True)
class Statistic:
    """A curve along depth: an array of an analysis at one label of each of the analysis's own axes."""

    group: str
    variable: Variable
    at: Mapping[str, Any]


def name_at(name: str, at: Mapping[str, Any]) -> str:
    """Return the name of an array at labels of axes, such as `r_squared@map=affine,sublayer=mlp`.

    The name leaves out `space=raw`.
    """
    return canonical_name(f"{name}@{','.join(f'{axis}={label}' for axis, label in at.items())}")


def canonical_name(name: str) -> str:
    """Return the name of a statistic with its labels in alphabetical order, and without `space=raw`."""
    array, _, given = name.partition("@")
    labels = sorted(label for label in given.split(",") if label and label != "space=raw")
    return f"{array}@{','.join(labels)}" if labels else array


def title_of(statistic: str) -> str:
    """Return the name of a statistic as titles write it, such as `r squared, map affine, sublayer mlp`."""
    plain = ", ".join(re.split("[@,]", statistic)).translate(str.maketrans("_=", "  "))
    return re.sub(r"\bauroc\b", "AUROC", plain)


def described_at(description: str, at: Mapping[str, Any]) -> str:
    """Return the description of an array at labels of axes."""
    return f"{description} At {', '.join(f'{axis}={label}' for axis, label in at.items())}." if at else description


def is_along_depth(group: Group, variable: Variable) -> bool:
    """Return whether an array has curves along depth: one number for each layer of a set or contrast."""
    return "layer" in variable.dims and set(variable.dims) <= {*CURVE_LABELS, *group.labels, "layer"}


STATISTICS = {
    name_at(variable.name, at): Statistic(name, variable, at)
    for name, group in GROUPS.items()
    for variable in group.variables
    if is_along_depth(group, variable)
    for at in group.places(variable.dims)
}
"""Every statistic that is a curve along depth, by its name with the labels of its axes."""


def onset(passed: Sequence[bool] | NDArray[np.bool_]) -> int | None:
    """Return the first index from which on all are true; None if the last is false, or if there is none."""
    failed = np.flatnonzero(~np.asarray(passed, dtype=bool))
    first = int(failed[-1]) + 1 if len(failed) else 0
    return first if first < len(passed) else None


@dataclass(frozen=True)
class Curve:
    """One statistic of one set or contrast along the layers, at one site and position.

    Attributes:
        statistic: one of `STATISTICS`.
        of: its labels: `set` or `contrast`, `site` except for a statistic of whole blocks, and `position`.
        n: number of prompts, by the name of the count in the analysis.
        units: units of the values.
        description: one sentence about the statistic.
        layer: 0-based blocks.
        depth: depth of each layer in the stream, in half-blocks: 0-pre is 0, 0-mid is 1.
        value: the statistic at each layer; NaN for a missing value.
        low: lower end of the 95 % interval of one depth; None if the statistic has no interval.
        high: upper end.
        band_low: lower end of the simultaneous 95 % band, which holds at all depths at once and so also at a depth that
            was chosen for its value; None if the statistic has no band.
        band_high: upper end.
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
    band_low: list[float] | None = None
    band_high: list[float] | None = None


def select_curves(
    run: Run, statistics: Sequence[str] = (), only: Mapping[str, Sequence[Any]] | None = None
) -> list[Curve]:
    """Return curves in the order of the requested statistics; a statistic without a dimension of `only` is left out.

    Args:
        run: a complete run.
        statistics: names; none selects all of the analysis `curves`.
        only: the requested labels, by some of `set`, `contrast`, `site` and `position`.

    Raises:
        SpecError: there is no such statistic or label; the message lists those that exist.
        ResultsNotFoundError: the run lacks the group of the statistic.
        RunDamagedError: the group cannot be read.
    """
    chosen = list(dict.fromkeys(map(canonical_name, statistics))) or [
        name for name, one in STATISTICS.items() if one.group == "curves"
    ]
    unknown = [name for name in chosen if name not in STATISTICS]
    if unknown:
        raise unknown_statistic(unknown[0], STATISTICS)
    wanted = {dim: list(dict.fromkeys(labels)) for dim, labels in (only or {}).items() if labels}
    if "site" in wanted:
        wanted["site"] = list(dict.fromkeys(map(site_name, wanted["site"])))
    of_groups = dict.fromkeys(STATISTICS[name].group for name in chosen)
    groups = {name: read_group(run, name, vectors=()) for name in of_groups}
    if "position" in wanted:
        existing = (group["position"].values.tolist() for group in groups.values() if "position" in group)
        wanted["position"] = same_labels(wanted["position"], chain.from_iterable(existing))
    _check_labels(run, list(groups.values()), wanted)
    curves = [curve for name in chosen for curve in _curves(groups[STATISTICS[name].group], name, wanted)]
    if wanted and not curves:
        raise SpecError(
            f"{', '.join(wanted)}: none of the requested statistics has {' and '.join(wanted)}; leave one out"
        )
    return curves


def unknown_statistic(name: str, known: Collection[str]) -> SpecError:
    """Return the error for a name that is none of the known ones; it lists those of an array with other labels."""
    array = name.partition("@")[0]
    of_array = [one for one in known if one == array or one.startswith(f"{array}@")]
    choices = f"choose one of: {', '.join(of_array)}" if of_array else choices_text(name, known)
    return SpecError(f"statistic: given {name!r}, which is not a curve along depth; {choices}")


def curve_frame(curves: Sequence[Curve]) -> pd.DataFrame:
    """Return curves as one flat table, one row for each point."""
    columns = ("layer", "depth", *BAND)
    frames = [
        pd.DataFrame(
            {
                "statistic": curve.statistic,
                **{dim: curve.of.get(dim, "") for dim in CURVE_LABELS},
                **{name: np.nan if getattr(curve, name) is None else getattr(curve, name) for name in columns},
            }
        )
        for curve in curves
    ]
    empty = pd.DataFrame(columns=["statistic", *CURVE_LABELS, *columns])
    return pd.concat(frames or [empty], ignore_index=True)


def curve_dataset(curves: Sequence[Curve]) -> xr.Dataset:
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

    ends = {end: text for end, text in _ENDS.items() if getattr(first, end) is not None}
    descriptions = {"value": first.description, **ends}
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


def has_values(group: xr.Dataset, name: str, estimate: str = "value") -> bool:
    """Return whether there is such an array, with a finite value, or with a finite end of its interval or band."""
    return name in group and bool(np.isfinite(end_of(group[name], estimate)).any())


def end_of(values: xr.DataArray, estimate: str = "value") -> xr.DataArray:
    """Return the value of a statistic, or an end of its interval or band; the statistic itself without an interval."""
    return values.sel({ESTIMATE: estimate}, drop=True) if ESTIMATE in values.dims else values


def along_depth(values: xr.DataArray, estimate: str = "value") -> xr.DataArray:
    """Return a (site, layer) statistic of one set or contrast as one curve along `depth`, in ascending order.

    `estimate` selects the value or an end, if the statistic has an interval.
    """
    stacked = end_of(values, estimate).stack(point=("site", "layer")).transpose("point", ...)
    depths = [depth(Site(site), layer) for site, layer in stacked["point"].values]
    order = np.argsort(depths, kind="stable")
    others = {dim: stacked[dim].values for dim in stacked.dims[1:]}
    return xr.DataArray(stacked.values[order], {"depth": np.asarray(depths)[order], **others}, name=values.name)


def _check_labels(run: Run, groups: Sequence[xr.Dataset], wanted: Mapping[str, Sequence[Any]]) -> None:
    for dim, labels in wanted.items():
        known = [group.variables[dim].values.tolist() for group in groups if dim in group.variables]
        existing = list(dict.fromkeys(chain.from_iterable(known)))
        missing = [label for label in labels if label not in existing]
        if known and missing:  # if no group has the dimension, there is no curve, and the caller raises
            raise SpecError(f"{dim}: {run.id} has no {missing[0]!r}; it has: {', '.join(map(str, existing)) or 'none'}")


def _curves(group: xr.Dataset, statistic: str, wanted: Mapping[str, Sequence[Any]]) -> Iterator[Curve]:
    # NumPy indexing instead of xarray's selection by label, which takes a millisecond for each curve.
    one = STATISTICS[statistic]
    stored = group.variables[one.variable.name]
    values = stored.isel({axis: group.variables[axis].values.tolist().index(label) for axis, label in one.at.items()})
    if not set(wanted) <= set(values.dims):
        return
    limits: dict[str, NDArray[np.float64]] = {}
    if ESTIMATE in values.dims:
        estimates = group.variables[ESTIMATE].values.tolist()
        limits = {end: values.isel({ESTIMATE: estimates.index(end)}).values for end in _ENDS if end in estimates}
        values = values.isel({ESTIMATE: estimates.index("value")})
    dims = [dim for dim in values.dims if dim != "layer"]
    labels = {dim: group.variables[dim].values.tolist() for dim in (*dims, "layer")}
    for chosen in product(*(wanted.get(str(dim), labels[dim]) for dim in dims)):
        of = {str(dim): label for dim, label in zip(dims, chosen, strict=True)}
        if any(label not in labels[dim] for dim, label in of.items()):
            continue
        at = tuple(slice(None) if dim == "layer" else labels[dim].index(of[str(dim)]) for dim in values.dims)
        site = Site(of["site"]) if "site" in of else Site.RESID_PRE  # a whole block has the depth of its input
        yield Curve(
            statistic=statistic,
            of=of,
            n=_counts(group, of),
            units=stored.attrs["units"],
            description=described_at(stored.attrs["description"], one.at),
            layer=labels["layer"],
            depth=[depth(site, layer) for layer in labels["layer"]],
            value=values.values[at].tolist(),
            **{end: limits[end][at].tolist() if end in limits else None for end in _ENDS},
        )


def _counts(group: xr.Dataset, of: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of prompts behind a curve, by the name of the count."""
    dim = "contrast" if "contrast" in of else "set"
    for name in ("n_used", "n_samples", "count"):
        if name in group.variables and group.variables[name].dims[:2] == (dim, "position"):
            at = tuple(group.variables[one].values.tolist().index(of[one]) for one in (dim, "position"))
            counts = group.variables[name].values[at]
            if name == "n_used":
                return {f"n_{side}": int(count) for side, count in zip(SIDES, counts, strict=True)}
            return {name: int(counts)}
    return {}
