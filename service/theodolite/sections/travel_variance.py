"""Sentence and table about the variance that attention and the MLP add to the stream."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import xarray as xr

from theodolite.sections.parts import Table, listed, percent

_BRANCHES = {"attn": "attention", "mlp": "the MLP"}


def variance_facts(travel: xr.Dataset, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence about all sets, at one position: where the growth of their variance comes from."""
    growths = {label: growth for name, label in labels.items() if (growth := _growth(travel.sel(set=name)))}
    texts = {
        label: f"{growth.course} ({percent(sum(growth.steps.values()), 0)} from the variance of the steps of "
        f"{' and '.join(growth.steps)}, {_covariances(growth)}; block {growth.block} alone gives "
        f"{percent(growth.last_block, 0)}; n = {growth.n})"
        for label, growth in growths.items()
    }
    if texts:
        yield (
            "Growth of the total variance over prompts up to its maximum, and the parts of this growth: "
            f"{listed(texts)}."
        )


def variance_finding(travel: xr.Dataset, labels: Mapping[str, str]) -> str:
    """Return where the variance of the first set with a known growth comes from, at one position."""
    for name, label in labels.items():
        if growth := _growth(travel.sel(set=name)):
            covariances = ", and ".join(
                f"{percent(share, 0)} is twice the covariance of the steps of {branch} with the stream"
                for branch, share in growth.covariances.items()
            )
            return (
                f"The variance over {label} prompts, summed over all features, grows {growth.course}. Of this growth, "
                f"{percent(sum(growth.steps.values()), 0)} is variance of the steps of {' and '.join(growth.steps)}; "
                f"{covariances}. Block {growth.block} alone gives {percent(growth.last_block, 0)} (n = {growth.n})."
            )
    return ""


def _covariances(growth: "_Growth") -> str:
    """Return the terms 2·Cov(step, stream) of all branches, which can have different signs."""
    return " and ".join(
        f"{percent(share, 0)} from 2·Cov(step of {name}, stream)" for name, share in growth.covariances.items()
    )


def variance_table(travel: xr.Dataset, labels: Mapping[str, str]) -> Table | None:
    """Return the parts of the growth by branch; None if no set has parts of attention and the MLP."""
    rows = []
    for name, label in labels.items():
        growth = _growth(travel.sel(set=name))
        if growth and len(growth.steps) > 1:
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


def _growth(values: xr.Dataset) -> _Growth | None:
    """Return the parts of the growth of one set's variance; None if it does not grow, or if a part is unknown."""
    before, after = values["variance_pre"], values["variance_post"]
    is_whole = np.isfinite(values["path_length"])  # the steps of some layers do not add up
    if not (is_whole and np.isfinite(after).all()):
        return None
    top = int(np.argmax(after.values))
    first, largest = float(before[0]), float(after[top])
    if not largest > first:
        return None
    until = values.isel(layer=slice(top + 1))
    branches = _BRANCHES if np.isfinite(values["variance_mid"]).all() else {"block": "the block"}

    def shares(part: str) -> dict[str, float]:
        return {name: float(until[f"{part}_{branch}"].sum()) / (largest - first) for branch, name in branches.items()}

    block = int(after["layer"][top])
    start = f"{first:.3g}" if first else "0 (all prompts have the same token)"
    course = f"from {start} to {largest:.3g} after layer {block}"
    last = float(after[top] - before[top]) / (largest - first)
    return _Growth(course, shares("variance_step"), shares("twice_covariance"), block, last, int(values["n_samples"]))
