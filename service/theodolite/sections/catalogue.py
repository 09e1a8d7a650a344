"""The sections of a run by analysis: `sections.py` in the folder of each makes them."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any

import plotly.graph_objects as go

from theodolite.drawing.line_names import name_lines
from theodolite.drawing.switches import add_depth_switch
from theodolite.drawing.titles import add_about
from theodolite.errors import FigureNotFoundError, ResultsNotFoundError
from theodolite.groups import GROUPS, SHOWN
from theodolite.query.partial_sites import partial_site_notes
from theodolite.query.profiles import PROFILES
from theodolite.sections.parts import Figure, Section
from theodolite.sites import Site
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run


def sections_of(run: Run, group: str) -> list[Section]:
    """Return the sections of one analysis; an empty list if the run lacks it.

    Raises:
        ResultsNotFoundError: a run with prompts has no curves yet; every analysed run has them.
        RunDamagedError: results cannot be read.
    """
    if group not in shown_groups(run):
        return []
    sections: list[Section] = import_module(f"theodolite.groups.{group}.sections").sections(run)
    if not run.record.partial_sites:
        return sections
    notes = list(partial_site_notes(run.record, _sites_of(run, group)))
    return [replace(section, notes=[*section.notes, *notes]) for section in sections]


def _sites_of(run: Run, group: str) -> list[Site]:
    """Return the sites whose statistics an analysis has."""
    if Site.HEAD_OUT in GROUPS[group].needs:
        return [Site.HEAD_OUT]
    has_sites = any("site" in variable.dims for variable in GROUPS[group].variables)
    return [Site(site) for site in read_group(run, group)["site"].values.tolist()] if has_sites else []


def shown_groups(run: Run) -> list[str]:
    """Return the names of the run's analyses that have sections, in the order of the report and the page."""
    finished = finished_groups(run)
    return [group for group in SHOWN if group in finished or (group == "curves" and run.record.sets)]


def section_items(run: Run, group: str) -> list[dict[str, Any]]:
    """Return the sections of one analysis as JSON-ready values; a figure is a name, a caption and a circuit.

    Raises:
        ResultsNotFoundError: no group of this name has sections; the message names those that have. Also as in
            `sections_of`.
        RunDamagedError: as in `sections_of`.
    """
    if group not in SHOWN:
        raise ResultsNotFoundError(f"there is no section {group!r}; there are {', '.join(SHOWN)}")
    sections = sections_of(run, group)
    return [
        {
            **{name: value for name, value in vars(section).items() if name != "worth"},
            "figures": [_named(figure) for figure in section.figures],
            "maps": [_named(figure) for figure in section.maps],
            "tables": [asdict(table) for table in section.tables],
        }
        for section in sections
    ]


def _named(figure: Figure) -> dict[str, str]:
    return {"name": figure.name, "caption": figure.caption, "circuit": figure.circuit}


def figures_of(sections: list[Section]) -> Iterator[Figure]:
    """Yield the figures and maps of sections."""
    for section in sections:
        yield from section.figures
        yield from section.maps


def draw_figure(run: Run, name: str) -> go.Figure:
    """Return one figure, drawn from the stored results.

    Args:
        run: the run.
        name: name of the figure; that of an analysis, or of one of its statistics along depth, selects its first one.

    Raises:
        FigureNotFoundError: the run has no figure of this name; the message names those of its group, or the groups.
    """
    group = PROFILES[name].group if name in PROFILES else name.partition(".")[0]
    sections = sections_of(run, group) if group in SHOWN else []
    figures = {figure.name: (section, figure) for section in sections for figure in figures_of([section])}
    if figures and (name == group or name in PROFILES):
        name = next(iter(figures))
    if name not in figures:
        finished = finished_groups(run)
        known = ", ".join(figures) or f"figures of {', '.join(group for group in SHOWN if group in finished)}"
        raise FigureNotFoundError(f"{run.id} has no figure {name!r}; it has {known}")
    section, figure = figures[name]
    about = [figure.caption, f"{run.record.model.name}: {section.title}", section.headline]
    return add_about(drawn(run, figure), about)


def drawn(run: Run, figure: Figure) -> go.Figure:
    """Return a drawn figure of a run: lines have their names, and an axis of depth has a switch to relative depth."""
    return add_depth_switch(name_lines(figure.draw()), run.record.model.n_layers)
