"""The analysis `travel`: steps of attention and MLP through the blocks; its table `growth`: fits along depth."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from theodolite.groups import GROUPS
from theodolite.groups.travel.record import GROWTH
from theodolite.sites import HALF_BLOCKS, Site, depth
from theodolite.store.tables import encode_table
from theodolite_jobs.groups.travel.formulas_growth import growth_fits
from theodolite_jobs.groups.travel.formulas_nulls import arc_ratio_at_right_angles, path_ratio_at_right_angles
from theodolite_jobs.groups.travel.formulas_variance import centred_cosines, common_share, variance_budget
from theodolite_jobs.groups.travel.formulas_verdict import comparison, verdict
from theodolite_jobs.groups.travel.nulls import permuted_cosines
from theodolite_jobs.passes.collect import Arrays, SetPasses
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.statistics.moments import Moments
from theodolite_jobs.statistics.ratio import ratio
from theodolite_jobs.statistics.steps import PATH, RATIOS, STEPS

Floats = NDArray[np.float64]

_GROWING = {"norm_mean": "moments", "variance_mean": "curves", "variance_max": "curves"}
"""The quantities that are fitted along depth, and the group of each."""


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest, with the versions of the two groups whose quantities are fitted."""
    fitted = {name: GROUPS[name].version for name in GROUPS["travel"].requires}
    return context.digest_inputs("travel", fitted, samples=context.spec.gram.samples)


def compute(context: Context) -> Result:
    """Return the group from the first pass over the activations, and the fits from `moments` and `curves`.

    Raises:
        RunDamagedError: a shard differs from its commit record, or contains a number that is not finite.
    """
    arrays = context.collected.over_sets("travel", _statistics) | permuted_cosines(context)
    growth = growth_table({"moments": context.group("moments"), "curves": context.group("curves").sel(space="raw")})
    attributes = {"options": context.spec.gram.model_dump()}
    return Result(arrays, context.coordinates, attributes, tables={"growth": encode_table(growth)})


def _statistics(passes: SetPasses) -> Arrays:
    steps, path = (_summary(passes[kind]) for kind in ("steps", "path"))
    arrays: Arrays = {"n_samples": passes.counts}
    arrays |= {name: steps[:, :, columns] for name, columns in STEPS.items()}
    arrays |= {name: path[:, column] for column, name in enumerate(PATH)}
    for column, name in enumerate(RATIOS, start=len(PATH)):
        arrays[name] = np.stack([arrays[name], path[:, column]], axis=1)
    # The steps of attention and of the MLP have only centred cosines.
    arrays["step_cosine"] = np.concatenate([arrays["step_cosine"], np.full_like(arrays["step_cosine"], np.nan)], axis=2)
    lengths, arcs = (passes["steps"].mean[..., STEPS[name]][..., -1] for name in ("step_norm", "arc"))
    m2 = passes["steps"].m2[..., STEPS["step_norm"]][..., -1]
    mean_squares = lengths**2 + ratio(m2, np.float64(passes["steps"].count))
    for name, null, of_blocks in (
        ("path_ratio", path_ratio_at_right_angles, mean_squares),
        ("arc_ratio", arc_ratio_at_right_angles, arcs),
    ):  # where not all layers were captured, the path is not known
        both = np.stack([null(of_blocks), null(of_blocks[..., :-1])], axis=-1)[..., None]
        arrays[name] = np.append(arrays[name], np.where(np.isfinite(arrays[name][..., :1]), both, np.nan), axis=-1)
    products = passes.first.products
    assert products is not None
    arrays |= variance_budget(products)
    return {**arrays, "step_cosine_centred": centred_cosines(products), "step_common_share": common_share(products)}


def _summary(moments: Moments) -> Floats:
    """Return mean and standard deviation along a last axis."""
    return np.stack([moments.mean, np.sqrt(moments.variance)], axis=-1)


def growth_table(groups: dict[str, xr.Dataset]) -> pd.DataFrame:
    """Return fits of both laws to norms and variances: a row for each quantity, set, position, site and law.

    Depth is in blocks: the input of block l is at l, the stream between its attention and its MLP at l + ½. The columns
    of the comparison have one value for both laws of a site, and `verdict` has one value for all sites.

    Args:
        groups: the results of `moments` and `curves`.
    """
    rows = [row for name, group in _GROWING.items() for row in _rows(name, groups[group][name])]
    return pd.DataFrame(rows, columns=GROWTH.names).astype({"n": "int64"})


def _rows(name: str, values: xr.DataArray) -> Iterator[dict[str, Any]]:
    labels = (values[dim].values.tolist() for dim in ("set", "position"))
    for prompt_set, position in product(*labels):
        curves = values.sel(set=prompt_set, position=position)
        points = {site: _points(curves, site) for site in curves["site"].values.tolist()}
        comparisons = {site: comparison(*depths_and_values) for site, depths_and_values in points.items()}
        decision = verdict([comparisons[site] for site in HALF_BLOCKS if site in comparisons])
        for site, (depths, y) in points.items():
            of = {"quantity": name, "set": prompt_set, "site": site, "position": position}
            for fit in growth_fits(depths, y):
                yield {**of, **asdict(fit), **asdict(comparisons[site]), "verdict": decision}


def _points(curves: xr.DataArray, site: str) -> tuple[Floats, Floats]:
    """Return the depths of a site's layers in blocks, and the values there."""
    depths = np.array([depth(Site(site), layer) / 2 for layer in curves["layer"].values.tolist()])
    return depths, curves.sel(site=site).values.astype(np.float64)
