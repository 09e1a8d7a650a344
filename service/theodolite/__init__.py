"""Theodolite surveys the geometry of transformer language models."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from theodolite.version import __version__

if TYPE_CHECKING:
    from theodolite.client import Client
    from theodolite.run_reader import open_run, runs
    from theodolite.stored_runs import compare, label, remove, verify
    from theodolite.vectors import export_vector, load_vector
    from theodolite_jobs.python import analyse, heads, plan, survey

# Not lazy_loader: a machine that lends its GPU imports this package from a checkout, and has no such package.
_MODULES = {
    "theodolite.client": ["Client"],
    "theodolite.run_reader": ["open_run", "runs"],
    "theodolite.stored_runs": ["compare", "label", "remove", "verify"],
    "theodolite.vectors": ["export_vector", "load_vector"],
    "theodolite_jobs.python": ["analyse", "heads", "plan", "survey"],
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Client",
    "__version__",
    "analyse",
    "compare",
    "export_vector",
    "heads",
    "label",
    "load_vector",
    "open_run",
    "plan",
    "remove",
    "runs",
    "survey",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a function when it is first used: most of the package needs neither pandas nor httpx, nor torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _HOMES[name].startswith("theodolite_jobs") and not find_spec("ray"):
        raise ImportError(f"theodolite.{name} needs packages that are not installed: pip install 'theodolite[jobs]'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
