"""The three curves of each contrast, as they are and on the sphere."""

from functools import partial

import numpy as np
import xarray as xr

from theodolite.figures.curves import ContrastView, contrast_figure, shown_sites
from theodolite.query.curves import along_depth
from theodolite.query.published import published_curves, selected_directions
from theodolite.sections.curves_published import published_facts
from theodolite.sections.parts import SIDES, Figure, Section, place_of
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_AS_THEY_ARE = "Activations as they are; variances in squared units of the stream"
_ON_SPHERE = "On the sphere: activations scaled to norm √d_model; variances in squared units of that"


def sections(run: Run) -> list[Section]:
    """Return a section for each contrast at each position that both of its sets keep."""
    curves = read_group(run, "curves")
    return [
        _section(run, curves, contrast, sides, position)
        for contrast, sides in curves.attrs["contrasts"].items()
        for position in curves["position"].values.tolist()
        if int(curves["n_positive"].sel(contrast=contrast, position=position)) > 0
    ]


def _section(run: Run, curves: xr.Dataset, contrast: str, sides: dict[str, str], position: int) -> Section:
    n_positive, n_negative = (int(curves[f"n_{side}"].sel(contrast=contrast, position=position)) for side in SIDES)
    view = ContrastView(contrast, sides["positive"], sides["negative"], position)
    sphere = ContrastView(contrast, sides["positive"], sides["negative"], position, on_sphere=True)
    where = (run.record.model, view.positive, view.negative, position)
    published = published_curves(*where)
    unpaired = f"{n_positive} and {n_negative} unpaired prompts"
    pairing = f"{n_positive} matched pairs" if sides["paired"] else unpaired
    name = f"curves.{contrast}.{position}"
    return Section(
        f"{contrast}: {sides['positive']} against {sides['negative']}, position {position}, {pairing}",
        [*_facts(curves, view), *published_facts(curves, view, published, selected_directions(*where))],
        [
            Figure(name, _AS_THEY_ARE, partial(contrast_figure, curves, view, published)),
            Figure(f"{name}.sphere", _ON_SPHERE, partial(contrast_figure, curves, sphere)),
        ],
    )


def _why_above_one(curves: xr.Dataset, view: ContrastView) -> str:
    """Return what may be done about an interval above 1, with a space before it."""
    counts = [int(curves[f"n_{side}"].sel(contrast=view.contrast, position=view.position)) for side in SIDES]
    sides = curves.attrs["contrasts"][view.contrast]
    if view.positive == view.negative:
        return " The contrast is of a set with itself."
    if sides["paired"] or counts[0] != counts[1]:
        return ""
    return " If prompt i of one set matches prompt i of the other, or is the same, set paired: true for the contrast."


def _facts(curves: xr.Dataset, view: ContrastView) -> list[str]:
    """Say in a few sentences what the curves that are drawn at once show, from the numbers."""
    at = curves.sel(contrast=view.contrast, position=view.position, site=shown_sites(curves))
    debiased = along_depth(at["cosine_of_means_debiased"])
    facts = []
    if np.isfinite(debiased).any():
        low, high = along_depth(at["cosine_of_means_low"]), along_depth(at["cosine_of_means_high"])
        least, last = int(np.nanargmin(debiased.values)), len(debiased) - 1
        words = {least: "is least at", last: "ends at"} if least != last else {last: "is least at the end,"}
        for place, where in words.items():
            facts.append(
                f"The debiased cosine of means {where} {place_of(debiased, place)}: "
                f"{float(debiased[place]):.4f} (95 % interval {float(low[place]):.4f} to {float(high[place]):.4f})."
            )
        if (low > 1).any():
            facts.append(
                "At some depths the whole interval lies above 1, which no cosine can: the two sets' noise is not what "
                f"was assumed.{_why_above_one(curves, view)}"
            )
    unresolved = int(np.isnan(debiased).sum())
    if unresolved:
        facts.append(
            f"At {unresolved} depths the means are not resolved at this n, and the debiased cosine is left out."
        )
    for name in (view.positive, view.negative):
        largest = along_depth(at["variance_max"].sel(set=name))
        features = along_depth(at["variance_max_feature"].sel(set=name))
        mean = along_depth(at["variance_mean"].sel(set=name))
        if np.isfinite(largest).any():
            top = int(np.nanargmax(largest.values))
            facts.append(
                f"{name}: feature {int(features[top])} has the largest variance, {float(largest[top]):.3g} at "
                f"{place_of(largest, top)}, {float(largest[top] / mean[top]):.0f} times the mean "
                "over features there."
            )
    return facts
