"""Any result group of a finished run, narrowed by labels; and a contrast's direction."""

from collections.abc import Mapping, Sequence
from typing import Any

import xarray as xr

from theodolite.errors import SpecError
from theodolite.groups import GROUPS
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

NUMBERS = 250_000
"""Numbers in one answer, at most: some 5 MB of JSON."""


def select_group(
    run: Run, name: str, statistics: Sequence[str] = (), only: Mapping[str, Sequence[Any]] | None = None
) -> xr.Dataset:
    """Return a result group, or some of its variables at some labels of its dimensions.

    Args:
        run: a complete run.
        name: the group.
        statistics: names of variables; none are all.
        only: the labels that are wanted of dimensions that the group has, and no others.

    Raises:
        SpecError: there is no such variable or label, or the answer would hold more than NUMBERS.
        RunDamagedError: the run lacks the group, or it cannot be read.
    """
    group = read_group(run, name)
    unknown = [statistic for statistic in statistics if statistic not in group.data_vars]
    if unknown:
        raise SpecError(f"statistic: {name} has no {unknown[0]!r}; it has: {', '.join(map(str, group.data_vars))}")
    chosen = group[list(statistics)] if statistics else group
    for dim, labels in (only or {}).items():
        if labels:
            chosen = chosen.sel({dim: _known(run, chosen, name, dim, labels)})
    numbers = sum(variable.size for variable in chosen.data_vars.values())
    if numbers > NUMBERS:
        raise SpecError(
            f"{name}: this answer would hold {numbers} numbers, and {NUMBERS} are allowed; narrow it by statistic, "
            f"{', '.join(map(str, chosen.dims))}, or open the store with xarray"
        )
    return chosen


def is_flat(name: str, statistics: Sequence[str] = ()) -> bool:
    """Return whether variables of a group, all where none are named, have the same dimensions, as one table."""
    shapes = {variable.dims for variable in GROUPS[name].variables if not statistics or variable.name in statistics}
    return len(shapes) < 2 and shapes != {()}  # none: the one that is named is not there, which asking for it says


def select_direction(run: Run, contrast: str, site: str, layer: int, position: int | None = None) -> xr.DataArray:
    """Return the unit vector from a contrast's negative to its positive mean, (d_model).

    Args:
        run: a complete run.
        contrast: its name.
        site: a site of the blocks.
        layer: a 0-based block.
        position: None is the last one measured.

    Raises:
        SpecError: there is no such contrast, site, layer or position, or no direction there: the means are equal.
        RunDamagedError: the group cannot be read.
    """
    directions = read_group(run, "directions")
    if position is None and contrast in directions["contrast"].values:
        # A vector is known or not as a whole, so its first number tells.
        position = max(measured_positions(directions["direction"].sel(contrast=contrast).isel(d_model=0)))
    asked: dict[str, Any] = {"contrast": contrast, "site": site, "layer": layer, "position": position}
    for dim, label in asked.items():
        _known(run, directions, "directions", dim, [label])
    found: xr.DataArray = directions["direction"].sel(asked)
    if not found.notnull().all():
        raise SpecError(
            f"{contrast} has no direction at {site} of layer {layer}: the means of its sets are equal there"
        )
    return found


def measured_positions(values: xr.DataArray) -> list[int]:
    """Return the positions at which anything was measured; all of them where nothing was."""
    others = [dim for dim in values.dims if dim != "position"]
    measured: list[int] = values["position"].values[values.notnull().any(others).values].tolist()
    return measured or values["position"].values.tolist()


def _known(run: Run, group: xr.Dataset, name: str, dim: str, labels: Sequence[Any]) -> list[Any]:
    if dim not in group.dims:
        raise SpecError(f"{dim}: {name} has no such dimension; leave it out. It has: {', '.join(map(str, group.dims))}")
    there = group[dim].values.tolist()
    missing = [label for label in labels if label not in there]
    if missing:
        raise SpecError(f"{dim}: {run.id} has no {missing[0]!r}; it has {said(there)}")
    return list(labels)


def said(labels: Sequence[Any]) -> str:
    """Return labels in words: `0 to 29` where they are whole numbers in a row."""
    whole = all(isinstance(label, int) for label in labels) and list(labels) == list(
        range(labels[0], labels[0] + len(labels)) if labels else []
    )
    return f"{labels[0]} to {labels[-1]}" if whole and len(labels) > 2 else ", ".join(map(str, labels)) or "none"
