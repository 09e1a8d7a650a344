"""Dask tasks on one site and layer: the shape of a set's samples, or of a contrast's two sets, from Gram matrices."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from theodolite.sites import Site
from theodolite.store.runs import Run
from theodolite_jobs.passes.point_clouds import PointCloud, read_cloud
from theodolite_jobs.statistics.gram import (
    centred,
    effective_rank,
    eigenvalues,
    gram,
    intrinsic_dimension,
    mean_cosine,
    participation_ratio,
    silhouette,
    standardised,
)
from theodolite_jobs.statistics.gram_cka import packed
from theodolite_jobs.statistics.gram_medians import means_and_medians
from theodolite_jobs.statistics.gram_rotations import intrinsic_dimension_of_rotations
from theodolite_jobs.statistics.moments import on_sphere

Vectors = NDArray[np.float64]

TRANSFORMS: Mapping[str, Callable[[Vectors], Vectors]] = {
    "": lambda x: x,
    "on_sphere_": on_sphere,
    "standardised_": lambda x: standardised(x)[0],
}
"""The transform of the samples in each space, by the prefix of the variables' names."""


def set_shape(run: Run, cloud: PointCloud, site: Site, layer: int) -> tuple[dict[str, float], Vectors, Vectors]:
    """Return the shape of a point cloud at a site and an index into the run's layers.

    The three parts are the values of the variables of `gram` by name, the packed centred Gram matrices, (space, entry),
    and their diagonals, (space, sample). At a layer without the site, there are no values, and the others are NaN.
    """
    if not run.record.has_site_at(site, layer):
        n = len(cloud.samples)
        nothing = np.full((len(TRANSFORMS), n, n), np.nan)
        return {}, np.stack([packed(matrix) for matrix in nothing]), nothing[:, 0]
    samples = read_cloud(run, cloud, site, layer).astype(np.float64)
    values: dict[str, float] = {}
    matrices = []
    for prefix, transform in TRANSFORMS.items():
        transformed = transform(samples)
        matrix = gram(centred(transformed))
        spectrum = eigenvalues(matrix)
        values[f"{prefix}mean_cosine"] = mean_cosine(transformed)
        values[f"{prefix}participation_ratio"] = participation_ratio(matrix)
        values[f"{prefix}effective_rank"] = effective_rank(spectrum)
        values[f"{prefix}intrinsic_dimension"], coincident = intrinsic_dimension(matrix)
        if not prefix:
            values["n_coincident"] = coincident
            mean, sd = intrinsic_dimension_of_rotations(spectrum)
            values |= {"intrinsic_dimension_gaussian": mean, "intrinsic_dimension_gaussian_sd": sd}
        matrices.append(matrix)
    values["n_constant_features"] = standardised(samples)[1]
    return values, np.stack([packed(matrix) for matrix in matrices]), np.stack([np.diag(matrix) for matrix in matrices])


def pair_shape(run: Run, positive: PointCloud, negative: PointCloud, site: Site, layer: int) -> dict[str, float]:
    """Return silhouettes, norms and cosines of two point clouds at a site and an index into the run's layers.

    There are none at a layer without the site.
    """
    if not run.record.has_site_at(site, layer):
        return {}
    p, q = (read_cloud(run, cloud, site, layer).astype(np.float64) for cloud in (positive, negative))
    both = np.concatenate([p, q])
    middle = both.mean(axis=0)
    values: dict[str, float] = {}
    for prefix, transform in TRANSFORMS.items():
        moved = centred(transform(both))
        p, q = moved[: len(p)], moved[len(p) :]
        matrices = gram(p), gram(q), p @ q.T
        values[f"{prefix}silhouette"] = silhouette(*matrices)
        if not prefix:
            values |= means_and_medians(*matrices, p @ middle, q @ middle, float(middle @ middle))
    del values["cosine_of_means"], values["difference_of_means"]  # `curves` has them for all prompts
    return values
