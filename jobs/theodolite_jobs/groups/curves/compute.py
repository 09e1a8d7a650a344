"""The analysis `curves`: cosine between means, variances and norms along depth, raw and on the sphere."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite.bands import simultaneous_quantile
from theodolite.groups.curves.record import SAMPLE_SIZES
from theodolite.groups.schema import SPACES
from theodolite_jobs.groups.curves.formulas import (
    cosine_curve,
    cosine_quantile,
    cosine_terms,
    degrees_of_freedom,
    top_share,
    variance_curves,
)
from theodolite_jobs.groups.curves.formulas_sample_size import expected_cosines, squared_covariance_trace
from theodolite_jobs.passes.collect import Arrays, ContrastPasses, SetPasses
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.results.locations import locations
from theodolite_jobs.statistics.estimates import Estimate
from theodolite_jobs.statistics.scatter import Groups


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("curves", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from both passes over the activations."""
    cosines = partial(_cosines, sites=context.coordinates["site"])
    arrays = context.collected.over_contrasts("curves", cosines)
    arrays |= context.collected.over_sets("curves", _variances)
    return Result(arrays, context.coordinates, {"contrasts": context.contrasts})


def _cosines(passes: ContrastPasses, sites: Sequence[str]) -> Arrays:
    assert passes.positive.folds is not None
    assert passes.negative.folds is not None
    squares = squared_covariance_trace(passes.positive.folds), squared_covariance_trace(passes.negative.folds)
    in_spaces = [_cosines_in(space, passes, sites) for space in SPACES]
    arrays = {name: np.stack([one[name] for one in in_spaces], axis=3) for name in in_spaces[0]}
    # Publications scale no activations.
    known, kind = _known(passes, "raw")
    expected = expected_cosines(SAMPLE_SIZES, **known, **kind, squares=squares)
    return {**passes.counts, **arrays, "cosine_of_means_expected": expected.with_band()}


def _known(passes: ContrastPasses, space: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arguments of `cosine_terms`, and those that `cosine_curve` and `expected_cosines` take besides."""
    assert passes.second is not None
    positive, negative = passes.positive.moments[space], passes.negative.moments[space]
    known = {
        "a": positive.mean,
        "b": negative.mean,
        "trace_p": positive.variance.sum(axis=-1),
        "trace_q": negative.variance.sum(axis=-1),
        "n_p": positive.count,
        "n_q": negative.count,
        "paired": passes.paired,
    }
    return known, {"sums": passes.second.scatter[space], "groups": passes.groups(space)}


def _cosines_in(space: str, passes: ContrastPasses, sites: Sequence[str]) -> Arrays:
    """Return the statistics of a contrast in one space, (site, position, layer, …)."""
    assert passes.second is not None
    known, kind = _known(passes, space)
    curve, groups = cosine_curve(**known, **kind), kind["groups"]
    p, q = (np.concatenate(side) for side in passes.second.dots[space])
    debiased = curve.debiased.value
    terms = cosine_terms(debiased, **known, dots_p=p, dots_q=q)
    half = _half_band(curve.debiased, terms, groups)
    free = min(degrees_of_freedom(groups), len(p) - 1, len(q) - 1)
    return {
        "cosine_of_means": curve.plain,
        "cosine_of_means_debiased": curve.debiased.with_band(Estimate(debiased, debiased - half, debiased + half)),
        "cosine_of_means_debiased_location": locations(sites, -debiased, terms, free),
        "difference_norm": curve.distance,
    }


def _half_band(cosine: Estimate, terms: NDArray[np.float64], groups: Groups | None) -> NDArray[np.float64]:
    """Return half the width of the band over all sites and layers of each position, (site, position, layer).

    Args:
        cosine: the debiased cosine, (site, position, layer).
        terms: the terms of the cosine's error, (row, site, position, layer).
        groups: what is known of the samples.
    """
    errors = (cosine.high - cosine.value) / cosine_quantile(groups)
    free = degrees_of_freedom(groups)
    quantiles = [simultaneous_quantile(one, degrees_of_freedom=free) for one in np.moveaxis(terms, 2, 0)]
    return np.asarray(errors * np.array(quantiles)[:, None])


def _variances(passes: SetPasses) -> Arrays:
    in_spaces = []
    for space in SPACES:
        variance = passes[space].variance
        mean, largest, feature = variance_curves(variance)
        in_spaces.append(
            {
                "variance_mean": mean,
                "variance_max": largest,
                "variance_max_feature": feature,
                "variance_top3_share": top_share(variance, 3),
                "norm_of_mean": np.linalg.norm(passes[space].mean, axis=-1),
            }
        )
    return {name: np.stack([one[name] for one in in_spaces], axis=-1) for name in in_spaces[0]}
