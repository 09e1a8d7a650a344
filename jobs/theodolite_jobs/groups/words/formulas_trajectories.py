"""Angles between states of a token, and coordinates to draw them. Pure, in float64.

Angles use all d_model dimensions; the three coordinates are only for figures.
"""

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from theodolite_jobs.groups.words.formulas import BLOCK_TOKENS, Rows
from theodolite_jobs.statistics.norms import unit

COORDINATES = 3


def angles(x: Float[np.ndarray, "*dims d_model"], y: Float[np.ndarray, "*#dims d_model"]) -> Float[np.ndarray, "*dims"]:
    """Return the angles between vectors in degrees, 0 to 180; NaN where one is zero.

    The angle is 2·atan2(|u − v|, |u + v|) for unit vectors u and v, which is exact for nearly parallel vectors (Kahan).
    """
    u, v = unit(x), unit(y)
    half = np.arctan2(np.linalg.norm(u - v, axis=-1), np.linalg.norm(u + v, axis=-1))
    degrees: NDArray[np.float64] = np.degrees(2 * half)
    return degrees


def vocabulary_angles(
    rows: Rows, n_tokens: int, points: Float[np.ndarray, "point d_model"]
) -> tuple[Float[np.ndarray, " point"], Float[np.ndarray, " point"]]:
    """Return mean and standard deviation (n−1) of the angles between a point and each row, in degrees.

    Rows of zeros are left out. NaN for a point that is zero, and with fewer than two rows. Cosines are in float32.

    Args:
        rows: a table over the vocabulary.
        n_tokens: number of rows to use.
        points: the points.
    """
    directions = torch.from_numpy(unit(points).astype(np.float32))
    count, total, squares = 0, np.zeros(len(points)), np.zeros(len(points))
    for start in range(0, n_tokens, BLOCK_TOKENS):
        table = rows(slice(start, min(start + BLOCK_TOKENS, n_tokens)))
        lengths = torch.linalg.vector_norm(table, dim=1, keepdim=True)
        table = (table / lengths)[lengths[:, 0] > 0]
        # Minus 90, so that the squares lose no digits to the mean.
        found = torch.rad2deg(torch.arccos((directions @ table.T).clamp(-1, 1))).double() - 90
        count += len(table)
        total += found.sum(dim=1).numpy()
        squares += found.square().sum(dim=1).numpy()
    if count < 2:
        return np.full(len(points), np.nan), np.full(len(points), np.nan)
    mean = total / count
    return mean + 90, np.sqrt(np.maximum(squares - count * mean**2, 0) / (count - 1))


def principal_coordinates(points: Float[np.ndarray, "point d_model"]) -> Float[np.ndarray, "point 3"]:
    """Return coordinates of unit vectors along their three leading right singular vectors, without centring.

    The coordinates of a point have a norm of at most 1; the difference to 1 lies in other directions. In each direction
    the component of largest magnitude is positive. A point with a NaN has NaN coordinates and does not affect others.
    """
    finite = points[np.isfinite(points).all(axis=1)]
    _, _, directions = np.linalg.svd(finite, full_matrices=False)
    leading = directions[:COORDINATES]
    largest = np.take_along_axis(leading, np.abs(leading).argmax(axis=1)[:, None], axis=1)
    coordinates = points @ (leading * np.sign(largest)).T
    return np.pad(coordinates, ((0, 0), (0, COORDINATES - coordinates.shape[1])))
