"""Select the results of an analysis of a finished run by labels, or a contrast's direction."""

from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr

from theodolite.errors import SpecError
from theodolite.groups import GROUPS
from theodolite.query.partial_sites import partial_site_notes
from theodolite.sites import Site, site_name
from theodolite.spec_parts import Label, same_labels
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

GROUP_LABELS = ("set", "contrast", "site", "position", "layer", "norm")
"""Dimensions by which the results of an analysis can be narrowed."""


def select_group(
    run: Run,
    name: str,
    statistics: Sequence[str] = (),
    only: Mapping[str, Sequence[Any]] | None = None,
) -> xr.Dataset:
    """Return the results of an analysis, or some of their variables at some labels; callers must not change it.

    Args:
        run: a complete run.
        name: the group.
        statistics: names of variables; none selects all.
        only: the requested labels, by dimension; the group must have each dimension.

    Raises:
        SpecError: there is no such variable or label.
        ResultsNotFoundError: the run lacks the group.
        RunDamagedError: the group cannot be read.
    """
    existing = [variable.name for variable in GROUPS[name].variables if not variable.by_layer]
    unknown = [statistic for statistic in statistics if statistic not in existing]
    if unknown:
        raise SpecError(f"statistic: {name} has no {unknown[0]!r}; it has: {', '.join(existing)}")
    group = read_group(run, name, statistics or None)
    chosen = group[list(statistics)] if statistics else group
    for dim, labels in (only or {}).items():
        if labels:
            chosen = chosen.sel({dim: _known(run, chosen, name, dim, labels)})
    return chosen


def select_direction(run: Run, contrast: str, site: str, layer: int, position: Label | None = None) -> xr.DataArray:
    """Return the unit vector from a contrast's negative to its positive mean, (d_model); callers must not change it.

    Args:
        run: a complete run.
        contrast: name of the contrast.
        site: site in the block, such as `resid_pre`.
        layer: 0-based index of the block.
        position: token position from the end, or its name; None selects the last measured one.

    Raises:
        SpecError: there is no such contrast, site, layer or position, or there are no means at it that differ.
        RunDamagedError: the group cannot be read.
    """
    return select_directions(run, contrast, site, [layer], position).isel(layer=0)


def select_directions(
    run: Run, contrast: str, site: str, layers: Sequence[int] = (), position: Label | None = None
) -> xr.DataArray:
    """Return the unit vectors of several layers, (layer, d_model); no layers select all that have a direction.

    Raises as `select_direction` does.
    """
    directions = read_group(run, "directions", vectors=["direction"]).sel(space="raw", drop=True)
    if position is None and contrast in directions["contrast"].values:
        # A vector has all its numbers or none, so the first one decides.
        position = measured_positions(directions["direction"].sel(contrast=contrast).isel(d_model=0))[-1]
    given: dict[str, Any] = {"contrast": contrast, "site": site, "position": position}
    labels = {dim: _known(run, directions, "directions", dim, [label])[0] for dim, label in given.items()}
    site = labels["site"]
    vectors: xr.DataArray = directions["direction"].sel(labels)
    is_measured = vectors.notnull().all("d_model")
    if not layers:
        layers = [int(layer) for layer in vectors["layer"].values[is_measured.values]]
    _known(run, directions, "directions", "layer", layers)
    missing = [layer for layer in layers if not is_measured.sel(layer=layer)]
    if missing or not layers:
        where = f"layer {missing[0]}" if missing else "any layer"
        reason = "the means of its sets are equal there, or a set has no values at this position"
        if missing and not run.record.has_site(Site(site), missing[0]):
            reason = next(partial_site_notes(run.record, [Site(site)]))
        raise SpecError(f"{contrast} has no direction at {site} of {where}, position {position}: {reason}")
    return vectors.sel(layer=list(dict.fromkeys(layers)))


def measured_positions(values: xr.DataArray) -> list[Label]:
    """Return the positions, in their order, with at least one value that is not missing; all if there is none."""
    others = [dim for dim in values.dims if dim != "position"]
    measured: list[Label] = values["position"].values[values.notnull().any(others).values].tolist()
    return measured or values["position"].values.tolist()


def _known(run: Run, group: xr.Dataset, name: str, dim: str, labels: Sequence[Any]) -> list[Any]:
    if dim not in group.dims:
        raise SpecError(f"{dim}: {name} has no such dimension; leave it out. It has: {', '.join(map(str, group.dims))}")
    existing = group[dim].values.tolist()
    labels = [site_name(label) for label in labels] if dim == "site" else labels
    labels = same_labels(labels, existing) if dim == "position" else labels
    missing = [label for label in labels if label not in existing]
    if missing:
        raise SpecError(f"{dim}: {run.id} has no {missing[0]!r}; it has {label_list(existing)}")
    return list(labels)


def label_list(labels: Sequence[Any]) -> str:
    """Return labels as text: `0 to 29` for consecutive integers, else a list."""
    first = labels[0] if len(labels) > 2 else None
    is_range = isinstance(first, int) and list(labels) == list(range(first, first + len(labels)))
    return f"{labels[0]} to {labels[-1]}" if is_range else ", ".join(map(str, labels)) or "none"
