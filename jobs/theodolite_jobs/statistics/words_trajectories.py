"""How a word travels: each token's state from block to block, against where it ends and what comes next. Pure.

Angles and ranks are measured in all d_model dimensions; the three coordinates are for the eye.
"""

import warnings

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from theodolite.errors import ModelError
from theodolite_jobs.statistics.norms import unit

COORDINATES = 3

# The paper's settings (arXiv 2309.07315): UMAP fitted on the first embedding rows, in three dimensions.
UMAP_ROWS = 10_000
_UMAP = {"n_neighbors": 15, "min_dist": 0.1, "n_components": COORDINATES, "random_state": 42, "n_jobs": 1}


def angles(x: Float[np.ndarray, "*dims d_model"], y: Float[np.ndarray, "*#dims d_model"]) -> Float[np.ndarray, "*dims"]:
    """Return the angle between vectors in degrees, 0 to 180; NaN where one is zero.

    By 2·atan2(|u − v|, |u + v|) of unit vectors, which keeps its digits where they are nearly parallel (Kahan).
    """
    u, v = unit(x), unit(y)
    half = np.arctan2(np.linalg.norm(u - v, axis=-1), np.linalg.norm(u + v, axis=-1))
    found: NDArray[np.float64] = np.degrees(2 * half)
    return found


def principal_coordinates(points: Float[np.ndarray, "point d_model"]) -> Float[np.ndarray, "point 3"]:
    """Return unit vectors in the three directions that hold most of their squared length; nothing is centred.

    A point's coordinates have a length of at most 1: what is missing lies in other directions. The component of
    largest magnitude of each direction is positive.
    """
    finite = points[np.isfinite(points).all(axis=1)]
    _, _, directions = np.linalg.svd(finite, full_matrices=False)
    leading = directions[:COORDINATES]
    largest = np.take_along_axis(leading, np.abs(leading).argmax(axis=1)[:, None], axis=1)
    found = points @ (leading * np.sign(largest)).T
    return np.pad(found, ((0, 0), (0, COORDINATES - found.shape[1])))


def umap_coordinates(
    table: Float[np.ndarray, "token d_model"], points: Float[np.ndarray, "point d_model"]
) -> Float[np.ndarray, "point 3"]:
    """Return points in the UMAP of a table of embeddings, with the paper's settings and a fixed seed.

    Raises:
        ModelError: the package is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ImportWarning)  # of a part that would need TensorFlow
            from umap import UMAP
    except ImportError as error:
        raise ModelError("words.umap needs the package umap-learn: pip install 'theodolite[umap]'") from error
    found: NDArray[np.float64] = UMAP(**_UMAP).fit(table).transform(points).astype(np.float64)
    return found
