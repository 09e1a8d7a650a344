"""One configuration of each kind: a property of the engine depends on the kind of a model, and not on its family.

`test_every_family.py` tests what each family can get wrong by itself.
"""

from typing import Any

from support.tiny_configs import CONFIGS

from theodolite_jobs.models.families import known_anatomy


def _first_of_each(name: str) -> list[str]:
    """Return the first family with each distinct value of a field of the anatomy."""
    first: dict[str, Any] = {}
    for family, config in CONFIGS.items():
        first.setdefault(repr(getattr(known_anatomy(config), name)), family)
    return list(first.values())


FILES = _first_of_each("files")
"""A family of each layout of weight files."""

TAPS = _first_of_each("taps")
"""A family of each set of places where activations are read."""
