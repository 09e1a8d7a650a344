"""The three curves of each contrast, of unscaled activations and of activations on the sphere."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.panels import shown_sites
from theodolite.groups.curves.figures import ContrastView, coincide, contrast_figure, variances_figure
from theodolite.groups.curves.sections_published import published_facts
from theodolite.query.curves import along_depth
from theodolite.query.first_tokens import set_labels
from theodolite.query.published import PublishedCurve, published_curves, selected_directions
from theodolite.query.twin import read_twin
from theodolite.sections.parts import (
    BAND,
    BRACKETS,
    LARGEST,
    LOCATION,
    Figure,
    Section,
    has_common_token,
    labelled,
    last_position,
    layer_of,
    leaves_out_end,
    listed,
    location_text,
    percent,
    point_text,
    quoted,
    same_token_notes,
    without_spread,
)
from theodolite.sections.twin import twin_cosine_facts
from theodolite.sections.worth import UNTESTED, worth_below
from theodolite.spec_parts import Label
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_UNSCALED = "Unscaled activations; variances in squared units of the residual stream"
_ON_SPHERE = "On the sphere: activations scaled to norm √d_model; variances in squared units of the scaled activations"

_HOW_TO_READ = (
    "The cosine between the means of the two sets: plain, as publications report it, and debiased, without its bias by "
    "noise. Below it, the variance over prompts: the mean over features, and the largest of one feature. The name of a "
    "contrast is only a label, and no statistic here measures what the model answers."
)


_COSINE = "cosine_of_means_debiased"
_LOCATION = "cosine_of_means_debiased_location"


def sections(run: Run) -> list[Section]:
    """Return a section for each contrast at each position that both of its sets have, the last position first."""
    curves, twins = read_group(run, "curves"), read_twin(run, "curves")
    return [
        _section(run, curves, twins.get(contrast, {}).get("curves"), contrast, sides, position)
        for contrast, sides in curves.attrs["contrasts"].items()
        for position in reversed(curves["position"].values.tolist())
        if curves["n_used"].sel(contrast=contrast, position=position).all()
    ]


def _section(
    run: Run, curves: xr.Dataset, twin: xr.Dataset | None, contrast: str, sides: dict[str, str], position: Label
) -> Section:
    counts = curves["n_used"].sel(contrast=contrast, position=position).values.tolist()
    view = ContrastView(contrast, sides["positive"], sides["negative"], position)
    key = (run.record.model, view.positive, view.negative, position)
    published = published_curves(*key)
    unpaired = f"{counts[0]} and {counts[1]} unpaired prompts"
    prompts = f"{counts[0]} matched pairs" if sides["paired"] else unpaired
    labels = set_labels(run, position)
    unknown = without_spread(run, [view.positive, view.negative], position, shown_sites(curves))
    finding = unknown or _finding(run, _shown(curves, view), view, prompts, labels)
    figures = [
        Figure(of, caption, labelled(draw, labels)) for of, caption, draw in _figures(curves, view, published, twin)
    ]
    return Section(
        f"Curves of {quoted(contrast)}: {labels[view.positive]} against {labels[view.negative]}, position {position}, "
        f"{prompts}",
        [
            *([unknown] if unknown else _facts(curves, twin, view, prompts, labels)),
            *_share_facts(curves, view, labels, run.record.model.d_model),
            *published_facts(run, curves, view, published, selected_directions(*key)),
        ],
        figures,
        notes=[
            BRACKETS,
            BAND,
            LOCATION,
            LARGEST,
            *same_token_notes(run, [view.positive, view.negative], labels, position),
        ],
        how_to_read=_HOW_TO_READ,
        finding="" if position != last_position(curves) else finding,
        headline=unknown or _headline(_shown(curves, view)),
        worth=UNTESTED if unknown else worth_below(_shown(curves, view), _COSINE, 1),
    )


def _figures(
    curves: xr.Dataset, view: ContrastView, published: Sequence[PublishedCurve], twin: xr.Dataset | None
) -> Iterator[tuple[str, str, Callable[[], go.Figure]]]:
    """Yield the name and the caption of each figure of a contrast, and what draws it."""
    name = f"curves.{view.contrast}.{view.position}"
    on_sphere = replace(view, on_sphere=True)
    yield name, _UNSCALED, partial(contrast_figure, curves, view, published, twin)
    if not published and coincide(curves, view):
        yield f"{name}.variances", "Variances of each set", partial(variances_figure, curves, view)
    yield f"{name}.sphere", _ON_SPHERE, partial(contrast_figure, curves, on_sphere, twin=twin)
    if others := [site for site in curves["site"].values.tolist() if site not in shown_sites(curves)]:
        caption = f"At other sites: {', '.join(others)}"
        yield f"{name}.sites", caption, partial(contrast_figure, curves, view, twin=twin, sites=others)


def _shown(curves: xr.Dataset, view: ContrastView) -> xr.Dataset:
    """Return the curves of a contrast at one position that its figure shows first."""
    return curves.sel(contrast=view.contrast, position=view.position, site=shown_sites(curves), space="raw")


def _finding(run: Run, values: xr.Dataset, view: ContrastView, prompts: str, labels: Mapping[str, str]) -> str:
    """Return the smallest debiased cosine of the two means, and where it is."""
    debiased = along_depth(values[_COSINE])
    if not np.isfinite(debiased).any():
        return ""
    smallest = int(np.nanargmin(debiased.values))
    common = ""
    if has_common_token(run, [view.positive, view.negative], view.position):
        common = " Both sets have the same token at this position, which alone makes the means similar."
    return (
        f"The debiased cosine between the mean activations of {labels[view.positive]} and {labels[view.negative]} is "
        f"smallest at {layer_of(debiased, smallest)}{_last_depth(debiased, smallest)}: "
        f"{point_text(values, _COSINE, smallest, '.4f', band=True)} ({prompts}; equal directions give 1)."
        f"{location_text(values[_LOCATION], smallest)}{common}"
        f"{' The curves end before the output of the last block.' if leaves_out_end(values) else ''}"
    )


def _headline(values: xr.Dataset) -> str:
    """Return the smallest debiased cosine of the two means, and whether their directions are shown to differ."""
    debiased, located = along_depth(values[_COSINE]), along_depth(values[_LOCATION]).values
    if not np.isfinite(debiased).any():
        is_measured = bool(np.isfinite(values["cosine_of_means"]).any())
        noise = "The noise is larger than the means at all depths, so nothing can be concluded about their cosine."
        return noise if is_measured else ""
    smallest = int(np.nanargmin(debiased.values))
    where, value = layer_of(debiased, smallest), point_text(values, _COSINE, smallest, ".4f", band=True)
    high = float(along_depth(values[_COSINE], "band_high")[smallest])
    if high < 1 and np.flatnonzero(located == 1).tolist() == [smallest]:
        return f"The means differ most at {where}: debiased cosine {value} (equal directions give 1)."
    if high < 1:
        subject = "The means differ in direction: smallest debiased cosine"
    elif np.isnan(high) or worth_below(values, _COSINE, 1).passed:
        subject = "Smallest debiased cosine of the means:"
    else:
        subject = "The means are not shown to differ in direction: smallest debiased cosine"
    return f"{subject} {value}, at {where} (equal directions give 1)."


def _last_depth(curve: xr.DataArray, index: int) -> str:
    return ", the last depth of the curves" if index == len(curve) - 1 else ""


def _remedy(curves: xr.Dataset, view: ContrastView) -> str:
    """Return the probable cause of an interval above 1, with a space before it; empty if there is no such cause."""
    counts = curves["n_used"].sel(contrast=view.contrast, position=view.position).values.tolist()
    sides = curves.attrs["contrasts"][view.contrast]
    if view.positive == view.negative:
        return " The contrast compares a set with itself."
    if sides["paired"] or counts[0] != counts[1]:
        return ""
    return " If prompt i of one set matches or equals prompt i of the other set, set paired: true for the contrast."


def _facts(
    curves: xr.Dataset, twin: xr.Dataset | None, view: ContrastView, prompts: str, labels: Mapping[str, str]
) -> list[str]:
    """Return sentences about the curves that the figure shows first."""
    values = _shown(curves, view)
    facts = _cosine_facts(values, prompts)
    if twin is not None:
        facts += twin_cosine_facts(values, twin.sel(position=view.position, site=shown_sites(curves), space="raw"))
    if (along_depth(values[_COSINE], "low") > 1).any():
        facts.append(
            "At some depths the whole interval lies above 1, the maximum of a cosine. The noise of the two sets "
            f"violates the assumptions of the interval.{_remedy(curves, view)}"
        )
    names = dict.fromkeys((view.positive, view.negative))
    texts = {labels[name]: _largest_variance(values.sel(set=name)) for name in names}
    if known := {label: text for label, text in texts.items() if text}:
        facts.append(
            "Largest variance of a feature over prompts (the curves end before the output of the last block): "
            f"{listed(known)}."
        )
    return facts


def _largest_variance(values: xr.Dataset) -> str:
    """Return the largest variance of a set's features, and where it is; empty if there is none."""
    largest = along_depth(values["variance_max"])
    if not (largest > 0).any():
        return ""
    top = int(np.nanargmax(largest.values))
    feature, mean = (float(along_depth(values[name])[top]) for name in ("variance_max_feature", "variance_mean"))
    return (
        f"{float(largest[top]):.3g} (feature {feature:.0f} at {layer_of(largest, top)}, "
        f"{float(largest[top]) / mean:.1f} times the mean over features there)"
    )


def _share_facts(curves: xr.Dataset, view: ContrastView, labels: Mapping[str, str], d_model: int) -> Iterator[str]:
    """Yield a sentence about the variance of the three leading features; nothing without variances."""
    shown, texts = {"position": view.position, "site": shown_sites(curves), "space": "raw"}, {}
    shares = curves["variance_top3_share"].sel(shown)
    for name in dict.fromkeys((view.positive, view.negative)):
        share = along_depth(shares.sel(set=name))
        if np.isfinite(share).any():
            top = int(np.nanargmax(share.values))
            lowest, highest = percent(np.nanmin(share), 1), percent(share[top], 1)
            texts[labels[name]] = f"{lowest} to {highest} (maximum at {layer_of(share, top)})"
    if texts:
        yield (
            f"The three features with the largest variances have this share of the total variance, over depths: "
            f"{listed(texts)}. If all features had equal variances, three of them, chosen in advance, would have "
            f"{percent(min(3 / d_model, 1), 1)}; the largest three of a sample have a little more."
        )


def _cosine_facts(values: xr.Dataset, prompts: str) -> list[str]:
    """Return sentences about the smallest and the last debiased cosine, and about depths without one."""
    facts = []
    debiased = along_depth(values[_COSINE])
    if np.isfinite(debiased).any():
        smallest, last = int(np.nanargmin(debiased.values)), len(debiased) - 1
        facts.append(
            f"Smallest debiased cosine of means: {point_text(values, _COSINE, smallest, '.4f', band=True)} at "
            f"{layer_of(debiased, smallest)}{_last_depth(debiased, smallest)} ({prompts}; equal directions give 1)."
            f"{location_text(values[_LOCATION], smallest)}"
        )
        if smallest != last and np.isfinite(debiased[last]):
            facts.append(
                f"Debiased cosine of means at the last depth, {layer_of(debiased, last)}: "
                f"{point_text(values, _COSINE, last, '.4f')}."
            )
    measured = np.isfinite(along_depth(values["cosine_of_means"]))  # false at a layer without the site
    unresolved = int((np.isnan(debiased) & measured).sum())
    if unresolved:
        facts.append(
            f"The debiased cosine is missing at {unresolved} of {int(measured.sum())} depths: with this number of "
            "prompts, the noise is larger than the means."
        )
    return facts
