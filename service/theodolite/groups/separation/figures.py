"""Separation of held-out prompts along a contrast's direction."""

from collections.abc import Iterator, Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.panels import Line, Panel, depth_axis, panels_figure, prompts_text
from theodolite.drawing.references import Reference
from theodolite.drawing.style import DASHES, MAIN, PLAIN, SECOND, THIRD, UNTRAINED, short_site
from theodolite.groups.schema import INTERVAL, LEVEL, VALUE_AND_BAND
from theodolite.query.compare import BOUND
from theodolite.query.curves import along_depth, end_of, has_values
from theodolite.sites import Site

_TITLES = {
    "auroc": "AUROC",
    "paired_accuracy": "pairs in the right order",
    "accuracy": "accuracy",
    "fisher_ratio": "Fisher ratio",
}

_RIDGE = "ridge"


def separation_figure(
    separation: xr.Dataset,
    tests: xr.Dataset | None,
    contrast: str,
    position: int,
    sites: Sequence[str],
    twin: xr.Dataset | None = None,
) -> go.Figure:
    """Return AUROC, AUROC minus words, paired accuracy, accuracy and Fisher ratio by depth, with intervals.

    All are by difference of means; the AUROC, and its difference from words, are also by ridge regression. Thin lines
    are the values that chance exceeds at any depth with a probability of LEVEL. Grey lines are chance, the bound above
    which sets count as separated, and the values of the untrained twin. Brackets mark the depths that may have the
    largest value.

    Args:
        separation: the results.
        tests: the results of the analysis `permutations`, if the run has it.
        contrast: name of the contrast.
        position: token position.
        sites: sites to draw.
        twin: the contrast in the results of the untrained twin.
    """
    selected = separation.sel(contrast=contrast, position=position, site=list(sites))
    null = None if tests is None else tests.sel(contrast=contrast, position=position, site=list(sites))
    other = None if twin is None else twin.sel(position=position, site=list(sites))
    counts = selected["n_used"].values.tolist()
    majority = max(counts) / max(sum(counts), 1)
    references = {
        "auroc": [Reference(0.5, "chance: 0.5"), Reference(BOUND, f"separated: {BOUND}")],
        "paired_accuracy": [Reference(0.5, "chance: 0.5")],
        "accuracy": [Reference(majority, f"{'chance' if majority == 0.5 else 'larger set'}: {majority:.3g}")],
        "fisher_ratio": [Reference(0, "equal means: 0")],
    }
    panels = []
    for name, title in _TITLES.items():
        if not has_values(selected, name):
            continue
        lines = [line for site in sites for line in _lines(selected, null, other, name, site, prompts_text(*counts))]
        located = None
        if null is not None and name in null["held_out"]:
            located = along_depth(null["location"].sel(held_out=name))
        panels.append(Panel(title, lines, references[name], located=located))
        if name == "auroc" and null is not None:
            words = [null["beyond"].sel(control="words", held_out=one) for one in ("auroc", "ridge_auroc")]
            if np.isfinite(end_of(words[0])).any():
                panels.append(_beyond(words, "words", "words alone: 0", sites, prompts_text(*counts)))
        if name == "auroc" and other is not None and has_values(other, "auroc_beyond_twin", "band_low"):
            untrained = [other["auroc_beyond_twin"]]
            panels.append(_beyond(untrained, "twin", "as untrained: 0", sites, prompts_text(*counts)))
    return panels_figure(panels, **depth_axis(along_depth(selected["auroc"])))


def _lines(
    selected: xr.Dataset, null: xr.Dataset | None, twin: xr.Dataset | None, name: str, site: str, n: str
) -> Iterator[Line]:
    """Yield the lines of a statistic at a site: its values, ridge regression, the limit of chance, and the twin."""
    dash = DASHES[Site(site)]
    yield _with_interval(selected[name], site, MAIN, short_site(site), n)
    if null is not None:
        ridge = null["score_auroc"].sel(scored_by="ridge")
        if name == "auroc" and np.isfinite(end_of(ridge)).any():
            yield _with_interval(ridge, site, THIRD, f"{_RIDGE}, {short_site(site)}", n)
        if name in null["tested"]:
            limit = along_depth(null["tested_null"].sel(site=[site], tested=name, null="critical"))
            label = f"{short_site(site)}, {100 * LEVEL:.0f} % of permutations exceed it"
            yield Line(label, limit["depth"], limit, SECOND, dash, markers=False)
    if twin is not None:
        control = along_depth(twin[name].sel(site=[site]))
        yield Line(f"{UNTRAINED}, {short_site(site)}", control["depth"], control, PLAIN, dash, markers=False)


def _with_interval(values: xr.DataArray, site: str, colour: str, label: str, n: str) -> Line:
    value, low, high = (along_depth(values.sel(site=[site]), end) for end in INTERVAL)
    return Line(label, value["depth"], value, colour, DASHES[Site(site)], low, high, n=n)


def _beyond(values: Sequence[xr.DataArray], control: str, equal: str, sites: Sequence[str], n: str) -> Panel:
    """Return the AUROC minus that of a control, with its band, by difference of means and perhaps by ridge."""
    lines = []
    for site in sites:
        for curve, colour, classifier in zip(values, (MAIN, THIRD), ("", f"{_RIDGE}, "), strict=False):
            value, low, high = (along_depth(curve.sel(site=[site]), end) for end in VALUE_AND_BAND)
            label = classifier + short_site(site)
            band = "simultaneous 95 % band"
            lines.append(Line(label, value["depth"], value, colour, DASHES[Site(site)], low, high, n=n, band=band))
    return Panel(f"AUROC minus {control}", lines, [Reference(0, equal)])
