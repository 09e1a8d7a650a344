"""The registry of analyses; all code that lists analyses uses it.

An analysis is a folder: its arrays in `record.py`, its figures in `figures.py`, and its sentences in `sections.py`, if
the report and the page show it. The folder of the same name in `theodolite_jobs.groups` has its formulas and
computation.
"""

from importlib import import_module
from pkgutil import iter_modules

from theodolite.groups.schema import CHAPTERS, Group, Variable

__all__ = ["ANALYSES", "GROUPS", "SHOWN", "Group", "Variable", "table_owner"]


def _records() -> list[Group]:
    folders = [module.name for module in iter_modules(__path__, f"{__name__}.") if module.ispkg]
    return [import_module(f"{folder}.record").GROUP for folder in folders]


GROUPS: dict[str, Group] = {group.name: group for group in sorted(_records(), key=lambda group: group.order)}
"""All analyses by name, in the order of computation and of the report."""

ANALYSES = tuple(name for name, group in GROUPS.items() if group.is_requestable)
"""The names of the analyses that a spec can list under `analyses`."""

SHOWN = tuple(name for chapter in CHAPTERS for name, group in GROUPS.items() if group.chapter == chapter)
"""The names of the analyses with sections, in the order of the report and the page: by chapter."""


def table_owner(table: str) -> str | None:
    """Return the name of the analysis that has a table, or None if none has it."""
    return next((name for name, group in GROUPS.items() if any(one.name == table for one in group.tables)), None)
