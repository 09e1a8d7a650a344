"""Wait while the disk of a store is full."""

import time
from collections.abc import Callable

from theodolite.errors import StoreError

_LONGEST_PAUSE = 600.0  # seconds


def is_full(error: StoreError) -> bool:
    """Return whether a disk without space caused an error of the store."""
    return "No space left" in str(error)


def repeat_while_disk_is_full(work: Callable[[], None], say: Callable[[str], None], pause: float = 10.0) -> None:
    """Do work; whenever the disk is full, pause and begin the work again.

    The pauses grow, because free space says little: other processes use the disk too.

    Args:
        work: writes into the store; when it begins again, it skips what it has finished.
        say: prints a message for each pause.
        pause: seconds of the first pause; each later one is twice as long, up to ten minutes.
    """
    while True:
        try:
            return work()
        except StoreError as error:
            if not is_full(error):
                raise
            say(f"the store is full, and the statistics try again in {pause:.0f} s: {error}")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
