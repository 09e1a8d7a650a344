"""One Dask task on one site and layer: the shape of a set's samples, or of a contrast's two sets, by Gram matrices."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from theodolite.sites import Site
from theodolite.store.runs import Run
from theodolite_jobs.passes.samples import SampleSelection, read_layer_samples
from theodolite_jobs.statistics.gram import (
    effective_rank,
    gram,
    intrinsic_dimension,
    mean_cosine,
    participation_ratio,
    silhouette,
    standardised,
)
from theodolite_jobs.statistics.gram_cka import packed
from theodolite_jobs.statistics.gram_medians import Products, means_and_medians
from theodolite_jobs.statistics.moments import on_sphere

Vectors = NDArray[np.float64]

TRANSFORMS: Mapping[str, Callable[[Vectors], Vectors]] = {
    "": lambda x: x,
    "on_sphere_": on_sphere,
    "standardised_": lambda x: standardised(x)[0],
}
"""What names begin with, and what is done to the samples first."""


@dataclass(frozen=True)
class PointCloud:
    """Some samples of a set at one position: at most so many that a Gram matrix is small.

    Attributes:
        selection: the set and one of its positions.
        samples: their indices in the set, ascending.
    """

    selection: SampleSelection
    samples: tuple[int, ...]


@dataclass(frozen=True)
class ShapeOfCloud:
    """What is known of a cloud at one site and layer.

    Attributes:
        values: by variable of `gram`.
        packed: centred Gram matrices in each space, (space, entry).
        diagonals: their diagonals, (space, sample).
    """

    values: dict[str, float]
    packed: NDArray[np.float64]
    diagonals: NDArray[np.float64]


def shape_of_cloud(run: Run, cloud: PointCloud, site: Site, layer: int) -> ShapeOfCloud:
    """Return the shape of a cloud at a site and an index into the run's layers."""
    samples = _read(run, cloud, site, layer)
    values: dict[str, float] = {}
    matrices = []
    for prefix, into in TRANSFORMS.items():
        moved = into(samples)
        matrix = gram(_centred(moved))
        values[f"{prefix}mean_cosine"] = mean_cosine(moved)
        values[f"{prefix}participation_ratio"] = participation_ratio(matrix)
        values[f"{prefix}effective_rank"] = effective_rank(matrix)
        values[f"{prefix}intrinsic_dimension"], coincident = intrinsic_dimension(matrix)
        if not prefix:
            values["n_coincident"] = coincident
        matrices.append(matrix)
    values["n_constant_features"] = standardised(samples)[1]
    return ShapeOfCloud(
        values, np.stack([packed(matrix) for matrix in matrices]), np.stack([np.diag(matrix) for matrix in matrices])
    )


def shape_of_pair(run: Run, positive: PointCloud, negative: PointCloud, site: Site, layer: int) -> dict[str, float]:
    """Return how two clouds lie to each other at a site and an index into the run's layers."""
    p, q = (_read(run, cloud, site, layer) for cloud in (positive, negative))
    both = np.concatenate([p, q])
    middle = both.mean(axis=0)
    values: dict[str, float] = {}
    for prefix, into in TRANSFORMS.items():
        moved = _centred(into(both))
        of_p, of_q = moved[: len(p)], moved[len(p) :]
        matrices = gram(of_p), gram(of_q), of_p @ of_q.T
        values[f"{prefix}silhouette"] = silhouette(*matrices)
        if not prefix:
            values |= means_and_medians(Products(*matrices, of_p @ middle, of_q @ middle, float(middle @ middle)))
    del values["cosine_of_means"], values["difference_of_means"]  # `curves` has them, of all prompts
    return values


def _centred(x: Vectors) -> Vectors:
    """Return samples less their mean; equal samples give zeros, to the bit."""
    shifted: Vectors = x - x[0]
    shifted -= shifted.mean(axis=0)
    return shifted


def _read(run: Run, cloud: PointCloud, site: Site, layer: int) -> Vectors:
    return read_layer_samples(run, cloud.selection, cloud.samples, site, layer).astype(np.float64)
