"""From what the passes collected to arrays over all sets, contrasts and positions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite_jobs.passes.collect import ContrastPasses, SetPasses


class Placer:
    """Puts each prompt set's or contrast's own positions where they stand among all positions; the rest is filled."""

    def __init__(self, subjects: Sequence[SetPasses] | Sequence[ContrastPasses], n_positions: int) -> None:
        self.positions = [subject.positions for subject in subjects]
        self.n_positions = n_positions

    def __call__(self, arrays: Sequence[NDArray[Any]], axis: int = 1, fill: float = np.nan) -> NDArray[Any]:
        """Return all subjects' arrays, (subject, …), each with its own positions along `axis`."""
        placed = []
        for array, positions in zip(arrays, self.positions, strict=True):
            shape = (*array.shape[:axis], self.n_positions, *array.shape[axis + 1 :])
            whole = np.full(shape, fill, dtype=array.dtype)
            whole[(slice(None),) * axis + (list(positions),)] = array
            placed.append(whole)
        return np.stack(placed) if placed else np.empty(0)


def set_counts(sets: Sequence[SetPasses], n_positions: int) -> NDArray[np.int64]:
    """Return how many prompts of each set take part, (set, position)."""
    counts = [np.full(len(subject.positions), subject.first.count) for subject in sets]
    return Placer(sets, n_positions)(counts, axis=0, fill=0)


def contrast_counts(contrasts: Sequence[ContrastPasses], n_positions: int) -> dict[str, NDArray[Any]]:
    """Return how many prompts of each side take part, `n_positive` and `n_negative`, (contrast, position)."""
    place = Placer(contrasts, n_positions)
    return {
        f"n_{side}": place([np.full(len(one.positions), getattr(one, side).count) for one in contrasts], axis=0, fill=0)
        for side in ("positive", "negative")
    }
