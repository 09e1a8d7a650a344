"""Curves and clouds of points as static SVG that fits any width: lines stretch, their labels and strokes do not.

A chart is a box of percentages. The SVG inside has a coordinate system of 1,000 by 1,000 that stretches with the box;
strokes keep their width, and markers are strokes without length, which stay round. Labels are elements of the page.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import floor, log10

import numpy as np
from numpy.typing import ArrayLike, NDArray

SIZE = 1000
"""The width and the height of the coordinate system."""


@dataclass(frozen=True)
class Curve:
    """A line: its class says the colour; `label` stands at its right end; filled markers at `filled` depths."""

    y: NDArray[np.float64]
    kind: str
    label: str = ""
    filled: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Band:
    """An area between two curves."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    kind: str


@dataclass(frozen=True)
class Chart:
    """Curves over a shared axis of depths.

    Attributes:
        title: what the vertical axis shows.
        x: depths in half-blocks, ascending.
        curves: the lines, the first one in front.
        bands: areas behind them, the first one at the back.
        levels: horizontal hairlines: value and label.
        bracket: depths that may have the largest value, or none.
        strip: a number from 0 to 1 at each depth, drawn under the axis; none draws no strip.
        selected: the depth of the vertical line, or None.
        form: format of the labels of the vertical axis.
        logarithmic: whether the vertical axis is.
    """

    title: str
    x: NDArray[np.float64]
    curves: Sequence[Curve]
    bands: Sequence[Band] = ()
    levels: Sequence[tuple[float, str]] = ()
    bracket: NDArray[np.bool_] | None = None
    strip: NDArray[np.float64] | None = None
    selected: float | None = None
    form: str = "g"
    logarithmic: bool = False
    ends: tuple[float, float] = field(init=False)

    def __post_init__(self) -> None:
        """Find the ends of the vertical axis."""
        object.__setattr__(self, "ends", self._ends())

    def _ends(self) -> tuple[float, float]:
        drawn = [curve.y for curve in self.curves]
        drawn += [end for band in self.bands for end in (band.low, band.high)]
        values = self.scaled(np.concatenate([*map(np.ravel, drawn), [level for level, _ in self.levels]]))
        values = values[np.isfinite(values)]
        if not len(values):
            return 0.0, 1.0
        room = 0.06 * (float(np.ptp(values)) or abs(float(values[0])) or 1.0)
        return float(values.min()) - room, float(values.max()) + room

    @property
    def depths(self) -> str:
        """All depths, for a script that finds the nearest one."""
        return " ".join(f"{depth:.0f}" for depth in self.x)

    def scaled(self, values: ArrayLike) -> NDArray[np.float64]:
        """Return values as the vertical axis counts them."""
        numbers = np.asarray(values, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log10(numbers) if self.logarithmic else numbers

    def across(self, depths: ArrayLike) -> NDArray[np.float64]:
        """Return the horizontal positions of depths, from 0 to SIZE."""
        span = float(self.x[-1] - self.x[0]) or 1.0
        return np.asarray(SIZE * (np.asarray(depths, dtype=np.float64) - self.x[0]) / span)

    def down(self, values: ArrayLike) -> NDArray[np.float64]:
        """Return the vertical positions of values, from 0 at the top to SIZE."""
        low, high = self.ends
        return np.asarray(np.clip(SIZE * (high - self.scaled(values)) / (high - low), 0, SIZE))

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """The marks of the vertical axis: their positions in percent from the top, and their texts."""
        low, high = self.ends
        if self.logarithmic:
            powers = range(int(np.ceil(low)), floor(high) + 1)
            exponents = powers if len(powers) > 1 else np.linspace(low, high, 3)[1:2]
            values = [10.0**power for power in exponents][:: max(1, len(powers) // 4)]
            return [(float(self.down(value)) / 10, f"{value:g}") for value in values]
        return [(float(self.down(value)) / 10, f"{value:{self.form}}") for value in round_ticks(low, high)]

    @property
    def layer_ticks(self) -> list[tuple[float, str]]:
        """The marks of the depth axis at about six layers: positions in percent, and the number of the layer."""
        layers = sorted({int(depth) // 2 for depth in self.x})
        step = max(1, round(len(layers) / 6))
        return [(float(self.across(2 * layer)) / 10, str(layer)) for layer in layers[::step] if 2 * layer >= self.x[0]]

    @property
    def end_labels(self) -> list[tuple[float, str, str]]:
        """The labels at the right ends of the lines: positions in percent from the top, kinds and texts."""
        wanted = []
        for curve in self.curves:
            known = curve.y[np.isfinite(curve.y)]
            if curve.label and len(known):
                wanted.append((float(self.down(known[-1])) / 10, curve.kind, curve.label))
        wanted += [(float(self.down(level)) / 10, "level", label) for level, label in self.levels if label]
        return list(_apart(sorted(wanted)))

    def path(self, y: NDArray[np.float64]) -> str:
        """Return the line of a curve; it has gaps where values are missing."""
        points, pen = [], "M"
        for across, down, value in zip(self.across(self.x), self.down(y), y, strict=True):
            if np.isfinite(value):
                points.append(f"{pen}{across:.1f} {down:.1f}")
                pen = "L"
            else:
                pen = "M"
        return "".join(points)

    def area(self, band: Band) -> str:
        """Return the outline of a band; it has gaps where an end is missing."""
        known = np.isfinite(band.low) & np.isfinite(band.high)
        pieces = []
        for piece in np.split(np.flatnonzero(known), np.flatnonzero(np.diff(np.flatnonzero(known)) > 1) + 1):
            if len(piece):
                across = self.across(self.x[piece])
                upper = zip(across, self.down(band.high[piece]), strict=True)
                lower = zip(across[::-1], self.down(band.low[piece])[::-1], strict=True)
                pieces.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (*upper, *lower)) + "Z")
        return "".join(pieces)

    def dots(self, curve: Curve, *, filled: bool) -> str:
        """Return the markers of a curve that are filled, or those that are hollow."""
        if curve.filled is None:
            return ""
        chosen = np.isfinite(curve.y) & (curve.filled == filled)
        return dots(self.across(self.x)[chosen], self.down(curve.y)[chosen])

    @property
    def bracket_spans(self) -> list[tuple[float, float]]:
        """The depths that may have the largest value, as left ends and widths in percent."""
        return self._spans(self.bracket)

    @property
    def unreliable_spans(self) -> list[tuple[float, float]]:
        """The depths whose strip is below one half, as left ends and widths in percent."""
        return [] if self.strip is None else self._spans(np.nan_to_num(self.strip, nan=1.0) < 0.5)

    @property
    def strip_cells(self) -> list[tuple[float, float, float]]:
        """The cells of the strip: left ends and widths in percent, and opacities."""
        if self.strip is None:
            return []
        edges = self._edges()
        cells = zip(edges[:-1], np.diff(edges), np.nan_to_num(self.strip), strict=True)
        return [(float(left), float(width), float(opacity)) for left, width, opacity in cells]

    def _edges(self) -> NDArray[np.float64]:
        """Return the borders between depths in percent."""
        middle = self.across(self.x) / 10
        return np.concatenate([[0.0], (middle[1:] + middle[:-1]) / 2, [100.0]])

    def _spans(self, chosen: NDArray[np.bool_] | None) -> list[tuple[float, float]]:
        indices = np.flatnonzero(chosen) if chosen is not None else np.array([], dtype=int)
        edges = self._edges()
        runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
        return [(float(edges[run[0]]), float(edges[run[-1] + 1] - edges[run[0]])) for run in runs if len(run)]


def dots(across: NDArray[np.float64], down: NDArray[np.float64]) -> str:
    """Return markers at positions, as strokes without length."""
    return "".join(f"M{x:.1f} {y:.1f}h0" for x, y in zip(across, down, strict=True))


def round_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers between two ends, with at most `most` steps of 1, 2 or 5 times a power of ten."""
    span = high - low
    power = 10.0 ** floor(log10(span / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= most)
    first = np.ceil(low / step) * step
    return [float(f"{tick:.12g}") + 0.0 for tick in np.arange(first, high + step * 1e-9, step)]


def _apart(labels: Sequence[tuple[float, str, str]], gap: float = 8.0) -> Iterator[tuple[float, str, str]]:
    """Yield labels from top to bottom, moved so far that neighbours are a gap apart, and inside the box."""
    tops = np.array([top for top, _, _ in labels])
    for index in range(1, len(tops)):
        tops[index] = max(tops[index], tops[index - 1] + gap)
    if len(tops) and tops[-1] > 100:
        tops[-1] = 100
        for index in range(len(tops) - 2, -1, -1):
            tops[index] = min(tops[index], tops[index + 1] - gap)
    for top, (_, kind, label) in zip(tops, labels, strict=True):
        yield float(top), kind, label
