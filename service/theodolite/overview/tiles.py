"""The four questions of an overview, each with its number, its answer, and the rule of the answer."""

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from theodolite.groups.effects.record import ADD
from theodolite.groups.schema import LEVEL, VALUE_AND_BAND
from theodolite.groups.separation.record import LEAST_PROMPTS
from theodolite.query.curves import along_depth, end_of
from theodolite.query.effects import exceeds_controls, onset_place, strictest
from theodolite.sections.parts import layer_of

YES, PARTLY, NO, UNTESTED = "✓", "~", "✗", "?"
"""The answers to a question."""


@dataclass(frozen=True)
class Glyph:
    """A number on a scale, with its simultaneous interval and the value that chance gives."""

    value: float
    low: float
    high: float
    chance: float
    scale: tuple[float, float]


@dataclass(frozen=True)
class Tile:
    """A question, the number that answers it, the answer, and the rule that decides it."""

    question: str
    answer: str
    number: str
    rule: str
    glyph: Glyph | None = None


@dataclass(frozen=True)
class Measured:
    """What the questions of one contrast at one position are answered with; None where a run lacks it.

    Attributes:
        statistic: `paired_accuracy` for matched pairs, else `auroc`.
        separation: the analysis `separation`, (site, layer).
        tests: the analysis `permutations`, (site, layer).
        twin: the analysis `separation` of the untrained twin.
        effects: the analysis `effects`.
        is_trained: whether the weights are trained, so that an untrained twin can exist.
        unknown: why nothing can be concluded; empty if something can be.
    """

    statistic: str
    separation: xr.Dataset
    tests: xr.Dataset | None
    twin: xr.Dataset | None
    effects: xr.Dataset | None
    is_trained: bool
    unknown: str = ""


def tiles(measured: Measured) -> list[Tile]:
    """Return the four tiles of an overview."""
    return [_separable(measured), _beyond_words(measured), _beyond_untrained(measured), _used(measured)]


def number_text(statistic: str, value: float) -> str:
    """Return a value of a statistic as tiles write it: `97.3 %` of pairs, or an AUROC such as `0.973`."""
    return f"{100 * value:.1f} %" if statistic == "paired_accuracy" else f"{value:.3f}"


def _difference_text(statistic: str, value: float) -> str:
    return f"{100 * value:+.1f} points" if statistic == "paired_accuracy" else f"{value:+.3f}"


def _separable(measured: Measured) -> Tile:
    statistic, question = measured.statistic, "Separable?"
    values = measured.separation[statistic]
    if measured.unknown or not _is_known(values):
        return Tile(question, UNTESTED, "not known", measured.unknown or "no direction can be fitted")
    glyph, where = _at_largest(values, 0.5, (0.0, 1.0))
    number = f"{number_text(statistic, glyph.value)} {'of pairs in order' if statistic != 'auroc' else 'AUROC'}"
    p = None if measured.tests is None else measured.tests["tested_null"].sel(tested=statistic, null="p_family")
    if p is None or not _is_known(p):
        return Tile(question, UNTESTED, f"{number}, {where}", "no permutation test", glyph)
    smallest = float(np.nanmin(p))
    if smallest > LEVEL and measured.separation["n_used"].min() < LEAST_PROMPTS:
        few = f"with fewer than {LEAST_PROMPTS} prompts in a set, no p can be at most {LEVEL}"
        return Tile(question, UNTESTED, f"{number}, {where}", few, glyph)
    rule = f"✓ if a family-wise p of permuted labels is at most {LEVEL} (smallest: {smallest:.2g})"
    return Tile(question, YES if smallest <= LEVEL else NO, f"{number}, {where}", rule, glyph)


def _beyond_words(measured: Measured) -> Tile:
    question, tests = "Beyond words?", measured.tests
    values = None if tests is None else tests["beyond"].sel(control="words")
    if measured.unknown or values is None or not _is_known(values.sel(held_out=measured.statistic), "band_low"):
        return Tile(question, UNTESTED, "not tested", "token counts were not compared")
    tile = _difference(question, measured.statistic, values.sel(held_out=measured.statistic), "token counts")
    by_ridge = int((along_depth(values.sel(held_out="ridge_auroc"), "band_low") > 0).sum())
    if tile.answer == NO and by_ridge:
        return replace(
            tile, answer=PARTLY, rule=f"{tile.rule}; ~ if only that by ridge regression does (at {by_ridge})"
        )
    return tile


def _beyond_untrained(measured: Measured) -> Tile:
    question = "Beyond untrained?"
    if not measured.is_trained:
        return Tile(question, UNTESTED, "untrained itself", "this model has random weights")
    if measured.twin is None or "auroc_beyond_twin" not in measured.twin:
        return Tile(question, UNTESTED, "not tested", "survey the spec again with model: {weights: random}")
    values = measured.twin["auroc_beyond_twin"]
    if measured.unknown or not _is_known(values, "band_low"):
        return Tile(question, UNTESTED, "not tested", "one of the runs has no permutation tests")
    return _difference(question, "auroc", values, "an untrained twin")


def _difference(question: str, statistic: str, values: xr.DataArray, control: str) -> Tile:
    """Return the tile of a statistic minus that of a control, which is 0 if both separate the sets equally."""
    glyph, where = _at_largest(values, 0.0, (-0.5, 0.5))
    above = along_depth(values, "band_low") > 0
    number = f"{_difference_text(statistic, glyph.value)}, {where}"
    rule = f"✓ if the simultaneous interval of the difference from {control} lies above 0 at a depth"
    return Tile(question, YES if above.any() else NO, number, f"{rule} (it does at {int(above.sum())})", glyph)


def _used(measured: Measured) -> Tile:
    question, effects = "Does the model use it?", measured.effects
    if effects is None:
        return Tile(question, UNTESTED, "not tested", "the spec has no section effects")
    has_sign = bool(np.isfinite(effects["expected_sign"]).any())
    p = strictest(effects, "log_odds" if has_sign else "kl", ADD, "p_family")
    tested = p.notnull().all("prompt_side")
    if not tested.any():
        return Tile(question, UNTESTED, "not tested", "no control can be compared")
    passes = exceeds_controls(effects) if has_sign else (p <= LEVEL).all("prompt_side")
    count = f"{int(passes.sum())} of {int(tested.sum())} layers"
    if not has_sign:
        why = "the sets do not differ in their next token, so only the size of the change is compared with controls"
        return Tile(question, PARTLY if passes.any() else NO, count, f"~ if a layer passes: {why}")
    answer = YES if onset_place(passes, tested) else PARTLY if passes.any() else NO
    moves = "adding the direction moves both sets farther than all control directions"
    return Tile(question, answer, count, f"✓ if, from a layer on, {moves}; ~ if at some layers")


def _is_known(values: xr.DataArray, estimate: str = "value") -> bool:
    return bool(np.isfinite(end_of(values, estimate)).any())


def _at_largest(values: xr.DataArray, chance: float, scale: tuple[float, float]) -> tuple[Glyph, str]:
    """Return the largest value along depth with its simultaneous interval, and its depth as a text."""
    value, low, high = (along_depth(values, end) for end in VALUE_AND_BAND)
    best = int(np.nanargmax(value.values))
    left, right = scale
    at, below, above = (float(one[best]) for one in (value, low, high))
    known = [one for one in (at, below, above) if np.isfinite(one)]
    scale = (min(left, *known), max(right, *known))
    return Glyph(at, below, above, chance, scale), layer_of(value, best)
