"""Simulations call a function thousands of times, and checking the shapes of its arrays takes most of their time."""

from collections.abc import Iterator
from contextlib import contextmanager

from jaxtyping import config


@contextmanager
def unchecked() -> Iterator[None]:
    """Check no shapes, in a context or a decorated function; other tests check those of the same functions."""
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", False)
