"""Steps through the blocks, and growth along the residual stream."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd

from theodolite.figures.travel import cosines_figure, growth_figure, travel_figure
from theodolite.figures.travel_variance import budget_figure
from theodolite.sections.parts import Figure, Section, colours_of, last_position, prompt_counts
from theodolite.sections.travel_steps import step_facts
from theodolite.sections.travel_variance import variance_facts
from theodolite.sites import Site
from theodolite.store.result_reader import read_finished_table, read_group
from theodolite.store.runs import Run

_AIC_BOUND = 2.0  # two fits with a smaller difference are equally good (Burnham and Anderson 2002)
_NOTE = (
    "deviations are from the mean over the prompts of a set; total variances are sums over features, and a few "
    "features can dominate them"
)
_QUANTITIES = {"norm_mean": "Norm", "variance_mean": "Mean variance", "variance_max": "Largest variance"}


def sections(run: Run) -> list[Section]:
    """Return one section: steps by layer and growth along the residual stream, at the last position."""
    travel, growth = read_group(run, "travel"), read_finished_table(run, "growth")
    position, colours = last_position(travel), colours_of(run, travel)
    drawn = {
        "steps": ("Steps of attention and MLP by layer", travel_figure),
        "cosines": ("Cosines of the steps of blocks by layer", cosines_figure),
    }
    if np.isfinite(travel["variance_post"].sel(position=position)).any():  # an older run lacks it
        drawn["variance"] = ("Variance after each block: what entered the block, and what its steps add", budget_figure)
    figures = [
        Figure(f"travel.{name}", caption, partial(draw, travel, position, colours))
        for name, (caption, draw) in drawn.items()
    ]
    curves = read_group(run, "curves")
    quantities = {"norm_mean": read_group(run, "moments")["norm_mean"]}
    quantities |= {name: curves[name] for name in ("variance_mean", "variance_max")}
    for name in list(colours)[:1]:
        caption = f"Growth along the residual stream with both fits, {name}"
        draw = partial(growth_figure, growth, quantities, name, position)
        figures.append(Figure(f"travel.growth.{name}", caption, draw))
    facts = [
        *step_facts(travel.sel(position=position), list(colours)),
        *variance_facts(travel.sel(position=position), list(colours)),
        *_growth_facts(growth, list(colours), position),
    ]
    title = f"Travel and growth at position {position} ({prompt_counts(travel, list(colours))})"
    return [Section(title, facts, figures, notes=[_NOTE])]


def _growth_facts(growth: pd.DataFrame, sets: Sequence[str], position: int) -> Iterator[str]:
    """Yield a sentence for each quantity and set: the law that fits its growth at the block inputs better."""
    selected = growth[(growth["position"] == position) & growth["set"].isin(sets)]
    sites = selected["site"].unique().tolist()
    site = Site.RESID_PRE if Site.RESID_PRE in sites else next(iter(sites), "")
    for (quantity, name), fits in selected[selected["site"] == site].groupby(["quantity", "set"], sort=False):
        yield f"{_QUANTITIES[str(quantity)]} of {name} at {site} over depth: {_better_law(fits)}."


def _better_law(fits: pd.DataFrame) -> str:
    """Return which of two fits is better, its growth, and the number of layers."""
    exponential, power = (fits[fits["law"] == law].iloc[0] for law in ("log_linear", "power_law"))
    n, r_squared = int(exponential["n"]), [exponential["r_squared"], power["r_squared"]]
    if np.isnan(r_squared[0]):
        return f"constant (n = {n} layers)"
    difference = exponential["aic"] - power["aic"]
    if not abs(difference) >= _AIC_BOUND:  # for two perfect fits the difference is NaN
        return (
            f"an exponential and a power law fit equally well (R² {r_squared[0]:.3f} and {r_squared[1]:.3f}; n = {n} "
            "layers)"
        )
    if difference < 0:
        better, worse = f"an exponential (factor {np.exp(exponential['slope']):.3g} for each block)", "a power law"
    else:
        better, worse = f"a power law (exponent {power['slope']:.2f})", "an exponential"
        r_squared.reverse()
    return (
        f"{better} fits better than {worse} (AIC lower by {abs(difference):.0f}; R² {r_squared[0]:.3f} against "
        f"{r_squared[1]:.3f}; n = {n} layers)"
    )
