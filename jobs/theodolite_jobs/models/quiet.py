"""Silence transformers, and convert the errors of libraries into one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from theodolite.errors import ModelError, TheodoliteError


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and warnings, because programs read the output.

    The level is that of the handlers, because a change of a logger's level clears the caches of all loggers, in 2 ms.
    """
    from transformers.utils import logging

    levels = {handler: handler.level for handler in logging.get_logger().handlers}
    bar = logging.is_progress_bar_enabled()
    for handler in levels:
        handler.setLevel("ERROR")
    logging.disable_progress_bar()
    try:
        yield
    finally:
        for handler, level in levels.items():
            handler.setLevel(level)
        if bar:
            logging.enable_progress_bar()


@contextmanager
def plain_errors(action: str) -> Iterator[None]:
    """Silence transformers, and convert any exception into a ModelError of one line that names the failed action."""
    try:
        with quiet_transformers():
            yield
    except TheodoliteError:
        raise
    # Inconsistent sizes, broken files and full disks: each library raises its own exception types.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ModelError(f"cannot {action}: {reason}") from error
