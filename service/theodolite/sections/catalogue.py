"""The sections of a run, by result group: `theodolite/sections/NAME.py` makes those of the group NAME."""

from collections.abc import Callable, Iterator
from importlib import import_module

import plotly.graph_objects as go

from theodolite.errors import FigureNotFoundError
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
        RunDamagedError: results cannot be read, or a run with prompts has no curves yet, which always exist.
    """
    return SECTIONS[group](run) if group in sections_there(run) else []


def sections_there(run: Run) -> list[str]:
    """Return the run's result groups that have something to show, in the order of the report and the page."""
    finished = finished_groups(run)
    return [group for group in SECTIONS if (run.record.sets if GROUPS[group].always else group in finished)]


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
