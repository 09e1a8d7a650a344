"""The computation of each result group, by the group's name."""

from typing import Any, Protocol

from theodolite_jobs.results import (
    basis,
    composition,
    contributions,
    curves,
    directions,
    effects,
    gram,
    heads,
    moments,
    permutations,
    rotary,
    routing,
    separation,
    sphere,
    travel,
    weights,
    words,
)
from theodolite_jobs.results.context import Context, Result


class Computation(Protocol):
    """The functions that the module of a result group provides."""

    def digest_inputs(self, context: Context, /) -> dict[str, Any]:
        """Return the contents of the group's digest; a change makes the stored group outdated."""

    def compute(self, context: Context, /) -> Result:
        """Return the computed group, whose digest is in `context.stale`."""


COMPUTATIONS: dict[str, Computation] = {
    "moments": moments,
    "curves": curves,
    "directions": directions,
    "sphere": sphere,
    "gram": gram,
    "separation": separation,
    "permutations": permutations,
    "travel": travel,
    "basis": basis,
    "heads": heads,
    "rotary": rotary,
    "contributions": contributions,
    "routing": routing,
    "composition": composition,
    "words": words,
    "weights": weights,
    "effects": effects,
}
