"""Steps through the blocks, and growth along the residual stream."""

from functools import partial

import numpy as np
import xarray as xr

from theodolite.groups.travel.figures import cosines_figure, travel_figure
from theodolite.groups.travel.figures_growth import growth_figure
from theodolite.groups.travel.figures_variance import budget_figure
from theodolite.groups.travel.sections_growth import growth_facts, growth_notes, growth_table
from theodolite.groups.travel.sections_steps import STEP_NOTES, path_headline, step_facts, step_tables
from theodolite.groups.travel.sections_variance import (
    variance_facts,
    variance_finding,
    variance_headline,
    variance_table,
)
from theodolite.query.first_tokens import set_labels
from theodolite.sections.parts import (
    Figure,
    Section,
    colours_of,
    labelled,
    last_position,
    leading_sets,
    prompt_counts,
    token_notes,
)
from theodolite.spec_parts import Label
from theodolite.store.result_reader import read_finished_table, read_group
from theodolite.store.runs import Run

_NOTES = (
    "total variances are sums over features, and a few features can dominate them",
    "the parts of the growth depend on what a step is: with whole blocks as steps, the covariance of attention's step "
    "with the MLP's step would count as variance of the steps",
)


def sections(run: Run) -> list[Section]:
    """Return one section: steps by layer and growth along the residual stream, at the last position."""
    travel, growth = read_group(run, "travel"), read_finished_table(run, "growth")
    position, colours = last_position(travel), colours_of(run, travel)
    all_labels = set_labels(run, position)
    labels = {name: all_labels[name] for name in colours}
    drawn = {
        "steps": ("Steps of attention and MLP by layer", travel_figure),
        "cosines": ("Cosines of the steps of blocks by layer", cosines_figure),
    }
    figures = [
        Figure(f"travel.{name}", caption, labelled(partial(draw, travel, position, colours), labels))
        for name, (caption, draw) in drawn.items()
    ]
    if np.isfinite(travel["variance"].sel(position=position, point="post")).any():
        caption = "Variance after each block: the variance of its input, and the terms of its steps"
        figures.append(Figure("travel.variance", caption, partial(budget_figure, travel, position, labels)))
    curves = read_group(run, "curves").sel(space="raw")
    quantities = {"norm_mean": read_group(run, "moments")["norm_mean"]}
    quantities |= {name: curves[name] for name in ("variance_mean", "variance_max")}
    for name, colour in list(colours.items())[:1]:
        caption = f"Growth along the residual stream with both fits, {labels[name]}"
        draw = partial(growth_figure, growth, quantities, name, position, colour)
        figures.append(Figure(f"travel.growth.{name}", caption, draw))
    facts = [
        *step_facts(travel.sel(position=position), labels),
        *variance_facts(travel.sel(position=position), labels),
        *growth_facts(growth, labels, position),
    ]
    title = f"Travel and growth at position {position} ({prompt_counts(travel, labels)})"
    parts = variance_table(travel.sel(position=position), labels)
    notes = [*token_notes(run, labels, position), *_NOTES, *STEP_NOTES, *growth_notes()]
    laws = growth_table(growth, labels, position)
    tables = [*step_tables(travel.sel(position=position), labels), *([parts] if parts else [])]
    tables += [laws] if laws.rows else []
    finding = variance_finding(travel.sel(position=position), labels)
    headline = next((text for name in leading_sets(run, labels) if (text := _headline(travel, position, name))), "")
    return [Section(title, facts, figures, tables=tables, notes=notes, finding=finding, headline=headline)]


def _headline(travel: xr.Dataset, position: Label, name: str) -> str:
    """Return the path length of one set, and the growth of its variance in one block; empty if both are unknown."""
    values = travel.sel(position=position, set=name)
    texts = "; ".join(filter(None, [path_headline(values), variance_headline(values)]))
    return f"For {name} prompts, {texts}." if texts else ""
