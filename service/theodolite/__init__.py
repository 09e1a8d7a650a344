"""Theodolite surveys the geometry of transformer language models."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from theodolite.client import Client
    from theodolite.run_reader import open_run

__all__ = ["Client", "__version__", "open_run"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import what reads results when it is first asked for: most of the package needs none of it."""
    if name == "Client":
        from theodolite.client import Client

        return Client
    if name == "open_run":
        from theodolite.run_reader import open_run

        return open_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
