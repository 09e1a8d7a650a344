"""Separation of held-out prompts along a contrast's direction."""

from collections.abc import Iterator, Sequence
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
from theodolite.drawing.style import MAIN, PLAIN, THIRD, UNTRAINED
from theodolite.groups.schema import LEVEL
from theodolite.query.compare import BOUND
from theodolite.query.curves import along_depth, end_of, has_values
from theodolite.sites import HALF_BLOCKS
from theodolite.spec_parts import Label

_TITLES = {
    "auroc": "AUROC",
    "paired_accuracy": "pairs in the right order",
    "accuracy": "accuracy",
    "fisher_ratio": "Fisher ratio",
}

_MEANS, _RIDGE = "difference of means", "ridge regression"
_LIMIT = f"{100 * (1 - LEVEL):.0f} % of chance, all depths"


def separation_figure(
    separation: xr.Dataset,
    tests: xr.Dataset | None,
    contrast: str,
    position: Label,
    sites: Sequence[str],
    twin: xr.Dataset | None = None,
) -> go.Figure:
    """Return AUROC, AUROC minus words, paired accuracy, accuracy and Fisher ratio by depth, with intervals.

    A line goes through `resid_pre` and `resid_mid` in turn; other sites have lines of their own. All are by difference
    of means; the AUROC, and its difference from words, are also by ridge regression. Grey is what they are compared
    with: the ribbon of permuted labels, the values that chance exceeds at any depth with a probability of LEVEL, the
    bound above which sets count as separated, and the untrained twin. Filled markers have a family-wise p of at most
    LEVEL. Brackets mark the depths that may have the largest value.

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
    n = prompts_text(*counts)

    def at(path: Sequence[str]) -> tuple[xr.Dataset, xr.Dataset | None, xr.Dataset | None]:
        of_null, of_twin = (None if one is None else one.sel(site=list(path)) for one in (null, other))
        return selected.sel(site=list(path)), of_null, of_twin

    def lines_of(name: str, path: Sequence[str]) -> Iterator[Line]:
        return _lines(at(path), name, n)

    panels = []
    for name, title in _TITLES.items():
        if not has_values(selected, name):
            continue
        lines, located, chance = along_paths(sites, partial(lines_of, name)), None, None
        if null is not None and name in null["held_out"]:
            located = along_depth(null["location"].sel(held_out=name))
        if null is not None and name in null["tested"] and set(sites) <= set(HALF_BLOCKS):
            chance = chance_ribbon(null["tested_null"].sel(tested=name))
        panels.append(Panel(title, lines, references[name], located=located, chance=chance))
        if name == "auroc" and null is not None:
            words = [null["beyond"].sel(control="words", held_out=one) for one in ("auroc", "ridge_auroc")]
            if np.isfinite(end_of(words[0])).any():
                panels.append(_beyond(words, "words", "words alone: 0", sites, n))
        if name == "auroc" and other is not None and has_values(other, "auroc_beyond_twin", "band_low"):
            untrained = [other["auroc_beyond_twin"]]
            panels.append(_beyond(untrained, "twin", "as untrained: 0", sites, n))
    return panels_figure(panels, **depth_axis(along_depth(selected["auroc"])))


def _lines(of: tuple[xr.Dataset, xr.Dataset | None, xr.Dataset | None], name: str, n: str) -> Iterator[Line]:
    """Yield the lines of a statistic: its values, ridge regression, the limit of chance, and the twin."""
    selected, null, twin = of
    tested = null["tested_null"].sel(tested=name) if null is not None and name in null["tested"] else None
    passed = None if tested is None else along_depth(tested.sel(null="p_family")) <= LEVEL
    yield with_ends(_MEANS, selected[name], MAIN, n, passed=passed)
    if null is not None:
        ridge = null["score_auroc"].sel(scored_by="ridge")
        if name == "auroc" and np.isfinite(end_of(ridge)).any():
            yield with_ends(_RIDGE, ridge, THIRD, n)
    if tested is not None:
        limit = along_depth(tested.sel(null="critical"))
        yield Line(_LIMIT, limit["depth"], limit, PLAIN, markers=False)
    if twin is not None:
        control = along_depth(twin[name])
        yield Line(UNTRAINED, control["depth"], control, PLAIN, "dot", markers=False)


def _beyond(values: Sequence[xr.DataArray], control: str, equal: str, sites: Sequence[str], n: str) -> Panel:
    """Return the AUROC minus that of a control, with its band, by difference of means and perhaps by ridge."""
    of_classifiers = list(zip(values, (MAIN, THIRD), (_MEANS, _RIDGE), strict=False))

    def lines_of(path: Sequence[str]) -> Iterator[Line]:
        for curve, colour, label in of_classifiers:
            yield with_ends(label, curve.sel(site=list(path)), colour, n)

    return Panel(f"AUROC minus {control}", along_paths(sites, lines_of), [Reference(0, equal)])
