"""The computation of each result group, by the group's name."""

from typing import Any, Protocol

from theodolite_jobs.results import (
    composition,
    curves,
    directions,
    gram,
    heads,
    moments,
    separation,
    sphere,
    travel,
    weights,
    words,
)
from theodolite_jobs.results.context import Context, Result


class Computation(Protocol):
    """What the module of a result group provides."""

    def rests_on(self, context: Context, /) -> dict[str, Any]:
        """Return what the group's digest covers; the group is computed again when that changes."""

    def compute(self, context: Context, /) -> Result:
        """Return the group; `context.stale` has its digest."""


COMPUTATIONS: dict[str, Computation] = {
    "moments": moments,
    "curves": curves,
    "directions": directions,
    "sphere": sphere,
    "gram": gram,
    "separation": separation,
    "travel": travel,
    "heads": heads,
    "composition": composition,
    "words": words,
    "weights": weights,
}
