"""Share the service among its callers: how many bodies of each are held in memory, and how many responses computed."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from theodolite.api.problems import Problem

THREADS = 4
"""Number of threads that compute responses: several, since a store may be slow; more would wait for the interpreter."""


class BodyPlaces:
    """Limits how many bodies are in memory at the same time: of one caller, of one address, and of all.

    A request without a place is refused at once. In a queue, it would wait behind the slow bodies of others.

    Args:
        of_caller: maximum number of bodies of one caller, a bearer token.
        of_address: maximum number of bodies from one address of clients.
        in_all: maximum number of bodies.
    """

    def __init__(self, of_caller: int, of_address: int, in_all: int) -> None:
        self._limits = (of_caller, of_address, in_all)
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, caller: str, address: str) -> Iterator[None]:
        """Hold a place for a body; raises Problem 429 if there is none."""
        owners = (f"of caller {caller}", f"from address {address}", "in all")
        for owner, limit in zip(owners, self._limits, strict=True):
            if self._taken[owner] >= limit:
                detail = f"the service reads {limit} bodies {owner}, the maximum; send this one when another has ended"
                raise Problem(429, "body-limit", detail, {"Retry-After": "1"})
        self._taken.update(owners)
        try:
            yield
        finally:
            self._taken.subtract(owners)
            self._taken += Counter()  # without the callers that have no body


class Turns:
    """Limits how many responses are computed for one caller at the same time; its other requests wait.

    Args:
        of_caller: number of responses; less than there are threads, so that a thread is left for other callers.
    """

    def __init__(self, of_caller: int) -> None:
        self._of_caller = of_caller
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """The turns of each caller that has a request."""

    async def take(self, caller: str) -> asyncio.Semaphore:
        """Wait until a caller has a turn, and return the semaphore that must be released after it."""
        turns = self._turns.setdefault(caller, asyncio.Semaphore(self._of_caller))
        await turns.acquire()
        return turns
