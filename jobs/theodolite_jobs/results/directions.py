"""The result group `directions`: unit vectors from negative to positive means, and cosines between layers."""

from functools import partial
from typing import Any

from theodolite.store.result_writer import drop_groups
from theodolite_jobs.results.arrays import into_all_positions
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.statistics.directions import direction, direction_cosines


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("directions", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from the first pass over the activations, and drop `heads`, which depends on directions."""
    drop_groups(context.run, ["heads"])
    contrasts = context.collected.contrasts
    over_contrasts = partial(into_all_positions, contrasts, len(context.coordinates["position"]))
    sides = [(contrast.positive.moments["raw"].mean, contrast.negative.moments["raw"].mean) for contrast in contrasts]
    units = [direction(positive, negative) for positive, negative in sides]
    cosines = [direction_cosines(unit) for unit in units]
    arrays = {"direction": over_contrasts(units), "direction_cosine": over_contrasts(cosines)}
    return Result(arrays, context.coordinates, {"contrasts": context.contrasts})
