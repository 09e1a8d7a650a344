"""Arrays over all sets or contrasts and all positions, from the outputs of the passes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite_jobs.passes.collect import ContrastPasses, SetPasses


def into_all_positions(
    passes: Sequence[SetPasses | ContrastPasses],
    n_positions: int,
    arrays: Sequence[NDArray[Any]],
    axis: int = 1,
    fill: float = np.nan,
) -> NDArray[Any]:
    """Return the stacked arrays of all sets or contrasts, with all positions along `axis`; `fill` for missing ones."""
    expanded = []
    for array, subject in zip(arrays, passes, strict=True):
        shape = (*array.shape[:axis], n_positions, *array.shape[axis + 1 :])
        whole = np.full(shape, fill, dtype=array.dtype)
        whole[(slice(None),) * axis + (list(subject.positions),)] = array
        expanded.append(whole)
    return np.stack(expanded) if expanded else np.empty(0)


def set_counts(sets: Sequence[SetPasses], n_positions: int) -> NDArray[np.int64]:
    """Return the number of prompts used of each set, (set, position)."""
    counts = [np.full(len(subject.positions), subject.first.count) for subject in sets]
    return into_all_positions(sets, n_positions, counts, axis=0, fill=0)


def contrast_counts(contrasts: Sequence[ContrastPasses], n_positions: int) -> dict[str, NDArray[Any]]:
    """Return the numbers of prompts used of each side, `n_positive` and `n_negative`, (contrast, position)."""
    arrays = {}
    for side in ("positive", "negative"):
        counts = [np.full(len(one.positions), getattr(one, side).count) for one in contrasts]
        arrays[f"n_{side}"] = into_all_positions(contrasts, n_positions, counts, axis=0, fill=0)
    return arrays
