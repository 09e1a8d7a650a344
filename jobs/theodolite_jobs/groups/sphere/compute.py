"""The analysis `sphere`: quantities of each norm layer, measured on prompts or computed from its parameters."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.sphere.record import NULL, STAGES, SUMMARY
from theodolite_jobs.groups.sphere import formulas as sphere
from theodolite_jobs.groups.sphere import formulas_ellipsoids as sphere_ellipsoids
from theodolite_jobs.groups.sphere.fitted_gaussian import fitted_gaussians
from theodolite_jobs.passes.collect import Arrays, SetPasses
from theodolite_jobs.passes.norm_layers import FINAL, NormLayer
from theodolite_jobs.results.context import Context, Result, missing_arrays
from theodolite_jobs.statistics import norm_quantities
from theodolite_jobs.statistics.norms import Norm
from theodolite_jobs.tasks import run_tasks


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("sphere", {})


def compute(context: Context) -> Result:
    """Return the group from the first pass over the activations and the norms' parameters.

    Raises:
        ModelError: the model's weights, or one of its norms, cannot be read.
    """
    norms = context.norms
    # One task for each norm, since wide layer norms take seconds.
    axes = run_tasks(sphere.semi_axes, [(norm.norm,) for norm in norms], context.progress, "norm layers")
    names = [norm.label for norm in norms]
    coordinates = {**context.coordinates, "norm": names, "norm_other": names}
    arrays = missing_arrays("sphere", coordinates) | {
        "semi_axes": np.stack(list(axes)),
        "scale_radii": np.stack([sphere.scale_radii(norm.norm) for norm in norms]),
        "centre": np.stack([norm.norm.bias for norm in norms]),
    }
    arrays |= _ellipsoids([norm.norm for norm in norms])
    arrays |= context.collected.over_sets("sphere", partial(_statistics, norms, context.coordinates["site"]))
    arrays["n_fitted"], arrays["relative_spread_null"][..., NULL.index("fitted_gaussian")] = fitted_gaussians(
        context, norms
    )
    labels: dict[str, tuple[str, list[Any]]] = {
        "norm_kind": ("norm", [norm.which for norm in norms]),
        "norm_layer": ("norm", [norm.layer for norm in norms]),
    }
    return Result(arrays, coordinates, labels=labels)


def _ellipsoids(norms: Sequence[Norm]) -> Arrays:
    """Return the variables that depend on the parameters of the norm layers alone, besides the semi-axes."""
    scales = np.stack([norm.scale.astype(np.float64) for norm in norms])
    normals = np.stack([sphere_ellipsoids.plane_normal(norm) for norm in norms])
    overlap, permuted = sphere_ellipsoids.ellipsoid_overlaps(norms)
    return {
        "scale": scales,
        "plane_normal": normals,
        "scale_cosine": sphere_ellipsoids.scale_cosines(scales),
        "scale_correlation": sphere_ellipsoids.scale_correlations(scales),
        "ellipsoid_overlap": overlap,
        "ellipsoid_overlap_permuted": permuted,
        "plane_normal_cosine": np.abs(normals @ normals.T),
    }


def _statistics(norms: Sequence[NormLayer], sites: Sequence[str], passes: SetPasses) -> Arrays:
    """Return the variables that were measured on the prompts of one set, (position, norm)."""
    measured, bounds = passes["norms"], passes.first.extremes["norms"]
    # Extremes are infinite without prompts.
    ends = (np.where(np.isinf(end), np.nan, end) for end in (bounds.minimum, bounds.maximum))
    summary = np.stack([measured.mean, np.sqrt(measured.variance), *ends], axis=-1)
    # Each is (position, norm, summary).
    of = dict(zip(norm_quantities.QUANTITIES, np.moveaxis(summary, 2, 0), strict=True))
    mean, std, _, maximum = range(len(SUMMARY))
    both = np.stack([of["norm_before"], of["squared_norm_before"]], axis=2)
    d_model = norms[0].norm.scale.shape[0]
    is_measured = np.where(np.isnan(of["norm_before"][..., mean]), np.nan, 1.0)
    gaussian = np.array([sphere.gaussian_spread(d_model), sphere.gaussian_squared_spread(d_model)])
    null = is_measured[..., None] * gaussian
    return {
        "n_samples": passes.counts,
        "euclidean_norm": np.stack([of[f"norm_{stage}"] for stage in STAGES], axis=2),
        "euclidean_norm_expected": of["expected"][..., mean],
        "worst_deviation": of["deviation"][..., maximum],
        "mean_component": np.stack([of[f"component_{stage}"][..., mean] for stage in STAGES], axis=2),
        "ellipsoid_residual": of["residual"][..., maximum],
        "length_variance_share": _length_shares(passes, norms, sites),
        "relative_spread": both[..., std] / both[..., mean],
        "relative_spread_null": np.stack([null, np.full_like(null, np.nan)], axis=-1),  # the fitted one follows
    }


def _length_shares(passes: SetPasses, norms: Sequence[NormLayer], sites: Sequence[Any]) -> NDArray[np.float64]:
    """Return the share of variance of the norm in each input, (position, norm); NaN unless it is one captured site."""
    lengths = passes["norms"].m2[..., norm_quantities.QUANTITIES.index("norm_before")]
    shares = np.full(lengths.shape, np.nan)
    for index, norm in enumerate(norms):
        if not norm.reads or len(norm.sites) != 1:
            continue
        if norm.which == FINAL:
            m2 = passes["final"].m2
        else:
            m2 = passes["raw"].m2[list(sites).index(norm.sites[0]), :, norm.layer_index]
        shares[:, index] = sphere.length_variance_share(lengths[:, index], m2)
    return shares
