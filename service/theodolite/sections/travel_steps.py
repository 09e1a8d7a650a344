"""Sentences about the steps through the blocks: path lengths and arcs, cosines, and what all prompts share."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import xarray as xr

from theodolite.groups.permutations import LEVEL
from theodolite.sections.parts import listed, number, percent

_PATHS = {
    "path_ratio": "Path length divided by displacement (a straight line gives 1)",
    "arc_ratio": "Sum over blocks of the angle between input and output, divided by the angle between the first input "
    "and the last output (a path along at most half of a great circle, without turning back, gives 1)",
}
_COSINES = {
    "step_cosine_next": ("the steps of successive blocks", "pairs"),
    "step_cosine_stream": ("a block's step and its input", "blocks"),
    "step_cosine_attn": ("attention's step and its input", "blocks"),
    "step_cosine_mlp": ("the MLP's step and its input", "blocks"),
}

STEP_NOTES = (
    "steps at right angles have the measured lengths, and each is at a right angle to all earlier ones",
    "arcs at right angles have the measured lengths, and each is at a right angle to the great circle from the path's "
    "first point to the point where the arc begins",
    "if the measured ratio is larger than that of steps at right angles, steps partly cancel; if it is smaller, they "
    "partly add up; one long step, such as that of the last block, can reverse this comparison",
    "for a centred cosine, the mean over the prompts of the set is subtracted from each vector; dot products and "
    "squared norms are summed over prompts before the division",
    f"a centred cosine is significant if its two-sided family-wise p over all blocks is at most {LEVEL}. The null "
    "permutes the prompts of one of the two vectors. With many prompts, small cosines are significant too",
)


def step_facts(travel: xr.Dataset, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield sentences about the paths and steps of all sets, at one position."""

    def of_sets(text_of: Callable[[xr.Dataset], str]) -> str:
        texts = {label: text_of(travel.sel(set=name)) for name, label in labels.items()}
        return listed({label: text for label, text in texts.items() if text})

    for name, subject in _PATHS.items():
        if texts := of_sets(partial(_path, name)):
            yield f"{subject}, mean ± standard deviation over prompts: {texts}."
    for name, (pair, places) in _COSINES.items():
        if texts := of_sets(partial(_cosine, name, places)):
            yield f"Centred cosine between {pair}: {texts}."
    if texts := of_sets(_common_share):
        yield (
            "Share of a block's step that all prompts of a set have in common (squared length of the mean step divided "
            f"by the mean squared length, without the bias of noise): {texts}."
        )


def _path(name: str, values: xr.Dataset) -> str:
    """Return a ratio of a set's paths beside that of steps at right angles; empty if it is not known."""
    mean, std = (float(values[one]) for one in (name, f"{name}_std"))
    if not np.isfinite(std):
        return ""
    what = "arcs" if name == "arc_ratio" else "steps"
    parts = [f"{what} at right angles give {null:.2f}"] if np.isfinite(null := _at_right_angles(name, values)) else []
    before, its_null = values[f"{name}_before_last"], _at_right_angles(f"{name}_before_last", values)
    if np.isfinite(before) and np.isfinite(its_null):
        parts.append(
            f"without the last block, the measured ratio is {before:.2f} and {what} at right angles give {its_null:.2f}"
        )
    if name == "path_ratio" and (longest := _longest(values)):
        parts.append(longest)
    parts.append(f"n = {int(values['n_samples'])}")
    return f"{mean:.2f} ± {std:.2f} ({'; '.join(parts)})"


def _at_right_angles(name: str, values: xr.Dataset) -> float:
    return float(values[f"{name}_at_right_angles"])


def _longest(values: xr.Dataset) -> str:
    """Return the share of the longest step in the sum of the steps' squared lengths; empty if unknown."""
    n = max(int(values["n_samples"]), 1)
    squares = values["step_norm_block"] ** 2 + values["step_norm_block_std"] ** 2 * (n - 1) / n
    if not np.isfinite(squares).all():
        return ""
    top = int(squares.values.argmax())
    share = percent(squares[top] / squares.sum(), 0)
    return f"block {int(squares['layer'][top])} has {share} of the sum of the steps' squared lengths"


def _cosine(name: str, places: str, values: xr.Dataset) -> str:
    """Return a set's mean cosine over blocks, its test, and the cosine of the vectors themselves; empty if unknown."""
    cosine, p = values[f"{name}_centred"].dropna("layer"), values[f"{name}_centred_p_family"]
    if not cosine.size:
        return ""
    parts, is_tested = [], bool(np.isfinite(p).any())
    if is_tested:
        found = cosine.where(p <= LEVEL)
        parts.append(
            f"significantly below 0 in {int((found < 0).sum())} and above 0 in {int((found > 0).sum())} of "
            f"{cosine.size} {places}"
        )
    if name in values:
        raw = values[name].sel(layer=cosine["layer"])
        last = places.removesuffix("s")
        parts.append(
            f"without centring, the mean is {number(raw.mean(), 2)}, and the last {last} has {number(raw[-1], 2)}"
        )
    n, n_tested = int(values["n_samples"]), int(values["n_tested"])
    parts.append(f"n = {n}, of which {n_tested} for the tests" if is_tested and n_tested != n else f"n = {n}")
    mean, low, high = (number(value, 2) for value in (cosine.mean(), cosine.min(), cosine.max()))
    return f"mean {mean}, from {low} to {high} ({'; '.join(parts)})"


def _common_share(values: xr.Dataset) -> str:
    shares = values["step_common_share"].dropna("layer")
    if not shares.size:
        return ""
    low, high, median = (percent(share, 0) for share in (shares.min(), shares.max(), shares.median()))
    return f"{low} to {high} over {shares.size} blocks, median {median} (n = {int(values['n_samples'])})"
