"""Silence transformers, and convert the errors of libraries into one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from theodolite.errors import ModelError, TheodoliteError


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and warnings, because programs read the output."""
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
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
