"""A bound on what is in memory at the same time, in numbers and in bytes."""

import threading


class Budget:
    """A number of items and of bytes that threads reserve and release."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        """Take the maximum number of items and of their bytes; a single item may have more bytes."""
        self._max_items, self._max_bytes = max_items, max_bytes
        self._items, self._bytes = 0, 0
        self._changed = threading.Condition()

    def reserve(self, n_bytes: int) -> None:
        """Wait until an item of so many bytes fits, and reserve it."""
        with self._changed:
            self._changed.wait_for(lambda: self._fits(n_bytes))
            self._items, self._bytes = self._items + 1, self._bytes + n_bytes

    def release(self, n_bytes: int) -> None:
        """Release an item of so many bytes."""
        with self._changed:
            self._items, self._bytes = self._items - 1, self._bytes - n_bytes
            self._changed.notify_all()

    def _fits(self, n_bytes: int) -> bool:
        return self._items == 0 or (self._items < self._max_items and self._bytes + n_bytes <= self._max_bytes)
