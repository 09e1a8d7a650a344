"""An in-memory cache of objects read from a store, bounded by bytes."""

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from cachetools import LRUCache

Value = TypeVar("Value")


class Cache:
    """A thread-safe LRU cache whose readers state the size of each value.

    A key must contain the version or digest of its object, so that an entry never goes stale.

    Args:
        limit_bytes: maximum sum of the sizes of all entries.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._entries: LRUCache[Hashable, tuple[Any, int]] = LRUCache(limit_bytes, getsizeof=lambda entry: entry[1])
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """The sum of the sizes of all entries."""
        with self._lock:
            return int(self._entries.currsize)

    def get(self, key: Hashable, read: Callable[[], Value], size: Callable[[Value], int]) -> Value:
        """Return the cached value, or read it and cache it.

        `read` runs outside the lock, so two threads may read the same value at the same time. `size` returns the
        value's size in bytes; a value larger than the limit is not cached.
        """
        with self._lock:
            entry = self._entries.get(key)
        if entry is not None:
            cached: Value = entry[0]
            return cached
        value = read()
        value_bytes = size(value)
        if value_bytes <= self.limit_bytes:
            with self._lock:
                self._entries[key] = value, value_bytes
        return value
