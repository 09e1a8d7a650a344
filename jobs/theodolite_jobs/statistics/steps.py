"""Steps of a prompt's state through the blocks, angles between steps, path lengths and arcs. Pure, in float64."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64
from numpy.typing import NDArray

from theodolite.groups.schema import ENDS
from theodolite_jobs.statistics.kernels import block_products, position_means, step_dots
from theodolite_jobs.statistics.ratio import ratio
from theodolite_jobs.statistics.step_products import StepProducts

STEPS = {"step_norm": slice(0, 3), "step_cosine": slice(3, 5), "arc": slice(5, 8)}
"""Quantities of each prompt in each block: their columns in the files of reduced shards.

Norms and arcs are those of ENDS; cosines are those with the next step, and with the block's input.
"""

PATH = ("path_length", "displacement", "path_ratio", "arc_length", "great_circle", "arc_ratio")
"""Quantities of each prompt's whole path, in the order of the files of reduced shards."""

RATIOS = ("path_ratio", "arc_ratio")
"""Quantities of the path that ends before the last block. They follow those of the whole path in the files."""

Vectors = Float[np.ndarray, "sample d_model"]
Lengths = Float64[np.ndarray, " sample"]


@dataclass(frozen=True)
class Block:
    """The states of a block and the lengths of what its branches add; None where that was not captured.

    Samples are in the order (prompt, position).

    Attributes:
        entering: input of the block.
        middle: state between attention and MLP.
        leaving: output of the block.
        attn: length of attention's output; None takes that of the step from `entering` to `middle`.
        mlp: length of the MLP's output; None takes that of the step from `middle` to `leaving`.
        follows: whether the previous captured block is the previous block of the model.
    """

    entering: Vectors
    middle: Vectors | None
    leaving: Vectors | None
    attn: Lengths | None = None
    mlp: Lengths | None = None
    follows: bool = True


class Travel(NamedTuple):
    """Quantities of each prompt, and sums over prompts.

    Attributes:
        steps: quantities of each block, (prompt, position, block, column of STEPS).
        path: quantities of the path, (prompt, position, PATH and RATIOS).
        products: sums over prompts of products of deviations from the mean over prompts.
    """

    steps: NDArray[np.float64]
    path: NDArray[np.float64]
    products: StepProducts


def travel(blocks: Iterable[Block], n_prompts: int, n_positions: int, n_blocks: int) -> Travel:
    """Return each prompt's steps and path, and the sums over prompts of products of deviations.

    With Δ_l = x_{l+1} − x_l, the steps are ‖Δ_attn‖, ‖Δ_mlp‖, ‖Δ_l‖, cos(Δ_l, Δ_{l+1}) (NaN in the last block),
    cos(Δ_l, x_l), and the angles between the states of a block. The path is Σ‖Δ_l‖, ‖x_L − x_0‖ and their ratio, then
    the sum of the blocks' angles, the angle between x_0 and x_L, and their ratio, then both ratios of the path that
    ends before the last block. Angles are in radians. NaN where a vector was not captured, and for an angle or a ratio
    with a zero vector.

    Args:
        blocks: blocks in order; an iterator keeps few of them in memory.
        n_prompts: number of prompts.
        n_positions: number of positions of each prompt.
        n_blocks: number of blocks, at least one.
    """
    shape = (n_prompts * n_positions, n_blocks)
    products, deviations = np.full((2, *shape, len(ENDS), 4), np.nan)
    dots, deviation_dots = np.full((2, *shape), np.nan)
    outputs = np.full((*shape, len(ENDS)), np.nan)
    means: list[tuple[NDArray[np.float64], ...]] = []
    first = before_last = last = previous = None
    for index, block in enumerate(blocks):
        known = means[-1][2] if block.entering is last else position_means(block.entering, n_positions)
        means.append((known, *(_means_or_nan(state, known) for state in (block.middle, block.leaving))))
        products[:, index], deviations[:, index] = _block_products(block, means[-1])
        step = None if block.leaving is None else (block.entering, block.leaving)
        if step is not None and previous is not None and block.follows:
            centres = (leaving - entering for entering, _, leaving in means[-2:])
            dots[:, index - 1], deviation_dots[:, index - 1] = step_dots(*previous, *step, *centres)
        for branch, lengths in enumerate((block.attn, block.mlp)):
            outputs[:, index, branch] = np.nan if lengths is None else lengths
        first, before_last, last = block.entering if first is None else first, block.entering, block.leaving
        previous = step
    steps = _steps(products, dots, outputs)
    whole = _path(steps, first, last)
    ratios = [PATH.index(name) for name in RATIOS]
    path = np.concatenate([whole, _path(steps[:, :-1], first, before_last)[:, ratios]], axis=1)
    all_means = np.stack([np.stack(of_block, axis=1) for of_block in means], axis=1)

    def by_prompt(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return rows.reshape(n_prompts, n_positions, *rows.shape[1:])

    sums = [by_prompt(rows).sum(axis=0) for rows in (deviations, deviation_dots)]
    return Travel(by_prompt(steps), by_prompt(path), StepProducts(n_prompts, all_means, *sums))


def _means_or_nan(state: Vectors | None, like: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.full_like(like, np.nan) if state is None else position_means(state, len(like))


def _block_products(
    block: Block, means: Sequence[NDArray[np.float64]]
) -> tuple[Float64[np.ndarray, "sample 3 4"], Float64[np.ndarray, "sample 3 4"]]:
    """Return the products of a block's steps and of their deviations; NaN where a state was not captured."""
    states = (block.entering, block.middle, block.leaving)
    is_known = [state is not None for state in states]
    found = block_products([block.entering if state is None else state for state in states], means)
    for branch, (start, end) in enumerate(ENDS.values()):
        if not (is_known[start] and is_known[end]):
            for products in found:
                products[:, branch] = np.nan
    return found


def _steps(
    products: Float64[np.ndarray, "sample block 3 4"],
    dots: Float64[np.ndarray, "sample block"],
    outputs: Float64[np.ndarray, "sample block 3"],
) -> Float64[np.ndarray, "sample block step"]:
    """Return STEPS from the products of each step, those of successive steps, and the lengths of captured outputs."""
    lengths = np.sqrt(products[..., 2])
    start, step, along = np.sqrt(products[..., 2, 0]), lengths[..., 2], products[..., 2, 1]
    cosine_next = np.full(dots.shape, np.nan)
    cosine_next[:, :-1] = ratio(dots[:, :-1], step[:, :-1] * step[:, 1:])
    norms = np.where(np.isnan(outputs), lengths, outputs)
    cosines = np.stack([cosine_next, ratio(along, start * step)], axis=-1)
    return np.concatenate([norms, cosines, angles(products)], axis=-1)


def _path(
    steps: Float64[np.ndarray, "sample block step"], first: Vectors | None, last: Vectors | None
) -> Float64[np.ndarray, "sample path"]:
    """Return PATH from blocks and the states before and after them."""
    if first is None or last is None:
        return np.full((len(steps), len(PATH)), np.nan)
    zero = np.zeros((1, first.shape[1]))
    products = block_products((first, first, last), (zero, zero, zero))[0][:, 2]
    length, arc_length = (steps[..., STEPS[name]][..., -1].sum(axis=1) for name in ("step_norm", "arc"))
    displacement, great_circle = np.sqrt(products[:, 2]), angles(products)
    straight = (length, displacement, ratio(length, displacement))
    return np.stack([*straight, arc_length, great_circle, ratio(arc_length, great_circle)], axis=-1)


def angles(products: Float64[np.ndarray, "*dims 4"]) -> Float64[np.ndarray, "*dims"]:
    """Return the angles between x and y in radians, from the products of Δ = y − x; NaN for a zero vector.

    tan = √(‖x‖²‖Δ‖² − (x·Δ)²) / x·y has an error of about 1e-8·‖Δ‖/‖y‖ at small angles; the arc cosine has 1e-8.
    """
    squared, along, step_squared, _ = np.moveaxis(products, -1, 0)
    across, product = np.sqrt(np.maximum(squared * step_squared - along**2, 0)), squared + along
    return np.where((across > 0) | (product != 0), np.arctan2(across, product), np.nan)
