"""Theodolite surveys the geometry of transformer language models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from theodolite.version import __version__

if TYPE_CHECKING:
    from theodolite.client import Client
    from theodolite.run_reader import open_run, runs

__all__ = ["Client", "__version__", "open_run", "runs"]

# Not lazy_loader: a machine that lends its GPU imports this package from a checkout, and has no such package.
_MODULES = {"Client": "theodolite.client", "open_run": "theodolite.run_reader", "runs": "theodolite.run_reader"}


def __getattr__(name: str) -> Any:
    """Import a reader when it is first used: most of the package needs neither pandas nor httpx."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
