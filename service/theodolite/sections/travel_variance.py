"""Sentences about the variance that attention and the MLP add to the stream."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import xarray as xr

from theodolite.sections.parts import percent
from theodolite.sections.travel_steps import independent_bound

_BRANCHES = {"attn": ("attention", "pre"), "mlp": ("the MLP", "mid"), "block": ("the block", "pre")}
"""What makes each step, and where in the block the step starts."""


def variance_facts(travel: xr.Dataset, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield sentences about each set, at one position: where the growth of its variance comes from."""
    for name, label in labels.items():
        values = travel.sel(set=name)
        branches = ("attn", "mlp") if np.isfinite(values["variance_mid"]).all() else ("block",)
        is_whole = np.isfinite(values["path_length"])  # the steps of some layers do not add up
        if is_whole and np.isfinite(values["variance_post"]).all():
            yield from _growth_facts(values, label, branches)
            yield from _correlation_facts(values, label, branches)


def _growth_facts(values: xr.Dataset, label: str, branches: Sequence[str]) -> Iterator[str]:
    """Yield the shares of the growth of the variance, from the first input to the largest variance after a block."""
    after = values["variance_post"]
    top = int(np.argmax(after.values))
    first, largest, last = float(values["variance_pre"][0]), float(after[top]), float(after[-1])
    if not largest > first:
        return
    until = values.isel(layer=slice(top + 1))
    own, shared = (
        [float(until[f"{part}_{branch}"].sum()) / (largest - first) for branch in branches]
        for part in ("variance_step", "twice_covariance")
    )
    of_branches = [
        f"{_BRANCHES[branch][0]} {percent(one, 0)} and {percent(two, 0)}; "
        for branch, one, two in zip(branches, own, shared, strict=True)
    ]
    layer = int(after["layer"][top])
    if top == after.size - 1:
        course, growth = f"{first:.3g} at the first input and {last:.3g} after the last block", "this growth"
    else:
        course = (
            f"{first:.3g} at the first input, at most {largest:.3g}, after layer {layer}, and {last:.3g} at the end"
        )
        growth = f"the growth up to layer {layer}"
    parts = f"in this order, {''.join(of_branches)}" if len(branches) > 1 else ""
    yield (
        f"Total variance of {label} over prompts: {course}. Of {growth}, {percent(sum(own), 0)} is variance of the "
        f"steps and {percent(sum(shared), 0)} is twice their covariance with the stream "
        f"({parts}n = {int(values['n_samples'])} prompts)."
    )


def _correlation_facts(values: xr.Dataset, label: str, branches: Sequence[str]) -> Iterator[str]:
    """Yield how often a step correlates with the stream at which it starts: covariance over standard deviations."""
    n, counts = int(values["n_samples"]), []
    bound = independent_bound(n)
    for branch in branches:
        maker, start = _BRANCHES[branch]
        squares = values[f"variance_{start}"] * values[f"variance_step_{branch}"]
        correlation = (values[f"twice_covariance_{branch}"] / 2 / np.sqrt(squares.where(squares > 0))).dropna("layer")
        above, below = int((correlation > bound).sum()), int((correlation < -bound).sum())
        counts.append(
            f"in {maker}, above {bound:.3f} for {above} and below -{bound:.3f} for {below} of {correlation.size} steps"
        )
    yield (
        f"Correlation of a step with the stream over the prompts of {label}: {'; '.join(counts)} (n = {n} prompts; for "
        f"independent steps, two standard deviations are at most {bound:.3f})."
    )
