"""What a section is made of."""

from collections.abc import Callable
from dataclasses import dataclass, field

import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.style import set_colours
from theodolite.sites import depth_label
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

SIDES = ("positive", "negative")
"""The two sets of a contrast."""


@dataclass(frozen=True)
class Table:
    """A table that is folded away until it is opened."""

    caption: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Figure:
    """A figure that is drawn when it is asked for.

    Attributes:
        name: its name in the run, parts with dots: `gram.shape`, `gram.cka.harmful`.
        caption: what stands above it.
        draw: makes it.
        circuit: of a map of heads, the circuit whose card a click on a cell opens.
    """

    name: str
    caption: str
    draw: Callable[[], go.Figure]
    circuit: str = ""


@dataclass(frozen=True)
class Section:
    """What is seen, in sentences made from the numbers, and the figures.

    Attributes:
        title: what it is about, and what it rests on.
        facts: sentences.
        figures: each as wide as the page.
        maps: figures that stand side by side.
        tables: numbers to look up.
        notes: conventions.
    """

    title: str
    facts: list[str]
    figures: list[Figure] = field(default_factory=list)
    maps: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def last_position(group: xr.Dataset) -> int:
    """Return the position that sections are about: the last one measured."""
    return int(group["position"].values[-1])


def colours_of(run: Run, group: xr.Dataset, count: str = "n_samples") -> dict[str, str]:
    """Return the colour of each set that has prompts at the last position."""
    counted = group[count].sel(position=last_position(group))
    names = [str(name) for name in group["set"].values if int(counted.sel(set=name)) > 0]
    return set_colours(names, read_group(run, "curves").attrs["contrasts"])


def said_counts(group: xr.Dataset, names: list[str]) -> str:
    """Return how many prompts of each set figures rest on: `256 harmful, 256 harmless`."""
    counted = group["n_samples"].sel(position=last_position(group))
    return ", ".join(f"{int(counted.sel(set=name))} {name}" for name in names)


def place_of(curve: xr.DataArray, index: int) -> str:
    """Return the location of one point of a curve along depth: `17-mid`."""
    return depth_label(int(curve["depth"][index]))
