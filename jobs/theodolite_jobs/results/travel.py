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
from theodolite_jobs.results.arrays import Placer, set_counts
from theodolite_jobs.results.context import Arrays, Context, Result
from theodolite_jobs.statistics.travel import PATH, STEPS
from theodolite_jobs.statistics.travel_growth import growth_fits

_GROWING = {"norm_mean": "moments", "variance_mean": "curves", "variance_max": "curves"}
"""The quantities that are fitted along depth, and the group that each is of."""


def rests_on(context: Context) -> dict[str, Any]:
    """Return what the group's digest covers: the fits are of two other groups, so their rules count too."""
    fitted = {name: GROUPS[name].version for name in GROUPS["travel"].requires}
    return context.rests_on_captured("travel", fitted)


def compute(context: Context) -> Result:
    """Return the group from the first pass over the activations, and the fits from `moments` and `curves`."""
    sets, n_positions = context.collected.sets, len(context.coordinates["position"])
    place = Placer(sets, n_positions)
    arrays: Arrays = {"n_samples": set_counts(sets, n_positions)}
    for kind, names in (("steps", STEPS), ("path", PATH)):
        for column, name in enumerate(names):
            arrays[name] = place([subject[kind].mean[..., column] for subject in sets], axis=0)
            arrays[f"{name}_std"] = place([np.sqrt(subject[kind].variance[..., column]) for subject in sets], axis=0)
    growth = growth_table({name: context.group(name) for name in GROUPS["travel"].requires})
    return Result(arrays, context.coordinates, tables={"growth": encode_table(growth)})


def growth_table(groups: dict[str, xr.Dataset]) -> pd.DataFrame:
    """Return both laws fitted to norms and variances along depth: a row for each quantity, set, site, position and law.

    Depth is in blocks: what enters block l is at l, what is between its attention and MLP at l + ½.

    Args:
        groups: the result groups `moments` and `curves`.
    """
    rows = [row for name, group in _GROWING.items() for row in _fits(name, groups[group][name])]
    columns = ["quantity", "set", "site", "position", "law", "intercept", "slope", "r_squared", "aic", "n"]
    return pd.DataFrame(rows, columns=columns).astype({"n": "int64", "position": "int64"})


def _fits(name: str, values: xr.DataArray) -> Iterator[dict[str, Any]]:
    for (of_set, site, position), curve in values.stack(curve=("set", "site", "position")).groupby("curve"):
        along = np.array([depth(Site(site), layer) / 2 for layer in values["layer"].values.tolist()])
        for fit in growth_fits(along, curve.values.reshape(-1).astype(np.float64)):
            yield {"quantity": name, "set": of_set, "site": site, "position": int(position), **asdict(fit)}
