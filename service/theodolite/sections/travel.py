"""Steps through the blocks, and growth along the stream."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr

from theodolite.figures.travel import growth_figure, travel_figure
from theodolite.sections.parts import Figure, Section, colours_of, last_position, said_counts
from theodolite.sites import Site
from theodolite.store.result_reader import read_finished_table, read_group
from theodolite.store.runs import Run

_AIC_THAT_COUNTS = 2.0  # below that two fits are as good (Burnham and Anderson 2002)
_QUANTITIES = {"norm_mean": "The norm", "variance_mean": "The mean variance", "variance_max": "The largest variance"}


def sections(run: Run) -> list[Section]:
    """Return one section: steps by layer and growth along the stream, at the last position."""
    travel, growth = read_group(run, "travel"), read_finished_table(run, "growth")
    position, colours = last_position(travel), colours_of(run, travel)
    figures = [Figure("travel.steps", "Steps, by layer", partial(travel_figure, travel, position, colours))]
    moments, curves = read_group(run, "moments"), read_group(run, "curves")
    quantities = {"norm_mean": moments["norm_mean"]}
    quantities |= {name: curves[name] for name in ("variance_mean", "variance_max")}
    figures += [
        Figure(
            f"travel.growth.{name}",
            f"Growth along the stream, {name}",
            partial(growth_figure, growth, quantities, name, position),
        )
        for name in list(colours)[:1]
    ]
    facts = [
        *_step_facts(travel.sel(position=position), list(colours)),
        *_growth_facts(growth, list(colours), position),
    ]
    title = f"Travel and growth, position {position}: {said_counts(travel, list(colours))} prompts"
    return [Section(title, facts, figures)]


def _step_facts(at: xr.Dataset, sets: Sequence[str]) -> Iterator[str]:
    for name in sets:
        values = at.sel(set=name)
        if np.isfinite(values["path_ratio_std"]):
            yield (
                f"{name}: the way through the blocks is {float(values['path_ratio']):.2f} ± "
                f"{float(values['path_ratio_std']):.2f} times as long as the displacement (mean and standard deviation "
                "over prompts)."
            )
        cosines = values["step_cosine_next"].dropna("layer")
        if cosines.size:
            back = int((cosines < 0).sum())
            yield (
                f"{name}: successive blocks' steps have a cosine of {float(cosines.mean()):.2f} on average; "
                f"{back} of {cosines.size} times the next step goes against the one before."
            )


def _growth_facts(growth: pd.DataFrame, sets: Sequence[str], position: int) -> Iterator[str]:
    """Say of each quantity, where blocks begin, which law fits it better in each set, and by how much."""
    at = growth[(growth["position"] == position) & growth["set"].isin(sets)]
    sites = at["site"].unique().tolist()
    site = Site.RESID_PRE if Site.RESID_PRE in sites else next(iter(sites), "")
    for quantity, fits in at[at["site"] == site].groupby("quantity", sort=False):
        verdicts = "; ".join(f"{name}, {_verdict(of_set)}" for name, of_set in fits.groupby("set", sort=False))
        yield f"{_QUANTITIES[str(quantity)]} at {site} by depth: {verdicts}."


def _verdict(fits: pd.DataFrame) -> str:
    """Say which of two fits is better, how it grows, and on how many layers that rests."""
    exponential, power = (fits[fits["law"] == law].iloc[0] for law in ("log_linear", "power_law"))
    n, r_squared = int(exponential["n"]), [exponential["r_squared"], power["r_squared"]]
    if np.isnan(r_squared[0]):
        return f"no change (n = {n} layers)"
    by = exponential["aic"] - power["aic"]
    if not abs(by) >= _AIC_THAT_COUNTS:  # of two perfect fits the difference is no number
        return (
            f"an exponential and a power law fit equally well (R² {r_squared[0]:.3f} and {r_squared[1]:.3f}, n = {n})"
        )
    if by < 0:
        better, how = "an exponential", f"times {np.exp(exponential['slope']):.3g} in each block"
    else:
        better, how = "a power law", f"depth to the {power['slope']:.2f}"
        r_squared.reverse()
    return (
        f"{better} fits better, {how} (AIC less by {abs(by):.0f}; R² {r_squared[0]:.3f} against {r_squared[1]:.3f}; "
        f"n = {n} layers)"
    )
