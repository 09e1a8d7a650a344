"""Every section of a run, by the result group that it shows."""

from collections.abc import Callable, Iterator

import plotly.graph_objects as go

from theodolite.errors import FigureNotFoundError
from theodolite.sections.curves import contrast_sections
from theodolite.sections.gram import gram_section, separation_sections
from theodolite.sections.heads import heads_section
from theodolite.sections.parts import Figure, Section
from theodolite.sections.sphere import sphere_section, travel_section
from theodolite.sections.weights import weights_section
from theodolite.sections.words import word_sections
from theodolite.store.manifest import finished_groups
from theodolite.store.runs import Run

SECTIONS: dict[str, Callable[[Run], list[Section]]] = {
    "curves": contrast_sections,
    "separation": separation_sections,
    "gram": lambda run: [gram_section(run)],
    "sphere": lambda run: [sphere_section(run)],
    "travel": lambda run: [travel_section(run)],
    "heads": lambda run: [heads_section(run)],
    "words": word_sections,
    "weights": lambda run: [weights_section(run)],
}
"""What shows each result group, in the order of reading."""


def sections_of(run: Run, group: str) -> list[Section]:
    """Return what one result group shows; none where the run lacks it.

    Raises:
        RunDamagedError: results cannot be read, or a run with prompts has no curves yet, which always exist.
    """
    return SECTIONS[group](run) if group in sections_there(run) else []


def sections_there(run: Run) -> list[str]:
    """Return the result groups that have something to show, in the order of reading."""
    finished = finished_groups(run)
    return [group for group in SECTIONS if (run.record.sets if group == "curves" else group in finished)]


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
