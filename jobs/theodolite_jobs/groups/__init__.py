"""The computation of each analysis, in the folder with its name.

`compute.py` reads what the analysis needs and returns its arrays and tables; `formulas.py` is its mathematics, pure and
in float64. The folder of the same name in `theodolite.groups` declares the arrays and shows them.
"""

from importlib import import_module
from typing import Any, Protocol, cast

from theodolite_jobs.results.context import Context, Result


class Computation(Protocol):
    """The functions in `compute.py` of a group."""

    def digest_inputs(self, context: Context, /) -> dict[str, Any]:
        """Return the contents of the group's digest; a change makes the stored group outdated."""

    def compute(self, context: Context, /) -> Result:
        """Return the computed group, whose digest is in `context.stale`."""


def computation(name: str) -> Computation:
    """Return the computation of an analysis."""
    return cast(Computation, import_module(f"{__name__}.{name}.compute"))
