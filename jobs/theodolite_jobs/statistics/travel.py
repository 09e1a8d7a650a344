"""How a prompt's state travels through the blocks: steps, angles between them, and the length of the way. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from theodolite_jobs.statistics.ratio import ratio

STEPS = ("step_norm_attn", "step_norm_mlp", "step_norm_block", "step_cosine_next", "step_cosine_stream")
"""What is measured of each prompt in each block."""

PATH = ("path_length", "displacement", "path_ratio")
"""What is measured of each prompt."""

Vectors = Float64[np.ndarray, "sample d_model"]


@dataclass(frozen=True)
class Block:
    """What entered and left a block, and what was added in it; None where that was not captured.

    `follows` says whether it comes right after the block before it here.
    """

    entering: Vectors
    attn: Vectors | None
    mlp: Vectors | None
    leaving: Vectors | None
    follows: bool = True


def travel(
    blocks: Iterable[Block], n_samples: int, n_blocks: int
) -> tuple[Float64[np.ndarray, "sample block step"], Float64[np.ndarray, "sample path"]]:
    """Return each prompt's steps, (sample, block, STEPS), and its way, (sample, PATH).

    With Δ_l = x_{l+1} − x_l: ‖Δ_attn‖, ‖Δ_mlp‖, ‖Δ_l‖, cos(Δ_l, Δ_{l+1}) (NaN in the last block), cos(Δ_l, x_l); and
    Σ‖Δ_l‖, ‖x_L − x_0‖, the one over the other. NaN where something was not captured, or a vector has no length.

    Args:
        blocks: in order, read one after the other, so that few are held at once.
        n_samples: prompts.
        n_blocks: how many blocks there are.
    """
    steps = np.full((n_samples, n_blocks, len(STEPS)), np.nan)
    path = np.full((n_samples, len(PATH)), np.nan)
    first = last = before = None
    for index, block in enumerate(blocks):
        first = block.entering if first is None else first
        last = block.leaving
        step = None if block.leaving is None else block.leaving - block.entering
        for column, vectors in enumerate((block.attn, block.mlp, step)):
            if vectors is not None:
                steps[:, index, column] = np.linalg.norm(vectors, axis=-1)
        if step is not None:
            steps[:, index, 4] = cosines(step, block.entering)
            if before is not None and block.follows:
                steps[:, index - 1, 3] = cosines(before, step)
        before = step
    if first is not None and last is not None:
        length, displacement = steps[:, :, 2].sum(axis=1), np.linalg.norm(last - first, axis=-1)
        path[:] = np.stack([length, displacement, ratio(length, displacement)], axis=-1)
    return steps, path


def cosines(x: Vectors, y: Vectors) -> Float64[np.ndarray, " sample"]:
    """Return the cosine of each pair of rows; NaN where one is zero."""
    lengths = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    dots = np.einsum("nd,nd->n", x, y)
    return ratio(dots, lengths)
