"""Values that `make test-nightly` alone tests: `make test` has others of the same or a similar kind."""

from collections.abc import Iterable
from typing import Any

import pytest


def at_night(values: Iterable[Any]) -> list[Any]:
    """Return the values of a parametrisation, marked; a tuple is the values of several arguments."""
    rows = (value if isinstance(value, tuple) else (value,) for value in values)
    return [pytest.param(*row, marks=pytest.mark.nightly) for row in rows]


def one_in(step: int, values: Iterable[Any]) -> list[Any]:
    """Return all values, of which every `step`-th one has no mark."""
    return [value if index % step == 0 else at_night([value])[0] for index, value in enumerate(values)]
