"""Angles between states of a token, and coordinates to draw them. Pure, in float64.

Angles use all d_model dimensions; the three coordinates are only for figures.
"""

import warnings

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from theodolite.errors import ModelError
from theodolite_jobs.statistics.norms import unit

COORDINATES = 3

# Settings of arXiv 2309.07315: UMAP fitted to the first rows of the embedding, in three dimensions.
UMAP_ROWS = 10_000
_UMAP = {"n_neighbors": 15, "min_dist": 0.1, "n_components": COORDINATES, "random_state": 42, "n_jobs": 1}


def angles(x: Float[np.ndarray, "*dims d_model"], y: Float[np.ndarray, "*#dims d_model"]) -> Float[np.ndarray, "*dims"]:
    """Return the angles between vectors in degrees, 0 to 180; NaN where one is zero.

    The angle is 2·atan2(|u − v|, |u + v|) for unit vectors u and v, which is exact for nearly parallel vectors (Kahan).
    """
    u, v = unit(x), unit(y)
    half = np.arctan2(np.linalg.norm(u - v, axis=-1), np.linalg.norm(u + v, axis=-1))
    degrees: NDArray[np.float64] = np.degrees(2 * half)
    return degrees


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


def umap_coordinates(
    table: Float[np.ndarray, "token d_model"], points: Float[np.ndarray, "point d_model"]
) -> Float[np.ndarray, "point 3"]:
    """Return the coordinates of points in the UMAP of a table of embeddings, with a fixed seed.

    Source of the settings: arXiv 2309.07315.

    Raises:
        ModelError: umap-learn is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ImportWarning)  # of a UMAP module that needs TensorFlow
            from umap import UMAP
    except ImportError as error:
        raise ModelError("words.umap: umap-learn is not installed; run pip install 'theodolite[umap]'") from error
    return np.asarray(UMAP(**_UMAP).fit(table).transform(points).astype(np.float64))
