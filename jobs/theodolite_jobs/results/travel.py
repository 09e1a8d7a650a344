"""The result group `travel`: steps of attention and MLP through the blocks; its table `growth`: fits along depth."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from theodolite.groups import GROUPS
from theodolite.sites import Site, depth
from theodolite.store.tables import encode_table
from theodolite_jobs.passes.collect import Arrays, SetPasses
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.statistics.travel import PATH, STEPS
from theodolite_jobs.statistics.travel_growth import growth_fits
from theodolite_jobs.statistics.travel_variance import centred_cosines, common_share, variance_budget

_GROWING = {"norm_mean": "moments", "variance_mean": "curves", "variance_max": "curves"}
"""The quantities that are fitted along depth, and the group of each."""


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest, with the versions of the two groups whose quantities are fitted."""
    fitted = {name: GROUPS[name].version for name in GROUPS["travel"].requires}
    return context.digest_inputs("travel", fitted)


def compute(context: Context) -> Result:
    """Return the group from the first pass over the activations, and the fits from `moments` and `curves`."""
    arrays = context.collected.over_sets("travel", _statistics)
    growth = growth_table({name: context.group(name) for name in GROUPS["travel"].requires})
    return Result(arrays, context.coordinates, tables={"growth": encode_table(growth)})


def _statistics(passes: SetPasses) -> Arrays:
    arrays: Arrays = {"n_samples": passes.counts}
    for kind, names in (("steps", STEPS), ("path", PATH)):
        for column, name in enumerate(names):
            arrays[name] = passes[kind].mean[..., column]
            arrays[f"{name}_std"] = np.sqrt(passes[kind].variance[..., column])
    products = passes.first.products
    assert products is not None
    arrays |= variance_budget(products) | centred_cosines(products)
    return {**arrays, "step_common_share": common_share(products)}


def growth_table(groups: dict[str, xr.Dataset]) -> pd.DataFrame:
    """Return fits of both laws to norms and variances: a row for each quantity, set, site, position and law.

    Depth is in blocks: the input of block l is at l, the stream between its attention and its MLP at l + ½.

    Args:
        groups: the result groups `moments` and `curves`.
    """
    rows = [row for name, group in _GROWING.items() for row in _fits(name, groups[group][name])]
    columns = ["quantity", "set", "site", "position", "law", "intercept", "slope", "r_squared", "aic", "n"]
    return pd.DataFrame(rows, columns=columns).astype({"n": "int64", "position": "int64"})


def _fits(name: str, values: xr.DataArray) -> Iterator[dict[str, Any]]:
    for (prompt_set, site, position), curve in values.stack(curve=("set", "site", "position")).groupby("curve"):
        depths = np.array([depth(Site(site), layer) / 2 for layer in values["layer"].values.tolist()])
        for fit in growth_fits(depths, curve.values.reshape(-1).astype(np.float64)):
            yield {"quantity": name, "set": prompt_set, "site": site, "position": int(position), **asdict(fit)}
