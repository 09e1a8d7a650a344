"""The registry of result groups; all code that lists groups uses it.

Each group's record is in the module with the group's name. To add a group, add that module and list it in GROUPS.
"""

from theodolite.groups import (
    basis,
    composition,
    contributions,
    curves,
    directions,
    effects,
    gram,
    heads,
    moments,
    permutations,
    rotary,
    routing,
    separation,
    sphere,
    travel,
    weights,
    words,
)
from theodolite.groups.record import Group, Variable

__all__ = ["ANALYSES", "GROUPS", "READ_WHOLE", "SHOWN", "Group", "Variable", "table_owner"]

GROUPS: dict[str, Group] = {
    module.GROUP.name: module.GROUP
    for module in (
        moments,
        curves,
        directions,
        sphere,
        gram,
        separation,
        permutations,
        travel,
        basis,
        heads,
        rotary,
        contributions,
        routing,
        composition,
        words,
        weights,
        effects,
    )
}
"""All result groups by name, in the order of computation."""

ANALYSES = tuple(name for name, group in GROUPS.items() if group.is_analysis)
"""The groups that a spec can name under `analyses`."""

READ_WHOLE = tuple(name for name, group in GROUPS.items() if group.is_read_whole)
"""The groups whose arrays one call returns."""

SHOWN = tuple(
    group.name for group in sorted(GROUPS.values(), key=lambda group: group.order or 0) if group.order is not None
)
"""The groups with a section in the report and on the page, in that order."""


def table_owner(table: str) -> str | None:
    """Return the name of the result group that has a table, or None if no group has it."""
    return next((name for name, group in GROUPS.items() if table in group.tables), None)
