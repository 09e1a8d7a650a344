"""Colours, layouts and axis ticks that all figures share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from theodolite.sites import Site

# All colours are readable on white and on near-black. In figures of one run, a colour of a set never means
# anything else, so sets and statistics have no colour in common. A site has a dash, and no colour.
_SETS = ("#d9622b", "#3b82c4", "#2e9e6b", "#c2577f", "#a86b50", "#7d8c1f")
_SYMBOLS = dict(zip(_SETS, ("circle", "square", "diamond", "triangle-up", "x", "triangle-down"), strict=True))

POSITIVE, NEGATIVE = _SETS[:2]
"""Colours of the sides of a contrast in figures of one contrast."""

MAIN, SECOND, THIRD = "#8a63d2", "#b8860b", "#17959a"
"""Colours of statistics, maps, laws and other lines that belong to no set."""

ATTENTION, MLP, BLOCK = MAIN, SECOND, THIRD
"""Colours of the parts of a block in figures without sets."""

PLAIN = "#8b9098"
"""Colour of what a value is compared with: chance, controls, thresholds and the untrained twin."""

DEPTH_SCALE = ((0.0, MAIN), (0.5, THIRD), (1.0, SECOND))
"""Colours of depth, from the first to the last one."""

CHANCE_SDS = 1.645
"""Standard deviations from the mean of chance to its 5 % and 95 % quantiles, which are the ends of its ribbon."""


def chance_ends(
    mean: NDArray[np.float64], sd: NDArray[np.float64], limit: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both ends of the ribbon of chance, about its 5 % and 95 % quantiles at each place.

    `limit` is what the largest of all places exceeds in 5 % of draws, so no 95 % quantile of one place lies above it.
    """
    return mean - CHANCE_SDS * sd, np.fmin(mean + CHANCE_SDS * sd, limit)


UNTRAINED = "untrained twin"
"""The name of the lines of a model with random weights."""

DASHES = {
    Site.RESID_PRE: "solid",
    Site.RESID_MID: "dot",
    Site.RESID_MID_SUM: "dashdot",
    Site.RESID_POST: "dash",
    Site.ATTN_OUT: "longdash",
    Site.MLP_OUT: "longdashdot",
}
"""The dash of each site, the same in every figure."""

DEPTH = "layer (its input, then after its attention)"
"""The title of an axis that counts half-blocks."""

RELATIVE_DEPTH = "relative depth (0: first input, 1: last output)"
RELATIVE_LAYER = "relative depth of the block's input (0: first input)"
"""The title of an axis of depths as shares of the whole depth."""

DIVERGING = [[0, "#1f5f9e"], [0.25, "#7fb2de"], [0.5, "#f1efec"], [0.75, "#eba27e"], [1, "#b8420f"]]
"""Colours of values of both signs: the positive side orange like the positive set, the negative one blue."""

_CLEAR = "rgba(0,0,0,0)"

COLORBAR = {"thickness": 10, "len": 1.0, "outlinewidth": 0, "tickfont": {"size": 11}}
"""Layout of the colour scale of a map."""


def bare_layout(height: int) -> dict[str, Any]:
    """Return a layout with a transparent background, for light and for dark pages."""
    return {
        "height": height,
        "margin": {"l": 76, "r": 16, "t": 20, "b": 56},
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "modebar": {"bgcolor": _CLEAR},
        "font": {"family": "system-ui, sans-serif", "size": 13},
    }


def map_layout(height: int, title: str) -> dict[str, Any]:
    """Return the layout of a map and its scale; margins are fixed, so all maps have the same width."""
    margin = {"l": 50, "r": 82, "t": 34, "b": 42, "autoexpand": False}
    return {**bare_layout(height), "margin": margin, "title": {"text": title, "font": {"size": 14}, "x": 0}}


def depth_ticks(depths: ArrayLike) -> dict[str, Any]:
    """Return ticks at the inputs of round layers, for an axis of depths in half-blocks."""
    layers = layer_ticks(np.asarray(depths, dtype=np.float64) // 2).get("tickvals", [])
    return {"tickvals": [2 * layer for layer in layers], "ticktext": [str(layer) for layer in layers]}


def layer_ticks(layers: ArrayLike) -> dict[str, Any]:
    """Return ticks at about ten round layers, none after the last one."""
    known = np.asarray(layers, dtype=np.float64)
    if not len(known):
        return {}
    first, last = int(np.floor(known.min())), int(np.floor(known.max()))
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000) if (last - first) / step <= 10)
    return {"tickvals": [layer for layer in range(0, last + 1, step) if layer >= first]}


def set_colours(sets: Sequence[str], contrasts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return a colour for each set of a run; the sets of the first contrast have the first two colours.

    Args:
        sets: all sets of the run, so that a set has the same colour in each figure.
        contrasts: contrasts of the run.
    """
    sides = [contrast[side] for contrast in list(contrasts.values())[:1] for side in ("positive", "negative")]
    ordered = [*dict.fromkeys(sides), *(name for name in sets if name not in sides)]
    chosen = {name: _SETS[index % len(_SETS)] for index, name in enumerate(ordered)}
    return {name: chosen[name] for name in sets}


def is_set_colour(colour: str) -> bool:
    """Return whether a colour is that of a set."""
    return colour in _SETS


def symbol_of(colour: str) -> str:
    """Return the marker of a line of this colour; each set has its own, for readers who cannot tell two colours."""
    return _SYMBOLS.get(colour, "circle")


def clear(colour: str, opacity: float) -> str:
    """Return a colour, given as #rrggbb, with an opacity."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def short_site(site: str) -> str:
    """Return the short name of a site: `pre`, `mid`."""
    return site.removeprefix("resid_")


def sides_by_side(index: int) -> dict[str, Any]:
    """Return the width and the z-order of the lines of a graph's first, second, … colour.

    The first is wide and behind the others, so it stays visible if they coincide with it.
    """
    return {"zorder": 1, "line_width": 1.4, "marker_size": 3.5} if index else {"zorder": 0, "line_width": 4.6}


def logarithmic_axis(values: ArrayLike) -> dict[str, Any]:
    """Return a logarithmic axis for these numbers, with a tick at each power of ten in one notation.

    Numbers that span at most one power of ten get ticks at 1, 2 and 5 times powers of ten.
    """
    numbers = np.asarray(values, dtype=np.float64)
    numbers = numbers[np.isfinite(numbers) & (numbers > 0)]
    if not len(numbers):
        return {"type": "log", "dtick": 1}
    lowest, highest = float(numbers.min()), float(numbers.max())
    if highest / lowest <= 10:
        ticks = round_numbers(lowest * 0.8, highest * 1.25)
        return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
    powers = range(int(np.floor(np.log10(lowest))), int(np.ceil(np.log10(highest))) + 1)
    plain = powers[0] >= -3 and powers[-1] <= 4
    return {
        "type": "log",
        "tickvals": [float(f"1e{power}") for power in powers],
        "ticktext": [f"{float(f'1e{power}'):g}" if plain else f"10<sup>{power}</sup>" for power in powers],
    }


def round_numbers(lowest: float, highest: float) -> list[float]:
    """Return the ticks of a logarithmic scale between two positive numbers: 1, 2 and 5 times the powers of ten."""
    powers = range(int(np.floor(np.log10(lowest))), int(np.ceil(np.log10(highest))) + 1)
    steps = [float(f"{step}e{power}") for power in powers for step in (1, 2, 5)]
    return [step for step in steps if lowest <= step <= highest]
