"""Sentences about the steps through the blocks: path lengths and arcs, cosines, and what all prompts share."""

from collections.abc import Iterator, Mapping

import numpy as np
import xarray as xr

from theodolite.sections.parts import percent

_COSINES = {
    "step_cosine_next": ("the steps of successive blocks", "pairs"),
    "step_cosine_stream": ("a block's step and its input", "blocks"),
}


def step_facts(travel: xr.Dataset, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield sentences about the paths and steps of each set, at one position."""
    for name, label in labels.items():
        values = travel.sel(set=name)
        yield from _path_facts(values, label)
        for cosine in _COSINES:
            yield from _cosine_facts(values, label, cosine)
        shares = values["step_common_share"].dropna("layer")
        if shares.size:
            yield (
                f"Share of a block's mean squared step that all prompts of {label} have in common: "
                f"{percent(shares.min(), 0)} to {percent(shares.max(), 0)} over {shares.size} blocks, median "
                f"{percent(shares.median(), 0)} (n = {_n(values)} prompts; the bias of noise is subtracted)."
            )


def independent_bound(n: int) -> float:
    """Return the largest value of two standard deviations of a cosine of independent deviations of n prompts.

    The variance of the cosine is tr(Σ₁Σ₂)/((n−1)·tr Σ₁·tr Σ₂), which is at most 1/(n−1).
    """
    return float(2 / np.sqrt(n - 1))


def _path_facts(values: xr.Dataset, label: str) -> Iterator[str]:
    over = f"(mean ± standard deviation over {_n(values)} prompts)"
    if np.isfinite(values["path_ratio_std"]):
        yield (
            f"Path length over displacement for {label}: {_mean_and_std(values, 'path_ratio')} {over}; a straight line "
            "gives 1."
        )
    if np.isfinite(values["arc_ratio_std"]):
        yield (
            f"Sum of the angles of all blocks for {label}: {_mean_and_std(values, 'arc_length')} radians, which is "
            f"{_mean_and_std(values, 'arc_ratio')} times the angle between the first input and the last output {over}; "
            "a path along one great circle gives 1."
        )


def _cosine_facts(values: xr.Dataset, label: str, cosine: str) -> Iterator[str]:
    what, places = _COSINES[cosine]
    plain, centred = values[cosine].dropna("layer"), values[f"{cosine}_centred"].dropna("layer")
    if centred.size:
        plain, bound = plain.sel(layer=centred["layer"]), independent_bound(_n(values))
        below, above = int((centred < -bound).sum()), int((centred > bound).sum())
        yield (
            f"Cosine between {what} for {label}, mean over {centred.size} {places}: {plain.mean():.2f} for the vectors "
            f"themselves, {centred.mean():.2f} for their deviations from the means over prompts (n = {_n(values)} "
            f"prompts). For independent deviations, two standard deviations of the second cosine are at most "
            f"{bound:.3f}; it is below -{bound:.3f} for {below} {places} and above {bound:.3f} for {above}."
        )
    elif plain.size:
        yield f"Cosine between {what} for {label}, mean over {plain.size} {places}: {plain.mean():.2f}."


def _mean_and_std(values: xr.Dataset, name: str) -> str:
    return f"{float(values[name]):.2f} ± {float(values[f'{name}_std']):.2f}"


def _n(values: xr.Dataset) -> int:
    return int(values["n_samples"])
