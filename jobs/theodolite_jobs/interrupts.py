"""Ctrl-C ends a job, also where a library that is hit by it swallows it, as some do in C."""

import signal
import threading
from types import FrameType

_was_interrupted = False


def remember_interrupts() -> None:
    """Remember Ctrl-C, so that `heed` can raise it again; who was started to ignore it, with `… &`, goes on so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _remember)


def heed() -> None:
    """Raise KeyboardInterrupt in the main thread where Ctrl-C was pressed, and somebody swallowed it."""
    if _was_interrupted and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


def _remember(number: int, frame: FrameType | None) -> None:
    global _was_interrupted
    _was_interrupted = True  # nothing that takes a lock: a second Ctrl-C may come right here
    signal.default_int_handler(number, frame)
