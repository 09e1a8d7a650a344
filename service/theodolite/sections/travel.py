"""Steps through the blocks, and growth along the residual stream."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import xarray as xr

from theodolite.figures.travel import travel_figure
from theodolite.figures.travel_growth import growth_figure
from theodolite.sections.parts import Figure, Section, colours_of, last_position, prompt_counts
from theodolite.sections.travel_growth import growth_facts, growth_notes
from theodolite.store.result_reader import read_finished_table, read_group
from theodolite.store.runs import Run


def sections(run: Run) -> list[Section]:
    """Return one section: steps by layer and growth along the residual stream, at the last position."""
    travel, growth = read_group(run, "travel"), read_finished_table(run, "growth")
    position, colours = last_position(travel), colours_of(run, travel)
    steps = partial(travel_figure, travel, position, colours)
    figures = [Figure("travel.steps", "Steps of attention and MLP by layer", steps)]
    curves = read_group(run, "curves")
    quantities = {"norm_mean": read_group(run, "moments")["norm_mean"]}
    quantities |= {name: curves[name] for name in ("variance_mean", "variance_max")}
    for name in list(colours)[:1]:
        caption = f"Growth along the residual stream with both fits, {name}"
        draw = partial(growth_figure, growth, quantities, name, position)
        figures.append(Figure(f"travel.growth.{name}", caption, draw))
    facts = [
        *_step_facts(travel.sel(position=position), list(colours)),
        *growth_facts(growth, list(colours), position),
    ]
    title = f"Travel and growth at position {position} ({prompt_counts(travel, list(colours))})"
    return [Section(title, facts, figures, notes=growth_notes(growth))]


def _step_facts(travel: xr.Dataset, sets: Sequence[str]) -> Iterator[str]:
    for name in sets:
        values = travel.sel(set=name)
        if np.isfinite(values["path_ratio_std"]):
            yield (
                f"Path length over displacement for {name}: {float(values['path_ratio']):.2f} ± "
                f"{float(values['path_ratio_std']):.2f} (mean ± standard deviation over {int(values['n_samples'])} "
                "prompts); a straight line gives 1."
            )
        cosines = values["step_cosine_next"].dropna("layer")
        if cosines.size:
            negative = int((cosines < 0).sum())
            yield (
                f"Mean cosine between the steps of two successive blocks for {name}: {float(cosines.mean()):.2f}; "
                f"the cosine is negative for {negative} of {cosines.size} pairs of blocks."
            )
