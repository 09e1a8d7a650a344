"""What the project knows about a result group, in one record: arrays, tables, needs, options, and where it is shown."""

from dataclasses import dataclass
from typing import Literal

Need = Literal["prompts", "contrasts", "weights", "resid_pre"]
"""What a group cannot be computed without: prompt sets, a contrast, the model's weights, the site `resid_pre`."""

Gathered = Literal["stream", "norms", "travel", "folds"]
"""What the first pass over the activations collects: moments of the stream, of norm layers, of steps, of folds."""


@dataclass(frozen=True)
class Variable:
    """One array of a result group, or one kind of array of activations.

    Attributes:
        name: its name in the store.
        dims: its dimensions.
        description: one sentence.
        units: of its values; `1` for a plain number.
        dtype: NumPy's name of the type that is stored.
        by_layer: whether it is too large for memory; then it has one chunk for each layer, written layer by layer.
        interval: beginning of the names of the ends of its 95 % interval, `…_low` and `…_high`; empty without one.
    """

    name: str
    dims: tuple[str, ...]
    description: str
    units: str = "1"
    dtype: str = "float64"
    by_layer: bool = False
    interval: str = ""


@dataclass(frozen=True)
class Group:
    """A result group: statistics that are computed, stored and shown together.

    Its name is the name of the files that hold its formulas (`statistics/`), its computation (`results/`), its figures
    and its sentences (`sections/`).

    Attributes:
        name: its name in the store, in specs and in URLs.
        title: what the page calls it.
        version: raised whenever one of its numbers could change; the next survey then computes it again.
        variables: its arrays.
        tables: its Parquet tables; one of the group's own name holds the same numbers as the arrays.
        needs: what it cannot be computed without.
        of_sets: what the first pass over the activations collects of each prompt set for it.
        of_sides: what that pass collects of each side of each contrast for it.
        requires: groups that must be computed before.
        options: the part of the spec that holds its options; None without any.
        always: whether every run with prompts has it.
        is_analysis: whether a spec names it under `analyses`.
        is_read_whole: whether readers get all its arrays in one call; the others have calls of their own.
        order: position in the report and on the page; None shows nothing.
    """

    name: str
    title: str
    version: int
    variables: tuple[Variable, ...] = ()
    tables: tuple[str, ...] = ()
    needs: frozenset[Need] = frozenset()
    of_sets: frozenset[Gathered] = frozenset()
    of_sides: frozenset[Gathered] = frozenset()
    requires: tuple[str, ...] = ()
    options: str | None = None
    always: bool = False
    is_analysis: bool = True
    is_read_whole: bool = True
    order: int | None = None

    @property
    def by_layer(self) -> dict[str, Variable]:
        """The arrays that are stored layer by layer, by name."""
        return {variable.name: variable for variable in self.variables if variable.by_layer}

    @property
    def uses_passes(self) -> bool:
        """Whether it comes from the passes over the activations that several groups share."""
        return bool(self.of_sets or self.of_sides)


STREAM_UNIT = "residual stream"
"""The unit of activations."""

PER_SET = ("set", "site", "position", "layer")
PER_CONTRAST = ("contrast", "site", "position", "layer")
PER_BLOCK = ("set", "position", "layer")
"""Dimensions of a statistic of each prompt set at each site, of each contrast at each site, of each whole block."""

N_SAMPLES = Variable("n_samples", ("set", "position"), "Number of prompts that the statistics use.", dtype="int64")
N_SIDES = (
    Variable(
        "n_positive",
        ("contrast", "position"),
        "Number of prompts of the positive set that the statistics use.",
        dtype="int64",
    ),
    Variable(
        "n_negative",
        ("contrast", "position"),
        "Number of prompts of the negative set that the statistics use.",
        dtype="int64",
    ),
)
"""How many prompts statistics of sets, or of contrasts, rest on."""
