"""Probes of a contrast by depth: how well they separate held-out prompts, and how far they are the mean difference."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.panels import (
    Line,
    Panel,
    Reference,
    along_paths,
    chance_ribbon,
    depth_axis,
    panels_figure,
    prompts_text,
    with_ends,
)
from theodolite.drawing.style import MAIN, SECOND, THIRD
from theodolite.groups.probes.record import BEYOND_MEANS, BEYOND_WORDS, TESTED
from theodolite.groups.schema import LEVEL
from theodolite.query.curves import along_depth, end_of
from theodolite.sites import HALF_BLOCKS

NAMES = {"mean_difference": "difference of means", "lda": "linear discriminant", "logistic": "logistic regression"}
"""The probes as lines and sentences name them."""

_COLOURS = {"mean_difference": MAIN, "lda": THIRD, "logistic": SECOND}

_PANELS = {
    "auroc": ("AUROC", Reference(0.5, "chance: 0.5")),
    BEYOND_MEANS: ("AUROC minus means", Reference(0, "difference of means: 0")),
    BEYOND_WORDS: ("AUROC minus words", Reference(0, "words alone: 0")),
    "paired_accuracy": ("pairs in the right order", Reference(0.5, "chance: 0.5")),
    "accuracy": ("accuracy", Reference(0.5, "chance: 0.5")),
}
"""The title and the reference of each measure."""


def probes_figure(values: xr.Dataset, sites: Sequence[str]) -> go.Figure:
    """Return the measures of the three probes by depth, with intervals, and the cosine of their directions.

    Filled markers have a family-wise p of at most LEVEL. The ribbon is what permuted labels give for the AUROC of the
    logistic probe.

    Args:
        values: the results of one contrast at one position, (site, layer, …).
        sites: sites to draw.
    """
    n = prompts_text(*values["n_used"].values.tolist())

    def lines_of(measure: str, path: Sequence[str]) -> Iterator[Line]:
        at = values.sel(site=list(path))
        for probe, name in NAMES.items():
            curve = at["probe_performance"].sel(probe=probe, measure=measure)
            if np.isfinite(end_of(curve)).any():
                p = at["probe_null"].sel(probe=probe, tested=measure, null="p_family") if measure in TESTED else None
                passed = None if p is None else along_depth(p) <= LEVEL
                yield with_ends(name, curve, _COLOURS[probe], n, passed=passed)

    def cosines(path: Sequence[str]) -> Iterator[Line]:
        for probe in ("lda", "logistic"):
            curve = along_depth(values["probe_fit"].sel(site=list(path), probe=probe, fit="cosine"))
            yield Line(NAMES[probe], curve["depth"], curve, _COLOURS[probe], n=n)

    panels = [
        Panel(title, along_paths(sites, partial(lines_of, measure)), [reference])
        for measure, (title, reference) in _PANELS.items()
    ]
    if set(sites) <= set(HALF_BLOCKS):
        chance = chance_ribbon(values["probe_null"].sel(probe="logistic", tested="auroc"))
        panels[0] = replace(panels[0], chance=chance)
    panels.append(Panel("cosine with means", along_paths(sites, cosines), [Reference(1, "the same direction: 1")]))
    return panels_figure(panels, **depth_axis(along_depth(values["probe_fit"].sel(probe="logistic", fit="cosine"))))
