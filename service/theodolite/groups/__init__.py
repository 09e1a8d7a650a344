"""The register of result groups. Whatever lists groups takes them from here.

A group's record stands in the file of its name; adding a group is adding that file and one line here.
"""

from theodolite.groups import (
    composition,
    curves,
    directions,
    gram,
    heads,
    moments,
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
        travel,
        heads,
        composition,
        words,
        weights,
    )
}
"""Every result group by name, in the order in which they are computed."""

ANALYSES = tuple(name for name, group in GROUPS.items() if group.is_analysis)
"""The groups that a spec can name under `analyses`."""

READ_WHOLE = tuple(name for name, group in GROUPS.items() if group.is_read_whole)
"""The groups whose arrays readers get in one call."""

SHOWN = tuple(
    group.name for group in sorted(GROUPS.values(), key=lambda group: group.order or 0) if group.order is not None
)
"""The groups that have something to show, in the order of the report and the page."""


def table_owner(table: str) -> str | None:
    """Return the result group that a table belongs to, or None where no group has such a table."""
    return next((name for name, group in GROUPS.items() if table in group.tables), None)
