"""Limit the requests of each caller."""

import math
import time

from theodolite.api.problems import Problem

_MINUTE = 60.0


class RateLimit:
    """A token bucket for each caller: it holds one minute's requests, and fills at the same rate.

    A bucket is stored as the time at which it is full again, and removed after this time.

    Args:
        per_minute: number of requests of one caller in a minute.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute, self.clock = per_minute, time.monotonic
        self._full_at: dict[str, float] = {}  # the caller of the last accepted request comes last

    def count(self, caller: str) -> None:
        """Count a request; raises Problem 429 if the caller's bucket has no room for it."""
        now = self.clock()
        self._remove_full(now)
        full_at = max(self._full_at.get(caller, now), now) + _MINUTE / self.per_minute
        seconds = full_at - now - _MINUTE
        if seconds > 1e-6:  # floats round
            wait = math.ceil(seconds)
            detail = f"this caller may send {self.per_minute} requests in a minute; wait {wait} s"
            raise Problem(429, "rate-limit", detail, {"Retry-After": str(wait)})
        self._full_at.pop(caller, None)
        self._full_at[caller] = full_at

    def _remove_full(self, now: float) -> None:
        """Remove the buckets that are full, oldest first, so that the memory does not grow with the callers."""
        while self._full_at and next(iter(self._full_at.values())) <= now:
            del self._full_at[next(iter(self._full_at))]
