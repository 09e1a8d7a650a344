"""The result group `directions`: unit vectors from negative to positive means, and cosines between layers."""

from typing import Any

from theodolite.store.result_writer import drop_groups
from theodolite_jobs.passes.collect import Arrays, ContrastPasses
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.statistics.directions import direction, direction_cosines


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("directions", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from the first pass over the activations, and drop `heads`, which depends on directions."""
    drop_groups(context.run, ["heads"])
    arrays = context.collected.over_contrasts("directions", _directions)
    return Result(arrays, context.coordinates, {"contrasts": context.contrasts})


def _directions(passes: ContrastPasses) -> Arrays:
    units = direction(passes.positive.moments["raw"].mean, passes.negative.moments["raw"].mean)
    return {"direction": units, "direction_cosine": direction_cosines(units)}
