"""What a long-lived reader keeps of what it has read: bounded by bytes, the longest unused goes first."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Value = TypeVar("Value")


class Kept:
    """Values by what they were read from, which must name their version too: nothing is ever asked whether it is old.

    Args:
        limit_bytes: how much is kept, by the sizes that readers give.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], Value], size: Callable[[Value], int]) -> Value:
        """Return a value that is kept, or read it and keep it; one larger than the limit is not kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                found: Value = self._values[key][0]
                return found
        value = read()  # outside the lock: two readers may both read, and the same
        self._put(key, value, size(value))
        return value

    def _put(self, key: Hashable, value: Any, size: int) -> None:
        if size > self.limit_bytes:
            return
        with self._lock:
            if key in self._values:
                return
            self._values[key] = value, size
            self.held_bytes += size
            while self.held_bytes > self.limit_bytes:
                _, (_, freed) = self._values.popitem(last=False)
                self.held_bytes -= freed
