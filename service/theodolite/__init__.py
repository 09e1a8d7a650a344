"""Theodolite surveys the geometry of transformer language models."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from theodolite.client import Client
    from theodolite.run_reader import open_run

__all__ = ["Client", "__version__", "open_run"]

__version__ = "0.1.0"

# Imported at first use: most of the package needs neither pandas nor httpx.
__getattr__, _, _ = lazy_loader.attach(__name__, submod_attrs={"client": ["Client"], "run_reader": ["open_run"]})


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
