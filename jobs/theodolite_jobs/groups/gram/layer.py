"""Dask tasks on one site and layer: the shape of a set's samples, or of a contrast's two sets, from Gram matrices."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theodolite.groups.gram.record import SPACES
from theodolite.sites import Site
from theodolite.store.runs import Run
from theodolite_jobs.groups.gram.formulas import (
    effective_rank,
    eigenvalues,
    intrinsic_dimension,
    mean_cosine,
    participation_ratio,
    silhouette,
    standardised,
)
from theodolite_jobs.groups.gram.formulas_cka import packed
from theodolite_jobs.groups.gram.formulas_medians import Centres, means_and_medians
from theodolite_jobs.groups.gram.formulas_rotations import intrinsic_dimension_of_rotations
from theodolite_jobs.passes.point_clouds import PointCloud, read_cloud
from theodolite_jobs.statistics.gram_matrices import centred, gram
from theodolite_jobs.statistics.moments import on_sphere

Vectors = NDArray[np.float64]

Statistics = dict[str, ArrayLike]
"""The values of variables at one site and layer, by name."""

TRANSFORMS: Mapping[str, Callable[[Vectors], Vectors]] = {
    "raw": lambda x: x,
    "sphere": on_sphere,
    "standardised": lambda x: standardised(x)[0],
}
"""The transform of the samples in each of SPACES."""

_IN_SPACES = ("mean_cosine", "participation_ratio", "effective_rank", "intrinsic_dimension")


def set_shape(run: Run, cloud: PointCloud, site: Site, layer: int) -> tuple[Statistics, Vectors, Vectors]:
    """Return the shape of a point cloud at a site and an index into the run's layers.

    The three parts are the values of the variables of `gram` by name, the packed centred Gram matrices, (space, entry),
    and their diagonals, (space, sample). At a layer without the site, there are no values, and the others are NaN.
    """
    if not run.record.has_site_at(site, layer):
        n = len(cloud.samples)
        nothing = np.full((len(SPACES), n, n), np.nan)
        return {}, np.stack([packed(matrix) for matrix in nothing]), nothing[:, 0]
    samples = read_cloud(run, cloud, site, layer).astype(np.float64)
    values: Statistics = {"n_constant_features": standardised(samples)[1]}
    matrices, of_spaces = [], []
    for space in SPACES:
        transformed = TRANSFORMS[space](samples)
        matrix = gram(centred(transformed))
        spectrum = eigenvalues(matrix)
        dimension, coincident = intrinsic_dimension(matrix)
        if space == "raw":
            values["n_coincident"] = coincident
            values["intrinsic_dimension_null"] = intrinsic_dimension_of_rotations(spectrum)
        of_spaces.append((mean_cosine(transformed), participation_ratio(matrix), effective_rank(spectrum), dimension))
        matrices.append(matrix)
    values |= dict(zip(_IN_SPACES, zip(*of_spaces, strict=True), strict=True))
    return values, np.stack([packed(matrix) for matrix in matrices]), np.stack([np.diag(matrix) for matrix in matrices])


def pair_shape(run: Run, positive: PointCloud, negative: PointCloud, site: Site, layer: int) -> Statistics:
    """Return silhouettes, norms and cosines of two point clouds at a site and an index into the run's layers.

    There are none at a layer without the site.
    """
    if not run.record.has_site_at(site, layer):
        return {}
    p, q = (read_cloud(run, cloud, site, layer).astype(np.float64) for cloud in (positive, negative))
    both = np.concatenate([p, q])
    middle = both.mean(axis=0)
    values: Statistics = {}
    silhouettes = []
    for space in SPACES:
        moved = centred(TRANSFORMS[space](both))
        p, q = moved[: len(p)], moved[len(p) :]
        matrices = gram(p), gram(q), p @ q.T
        silhouettes.append(silhouette(*matrices))
        if space == "raw":
            values |= _centres(*means_and_medians(*matrices, p @ middle, q @ middle, float(middle @ middle)))
    return values | {"silhouette": silhouettes}


def _centres(means: Centres, medians: Centres) -> Statistics:
    """Return the variables of two sets' means and medians; `curves` has cosine and difference of all prompts' means."""
    return {
        "norm_of_centre": (means.norms, medians.norms),
        "cosine_with_difference": (means.cosines, medians.cosines),
        "cosine_of_medians": medians.cosine,
        "difference_of_medians": medians.difference,
    }
