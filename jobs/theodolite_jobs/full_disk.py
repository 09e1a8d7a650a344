"""Wait while the disk of a store is full."""

import time
from collections.abc import Callable

from theodolite.errors import StoreError
from theodolite.store.objects import free_bytes


def is_full(error: StoreError) -> bool:
    """Return whether a disk without space caused an error of the store."""
    return "No space left" in str(error)


def repeat_when_there_is_space(
    work: Callable[[], None], store: str, say: Callable[[str], None], pause: float = 10.0
) -> None:
    """Do work; whenever the disk is full, wait until it has more space, and begin the work again.

    Args:
        work: writes into the store; when it begins again, it skips what it has finished.
        store: URL of the store.
        say: prints a message for each wait.
        pause: seconds between two looks at the disk.
    """
    while True:
        try:
            return work()
        except StoreError as error:
            free = free_bytes(store)
            if not is_full(error) or free is None:
                raise
            say(f"the store is full, and the statistics go on when there is more space: {error}")
        while (free_bytes(store) or 0) <= free:
            time.sleep(pause)
