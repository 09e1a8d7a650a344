"""Steps of a prompt's state through the blocks, angles between steps, and path lengths. Pure, in float64."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64

from theodolite_jobs.statistics.kernels import row_lengths, step_dots, step_lengths
from theodolite_jobs.statistics.ratio import ratio

STEPS = ("step_norm_attn", "step_norm_mlp", "step_norm_block", "step_cosine_next", "step_cosine_stream")
"""Quantities of each prompt in each block."""

PATH = ("path_length", "displacement", "path_ratio")
"""Quantities of each prompt's whole path."""

Vectors = Float[np.ndarray, "sample d_model"]
Lengths = Float64[np.ndarray, " sample"]


@dataclass(frozen=True)
class Block:
    """The input and output of a block and what its branches add; None where that was not captured.

    Attributes:
        entering: input of the block.
        attn: length of what attention adds to the stream.
        mlp: length of what the MLP adds to the stream.
        leaving: output of the block.
        follows: whether the previous captured block is the previous block of the model.
    """

    entering: Vectors
    attn: Lengths | None
    mlp: Lengths | None
    leaving: Vectors | None
    follows: bool = True


def travel(
    blocks: Iterable[Block], n_samples: int, n_blocks: int
) -> tuple[Float64[np.ndarray, "sample block step"], Float64[np.ndarray, "sample path"]]:
    """Return each prompt's steps, (sample, block, STEPS), and its path, (sample, PATH).

    With Δ_l = x_{l+1} − x_l, the steps are ‖Δ_attn‖, ‖Δ_mlp‖, ‖Δ_l‖, cos(Δ_l, Δ_{l+1}) (NaN in the last block) and
    cos(Δ_l, x_l). The path is Σ‖Δ_l‖, ‖x_L − x_0‖ and their `path_ratio`. NaN where a vector was not captured, and for
    an angle or a ratio with a zero vector.

    Args:
        blocks: blocks in order; an iterator keeps few of them in memory.
        n_samples: number of prompts.
        n_blocks: number of blocks.
    """
    steps = np.full((n_samples, n_blocks, len(STEPS)), np.nan)
    path = np.full((n_samples, len(PATH)), np.nan)
    first = last = previous = None
    for index, block in enumerate(blocks):
        first = block.entering if first is None else first
        last = block.leaving
        for column, lengths in enumerate((block.attn, block.mlp)):
            if lengths is not None:
                steps[:, index, column] = lengths
        step = None if block.leaving is None else (block.entering, block.leaving)
        if step is not None:
            steps[:, index, 2] = length = step_lengths(*step)
            along = step_dots(*step, np.zeros_like(block.entering), block.entering)
            steps[:, index, 4] = ratio(along, length * row_lengths(block.entering))
            if previous is not None and block.follows:
                steps[:, index - 1, 3] = ratio(step_dots(*previous, *step), steps[:, index - 1, 2] * length)
        previous = step
    if first is not None and last is not None:
        length, displacement = steps[:, :, 2].sum(axis=1), step_lengths(first, last)
        path[:] = np.stack([length, displacement, path_ratio(length, displacement)], axis=-1)
    return steps, path


def path_ratio(
    length: Float64[np.ndarray, " sample"], displacement: Float64[np.ndarray, " sample"]
) -> Float64[np.ndarray, " sample"]:
    """Return path length over displacement, Σ‖Δ_l‖ / ‖x_L − x_0‖: 1 for a straight line; NaN without displacement."""
    return ratio(length, displacement)
