"""Sentence and table about the variance that attention and the MLP add to the stream."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr

from theodolite.groups.travel.record import POINTS
from theodolite.sections.parts import Table, listed, percent

_BRANCHES = {"attention": "attention", "mlp": "the MLP"}


def variance_facts(travel: xr.Dataset, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield sentences about all sets, at one position: the growth of their variance, and where it comes from."""
    growths = _growths(travel, labels)
    if growths:
        courses = {label: f"{growth.course} (n = {growth.n})" for label, growth in growths.items()}
        yield f"Total variance over prompts, from the first input to its maximum: {listed(courses)}."
        shares = {
            label: f"{_shares(growth)[0]}, and {_shares(growth)[-1]} in block {growth.block}"
            for label, growth in growths.items()
        }
        steps = " and ".join(next(iter(growths.values())).steps)
        yield (
            f"Share of this growth that is variance of the steps of {steps} (the rest is twice their covariance with "
            f"the stream), and share of the growth in the last block of this range, both without intervals: "
            f"{listed(shares)}."
        )


def variance_finding(travel: xr.Dataset, labels: Mapping[str, str]) -> str:
    """Return where the variance of the first set with a known growth comes from, and the same shares of the others."""
    growths = _growths(travel, labels)
    if not growths:
        return ""
    (label, growth), *others = growths.items()
    covariances = ", and ".join(
        f"{percent(share, 0)} is twice the covariance of the steps of {branch} with the stream"
        for branch, share in growth.covariances.items()
    )
    same = {other: f"{', '.join(_shares(of_other))} (n = {of_other.n})" for other, of_other in others}
    return (
        f"The variance over {label} prompts, summed over all features, grows {growth.course}. Of this growth, "
        f"{_shares(growth)[0]} is variance of the steps of {' and '.join(growth.steps)}; {covariances}. Block "
        f"{growth.block} alone gives {_shares(growth)[-1]} (n = {growth.n})."
        f"{f' The same shares of the other sets, in this order: {listed(same)}.' if same else ''} The shares "
        "have no intervals, so they cannot show whether sets differ."
    )


def variance_headline(values: xr.Dataset) -> str:
    """Return the share of one block in the growth of one set's variance; empty if it does not grow, or is unknown."""
    growth = _growth(values)
    return f"block {growth.block} gives {_shares(growth)[-1]} of the variance's growth" if growth else ""


def _shares(growth: "_Growth") -> list[str]:
    """Return the share of the steps' variance, of each covariance, and of the last block."""
    shares = (sum(growth.steps.values()), *growth.covariances.values(), growth.last_block)
    return [percent(share, 0) for share in shares]


def variance_table(travel: xr.Dataset, labels: Mapping[str, str]) -> Table | None:
    """Return the parts of the growth by branch; None if no set has parts of attention and the MLP."""
    rows = []
    for label, growth in _growths(travel, labels).items():
        if len(growth.steps) > 1:
            shares = (*growth.steps.values(), *growth.covariances.values(), growth.last_block)
            rows.append([label, growth.course, *(percent(share, 0) for share in shares)])
    columns = [f"{what} {name}" for what in ("variance,", "twice covariance,") for name in _BRANCHES.values()]
    caption = "Growth of the total variance: shares of the steps' variances and covariances with the stream"
    return Table(caption, ["set", "total variance", *columns, "last block"], rows) if rows else None


class _Growth(NamedTuple):
    """The growth of one set's variance up to the output of `block`; shares of it by name of the branch."""

    course: str
    steps: Mapping[str, float]
    covariances: Mapping[str, float]
    block: int
    last_block: float
    n: int


def _growths(travel: xr.Dataset, labels: Mapping[str, str]) -> dict[str, _Growth]:
    """Return the growth of each set that has one, by the set's label."""
    return {label: growth for name, label in labels.items() if (growth := _growth(travel.sel(set=name)))}


def _growth(values: xr.Dataset) -> _Growth | None:
    """Return the parts of the growth of one set's variance; None if it does not grow, or if a part is unknown."""
    before, middle, after = (values["variance"].sel(point=point) for point in POINTS)
    is_whole = np.isfinite(values["path_length"].sel(summary="mean"))  # the steps of some layers do not add up
    if not (is_whole and np.isfinite(after).all()):
        return None
    top = int(np.argmax(after.values))
    first, largest = float(before[0]), float(after[top])
    if not largest > first:
        return None
    until = values.isel(layer=slice(top + 1))
    branches = _BRANCHES if np.isfinite(middle).all() else {"block": "the block"}

    def shares(term: str) -> dict[str, float]:
        sums = {branch: float(until["variance_change"].sel(sublayer=branch, term=term).sum()) for branch in branches}
        return {name: sums[branch] / (largest - first) for branch, name in branches.items()}

    block = int(after["layer"][top])
    start = f"{first:.3g}" if first else "0 (all prompts have the same token)"
    course = f"from {start} to {largest:.3g} after layer {block}"
    last = float(after[top] - before[top]) / (largest - first)
    return _Growth(course, shares("step_variance"), shares("twice_covariance"), block, last, int(values["n_samples"]))
