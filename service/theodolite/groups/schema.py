"""The record of an analysis: its arrays, tables, inputs, options and place in the report."""

from collections.abc import Collection, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from theodolite.groups.dimensions import DIMENSIONS

Need = Literal["prompts", "contrasts", "weights", "resid_pre", "head_out", "experts"]
"""An input that a group requires: prompt sets, a contrast, the model's weights, a captured site, recorded experts."""

Output = Literal["stream", "norms", "travel", "folds"]
"""An output of the first pass over the activations: moments of the stream, of norm layers, of steps or of folds."""


ESTIMATE = "estimate"
"""The axis of a statistic with a 95 % interval: its value, and the ends of the interval and of the band."""

INTERVAL = ("value", "low", "high")
BAND = (*INTERVAL, "band_low", "band_high")
"""Labels of ESTIMATE: without, and with a simultaneous 95 % band over all sites and layers."""

VALUE_AND_BAND = ("value", "band_low", "band_high")

NULL = ("mean", "sd", "z", "p", "p_family")
NULL_AND_LIMIT = (*NULL, "critical")
"""Labels of the axis `null`: the distribution of a statistic with permuted labels or of controls, and its tests."""

LEVEL = 0.05
"""The family-wise error rate of the critical values."""

ENDS = {"attention": (0, 1), "mlp": (1, 2), "block": (0, 2)}
"""The states at which each sublayer starts and ends: 0 is the block's input, 1 its middle, 2 its output."""

SUBLAYERS = tuple(ENDS)

CHAPTERS = ("Separation", "Components", "Effects", "Geometry", "Words")
"""The chapters of the report, and the tabs of the page."""

SIDES = ("positive", "negative")
"""The two sets of a contrast."""

SPACES = ("raw", "sphere")
"""Unscaled activations, and activations scaled to norm √d_model."""


@dataclass(frozen=True)
class Variable:
    """One array of an analysis, or one kind of array of activations.

    Attributes:
        name: its name in the store.
        dims: its dimensions.
        description: one sentence.
        units: units of its values; `1` for a dimensionless number.
        dtype: NumPy's name of the stored type.
        by_layer: whether it is written layer by layer, one chunk for each layer, because it is too large for memory.
    """

    name: str
    dims: tuple[str, ...]
    description: str
    units: str = "1"
    dtype: str = "float64"
    by_layer: bool = False

    def chunk_shape(self, lengths: Mapping[Any, int]) -> tuple[int, ...]:
        """Return the shape of a chunk of an array that is stored by layer, given the length of each dimension.

        Each index of the layer, and of the dimensions before it, has its own chunk.
        """
        inner = self.dims.index("layer") + 1
        return tuple(1 if axis < inner else max(1, lengths[dim]) for axis, dim in enumerate(self.dims))


def variables(
    dims: tuple[str, ...], units: str = "1", dtype: str = "float64", **descriptions: str
) -> Iterator[Variable]:
    """Yield variables of the same dimensions, units and type; the keyword arguments are their names."""
    for name, description in descriptions.items():
        yield Variable(name, dims, description, units, dtype)


@dataclass(frozen=True)
class Column:
    """One column of a table: its name, one sentence, and the unit of its numbers; `1` without one, empty for labels."""

    name: str
    description: str
    units: str = ""


@dataclass(frozen=True)
class Table:
    """One Parquet table of an analysis: its name, one sentence, and its columns in their order."""

    name: str
    description: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """The names of its columns."""
        return [column.name for column in self.columns]


def at_axes(*axes: str) -> Iterator[Column]:
    """Yield the columns with the labels of axes."""
    for axis in axes:
        yield Column(axis, DIMENSIONS[axis])


def columns(units: str = "", **descriptions: str) -> Iterator[Column]:
    """Yield columns of the same units; the keyword arguments are their names."""
    for name, description in descriptions.items():
        yield Column(name, description, units)


_NOT_FLAT = frozenset({"d_model", "contrast_other", "layer_other", "norm_other", "n_prompts"})
_FIRST_AXES = ("contrast", "set", "site", "norm", "position", "layer")


def is_flat(dims: Collection[Any]) -> bool:
    """Return whether a group's flat table has the arrays of these dimensions.

    It leaves out statistics of single features, of pairs of contrasts, layers or norm layers, and of other numbers of
    prompts.
    """
    return "position" in dims and _NOT_FLAT.isdisjoint(dims)


def flat(name: str, variables: tuple[Variable, ...]) -> Table:
    """Return the table that has a group's name and one row for each number of the arrays that are flat."""
    axes = {dim for variable in variables for dim in variable.dims} - _NOT_FLAT
    ordered = [axis for axis in _FIRST_AXES if axis in axes] + sorted(axes - set(_FIRST_AXES))
    found = (
        Column("statistic", "The name of the array."),
        *at_axes(*ordered),
        Column("value", "The number, in the unit of the array."),
    )
    if {"site", "layer"} <= axes:
        found = (*found, Column("depth", "Half blocks along the stream, from 0; -1 without a site.", "half blocks"))
    return Table(
        name,
        "The numbers of the arrays with a position, one in each row; an axis that an array lacks is empty, -1 or NaN.",
        found,
    )


@dataclass(frozen=True)
class Group:
    """An analysis: statistics that are computed, stored and shown together.

    Attributes:
        name: its name in the store, in specs and in URLs.
        title: its title in the report and on the page.
        order: its place in the computation and in its chapter; a group comes after those that it requires.
        chapter: the chapter of the report that shows it; empty for a group that is not shown.
        version: increases with each change of its numbers by more than rounding; the next survey then computes the
            group again.
        variables: its arrays.
        labels: the labels of those dimensions that are the same in every run.
        tables: its Parquet tables; a table with the group's name has the same numbers as the arrays.
        needs: its required inputs.
        least_samples: smallest number of stored prompts of a set with which it has a meaning.
        per_set: outputs of the first pass that it uses for each prompt set.
        per_side: outputs of the first pass that it uses for each side of each contrast.
        absent: combinations of labels that no array has.
        requires: groups that must be computed before it.
        options: section of the spec with its options, or None.
        always: whether every run with prompts has it.
        is_requestable: whether a spec can name it under `analyses`.
        on_request: whether a survey has it only if the spec names it, or has the section with its options.
    """

    name: str
    title: str
    order: int
    chapter: str = ""
    version: int = 1
    variables: tuple[Variable, ...] = ()
    labels: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    needs: frozenset[Need] = frozenset()
    least_samples: int = 0
    per_set: frozenset[Output] = frozenset()
    per_side: frozenset[Output] = frozenset()
    absent: tuple[Mapping[str, str], ...] = ()
    requires: tuple[str, ...] = ()
    options: str | None = None
    always: bool = False
    is_requestable: bool = True
    on_request: bool = False

    @property
    def flat_table(self) -> Table | None:
        """The table with its own name, if it has one."""
        return next((table for table in self.tables if table.name == self.name), None)

    @property
    def by_layer(self) -> dict[str, Variable]:
        """Its variables that are stored layer by layer, by name."""
        return {variable.name: variable for variable in self.variables if variable.by_layer}

    def shape(self, variable: Variable, coordinates: Mapping[str, Sized]) -> tuple[int, ...]:
        """Return the shape of one of its arrays; `coordinates` are the labels that differ between runs."""
        labels = {**coordinates, **self.labels}
        return tuple(len(labels[dim]) for dim in variable.dims)

    def places(self, dims: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        """Yield each combination of the group's labels along some dimensions that exists, without those of ESTIMATE."""
        axes = [dim for dim in dims if dim in self.labels and dim != ESTIMATE]
        for chosen in product(*(self.labels[axis] for axis in axes)):
            place = dict(zip(axes, chosen, strict=True))
            if not any(absent.items() <= place.items() for absent in self.absent):
                yield place

    @property
    def outputs(self) -> frozenset[Output]:
        """What it uses of the passes over the activations, which several groups share."""
        return self.per_set | self.per_side


STREAM_UNIT = "residual stream"
"""The unit of activations."""

PER_SET = ("set", "site", "position", "layer")
PER_CONTRAST = ("contrast", "site", "position", "layer")
PER_BLOCK = ("set", "position", "layer")
"""Dimensions of statistics: per prompt set and site, per contrast and site, per prompt set and block."""

N_SAMPLES = Variable("n_samples", ("set", "position"), "Number of prompts that the statistics use.", dtype="int64")
N_USED = Variable(
    "n_used",
    ("contrast", "position", "prompt_side"),
    "Number of prompts of each side that the statistics use.",
    dtype="int64",
)
"""Numbers of prompts: N_SAMPLES for statistics of sets, N_USED for statistics of contrasts."""


AT_EXTREME = (
    "1 at each pre and mid depth that may have the {} true value, by paired differences between depths (95 %); else 0."
)
"""Description of the arrays that mark the depths whose true value may be the `largest` or the `smallest`."""
