"""The sections of a run, by result group: `theodolite/sections/NAME.py` makes those of the group NAME."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module
from typing import Any

import plotly.graph_objects as go

from theodolite.errors import FigureNotFoundError, ResultsNotFoundError
from theodolite.groups import GROUPS, SHOWN
from theodolite.sections.parts import Figure, Section
from theodolite.store.manifest import finished_groups
from theodolite.store.runs import Run

SECTIONS: dict[str, Callable[[Run], list[Section]]] = {
    name: import_module(f"theodolite.sections.{name}").sections for name in SHOWN
}
"""What makes the sections of each result group, in the order of the report and the page."""


def sections_of(run: Run, group: str) -> list[Section]:
    """Return the sections of one result group; none where the run lacks the group.

    Raises:
        ResultsNotFoundError: a run with prompts has no curves yet; every analysed run has them.
        RunDamagedError: results cannot be read.
    """
    return SECTIONS[group](run) if group in sections_there(run) else []


def sections_there(run: Run) -> list[str]:
    """Return the run's result groups that have something to show, in the order of the report and the page."""
    finished = finished_groups(run)
    return [group for group in SECTIONS if (run.record.sets if GROUPS[group].always else group in finished)]


def section_items(run: Run, group: str) -> list[dict[str, Any]]:
    """Return the sections of one result group in plain types, with figures by name; raises also as `sections_of` does.

    Raises:
        ResultsNotFoundError: there is no such section; the message names those that exist.
    """
    if group not in SECTIONS:
        raise ResultsNotFoundError(f"there is no section {group!r}; there are {', '.join(SECTIONS)}")
    return [_plain(section) for section in sections_of(run, group)]


def _plain(section: Section) -> dict[str, Any]:
    def named(figures: list[Figure]) -> list[dict[str, str]]:
        return [{"name": one.name, "caption": one.caption, "circuit": one.circuit} for one in figures]

    return {
        "title": section.title,
        "facts": section.facts,
        "notes": section.notes,
        "figures": named(section.figures),
        "maps": named(section.maps),
        "tables": [asdict(table) for table in section.tables],
    }


def figures_of(sections: list[Section]) -> Iterator[Figure]:
    """Yield the figures and maps of sections."""
    for section in sections:
        yield from section.figures
        yield from section.maps


def draw_figure(run: Run, name: str) -> go.Figure:
    """Draw one figure by its name.

    Raises:
        FigureNotFoundError: the run has none of that name; the message names those of its group, or the groups.
    """
    group = name.partition(".")[0]
    found = {figure.name: figure for figure in figures_of(sections_of(run, group) if group in SECTIONS else [])}
    if name not in found:
        known = ", ".join(found) or f"figures of {', '.join(name for name in SECTIONS if name in finished_groups(run))}"
        raise FigureNotFoundError(f"{run.id} has no figure {name!r}; it has {known}")
    return found[name].draw()
