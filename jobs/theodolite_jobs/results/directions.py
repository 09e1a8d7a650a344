"""The result group `directions`: unit vectors from negative to positive means, and cosines between layers."""

from typing import Any

from theodolite.store.result_writer import drop_groups
from theodolite_jobs.results.arrays import Placer
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.statistics.directions import direction, direction_cosines


def rests_on(context: Context) -> dict[str, Any]:
    """Return what the group's digest covers."""
    return context.rests_on_captured("directions", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from the first pass over the activations; `heads`, which uses directions, is outdated then."""
    drop_groups(context.run, ["heads"])
    contrasts = context.collected.contrasts
    place = Placer(contrasts, len(context.coordinates["position"]))
    sides = [(contrast.positive.moments["raw"].mean, contrast.negative.moments["raw"].mean) for contrast in contrasts]
    units = [direction(positive, negative) for positive, negative in sides]
    arrays = {"direction": place(units), "direction_cosine": place([direction_cosines(unit) for unit in units])}
    return Result(arrays, context.coordinates, {"contrasts": context.contrasts})
