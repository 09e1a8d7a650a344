"""What a process counts while it fetches a model, before the first shard: converted tensors, downloaded megabytes."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Stage(NamedTuple):
    """A stage of the work, and how many of its steps are done."""

    title: str
    done: int
    total: int
    unit: str


Listener = Callable[[Stage | None], None]
"""Called after each step; with None when the stage is over."""

LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call the listener for all that is counted until the context ends."""
    token = LISTENER.set(listener)
    try:
        yield
    finally:
        LISTENER.reset(token)


def counted(items: Iterable[T], total: int, title: str, unit: str) -> Iterator[T]:
    """Yield the items, and tell the listener after each how many of the total are done."""
    tell = LISTENER.get() or (lambda _: None)
    try:
        for done, item in enumerate(items, 1):
            yield item
            tell(Stage(title, done, total, unit))
    finally:
        tell(None)
