"""Separation of held-out prompts along a contrast's direction."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import Line, Panel, depth_axis, panels_figure, prompts_text
from theodolite.figures.references import Reference
from theodolite.figures.style import DASHES, MAIN, PLAIN, SECOND, UNTRAINED, short_site
from theodolite.groups.permutations import LEVEL
from theodolite.query.compare import BOUND
from theodolite.query.curves import along_depth
from theodolite.sites import Site

_TITLES = {
    "auroc": "AUROC",
    "paired_accuracy": "pairs in the right order",
    "accuracy": "accuracy",
    "fisher_ratio": "Fisher ratio",
}


def separation_figure(
    separation: xr.Dataset,
    tests: xr.Dataset | None,
    contrast: str,
    position: int,
    sites: Sequence[str],
    twin: xr.Dataset | None = None,
) -> go.Figure:
    """Return AUROC, accuracy, paired accuracy and Fisher ratio along a contrast's direction by depth, with intervals.

    Thin lines are the values that chance exceeds at any depth with a probability of LEVEL. Grey lines are chance, the
    bound above which sets count as separated, and the values of the untrained twin.

    Args:
        separation: the result group.
        tests: the result group `permutations`, if the run has it.
        contrast: name of the contrast.
        position: token position.
        sites: sites to draw.
        twin: the contrast in the result group of the untrained twin.
    """
    selected = separation.sel(contrast=contrast, position=position)
    counts = [int(selected[f"n_{side}"]) for side in ("positive", "negative")]
    n = prompts_text(*counts)
    majority = max(counts) / max(sum(counts), 1)
    references = {
        "auroc": [Reference(0.5, "chance: 0.5"), Reference(BOUND, f"separated: {BOUND}")],
        "paired_accuracy": [Reference(0.5, "chance: 0.5")],
        "accuracy": [Reference(majority, f"{'chance' if majority == 0.5 else 'larger set'}: {majority:.3g}")],
        "fisher_ratio": [Reference(0, "equal means: 0")],
    }
    panels = []
    for name, title in _TITLES.items():
        if name not in selected or not np.isfinite(selected[name].sel(site=list(sites))).any():
            continue
        lines = []
        for site in sites:
            dash = DASHES[Site(site)]
            value, low, high = (along_depth(selected[name + end].sel(site=[site])) for end in ("", "_low", "_high"))
            lines.append(Line(short_site(site), value["depth"], value, MAIN, dash, low, high, n=n))
            if tests is not None and f"{name}_critical" in tests:
                limit = along_depth(tests[f"{name}_critical"].sel(contrast=contrast, position=position, site=[site]))
                label = f"{short_site(site)}, {100 * LEVEL:.0f} % of permutations exceed it"
                lines.append(Line(label, limit["depth"], limit, SECOND, dash, markers=False))
            if twin is not None:
                control = along_depth(twin[name].sel(position=position, site=[site]))
                label = f"{UNTRAINED}, {short_site(site)}"
                lines.append(Line(label, control["depth"], control, PLAIN, dash, markers=False))
        panels.append(Panel(title, lines, references.get(name, ())))
    return panels_figure(panels, **depth_axis(along_depth(selected["auroc"].sel(site=list(sites)))))
