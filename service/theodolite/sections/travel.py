"""Steps through the blocks, and growth along the residual stream."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr

from theodolite.figures.travel import growth_figure, travel_figure
from theodolite.query.first_tokens import set_labels
from theodolite.sections.parts import Figure, Section, colours_of, labelled, last_position, prompt_counts
from theodolite.sites import Site
from theodolite.store.result_reader import read_finished_table, read_group
from theodolite.store.runs import Run

_AIC_BOUND = 2.0  # two fits with a smaller difference are equally good (Burnham and Anderson 2002)
_QUANTITIES = {"norm_mean": "Norm", "variance_mean": "Mean variance", "variance_max": "Largest variance"}


def sections(run: Run) -> list[Section]:
    """Return one section: steps by layer and growth along the residual stream, at the last position."""
    travel, growth = read_group(run, "travel"), read_finished_table(run, "growth")
    position, colours = last_position(travel), colours_of(run, travel)
    all_labels = set_labels(run, position)
    labels = {name: all_labels[name] for name in colours}
    steps = labelled(partial(travel_figure, travel, position, colours), labels)
    figures = [Figure("travel.steps", "Steps of attention and MLP by layer", steps)]
    curves = read_group(run, "curves")
    quantities = {"norm_mean": read_group(run, "moments")["norm_mean"]}
    quantities |= {name: curves[name] for name in ("variance_mean", "variance_max")}
    for name in list(colours)[:1]:
        caption = f"Growth along the residual stream with both fits, {labels[name]}"
        draw = partial(growth_figure, growth, quantities, name, position)
        figures.append(Figure(f"travel.growth.{name}", caption, draw))
    facts = [
        *_step_facts(travel.sel(position=position), labels),
        *_growth_facts(growth, labels, position),
    ]
    title = f"Travel and growth at position {position} ({prompt_counts(travel, labels)})"
    return [Section(title, facts, figures)]


def _step_facts(travel: xr.Dataset, labels: Mapping[str, str]) -> Iterator[str]:
    for name, label in labels.items():
        values = travel.sel(set=name)
        if np.isfinite(values["path_ratio_std"]):
            yield (
                f"Path length over displacement for {label}: {float(values['path_ratio']):.2f} ± "
                f"{float(values['path_ratio_std']):.2f} (mean ± standard deviation over {int(values['n_samples'])} "
                "prompts); a straight line gives 1."
            )
        cosines = values["step_cosine_next"].dropna("layer")
        if cosines.size:
            negative = int((cosines < 0).sum())
            yield (
                f"Mean cosine between the steps of two successive blocks for {label}: {float(cosines.mean()):.2f}; "
                f"the cosine is negative for {negative} of {cosines.size} pairs of blocks."
            )


def _growth_facts(growth: pd.DataFrame, labels: Mapping[str, str], position: int) -> Iterator[str]:
    """Yield a sentence for each quantity and set: the law that fits its growth at the block inputs better."""
    selected = growth[(growth["position"] == position) & growth["set"].isin(list(labels))]
    sites = selected["site"].unique().tolist()
    site = Site.RESID_PRE if Site.RESID_PRE in sites else next(iter(sites), "")
    for (quantity, name), fits in selected[selected["site"] == site].groupby(["quantity", "set"], sort=False):
        yield f"{_QUANTITIES[str(quantity)]} of {labels[str(name)]} at {site} over depth: {_better_law(fits)}."


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
