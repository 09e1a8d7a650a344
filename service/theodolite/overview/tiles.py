"""The four questions of an overview, each with its number, its answer, and the rule of the answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from theodolite.groups.effects.record import ADD, CONTROLS
from theodolite.groups.schema import LEVEL, VALUE_AND_BAND
from theodolite.groups.separation.record import LEAST_PROMPTS, MOST_EQUAL_PAIRS
from theodolite.query.curves import along_depth, end_of
from theodolite.query.effects import changes_more, control_kinds, exceeds_controls, onset_place, strictest

YES, PARTLY, NO, UNTESTED = "✓", "~", "✗", "?"
"""The answers to a question."""

_CLASSIFIERS = 2  # tests of separation: Bonferroni's correction of the second one


@dataclass(frozen=True)
class Glyph:
    """A number on a scale, with its simultaneous interval, also as text, and the value that chance gives."""

    value: float
    low: float
    high: float
    chance: float
    scale: tuple[float, float]
    interval: str = ""


@dataclass(frozen=True)
class Tile:
    """A question, the number that answers it, the answer, the rule that decides it, and its words in the sentence."""

    question: str
    answer: str
    number: str
    rule: str
    glyph: Glyph | None = None
    claim: str = ""


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
        places: the names of the depths, in the order of the stream.
        unknown: why nothing can be concluded; empty if something can be.
        unfinished: the analyses that are requested and not finished.
        is_mean: whether the position is a mean over tokens, at which there are no effects.
    """

    statistic: str
    separation: xr.Dataset
    tests: xr.Dataset | None
    twin: xr.Dataset | None
    effects: xr.Dataset | None
    is_trained: bool
    places: list[str]
    unknown: str = ""
    unfinished: Sequence[str] = ()
    is_mean: bool = False

    @property
    def has_twin(self) -> bool:
        """Whether the difference from an untrained twin is known with its band."""
        if self.unknown or self.twin is None or "auroc_beyond_twin" not in self.twin:
            return False
        return _is_known(self.twin["auroc_beyond_twin"], "band_low")


def tiles(measured: Measured) -> list[Tile]:
    """Return the four tiles of an overview."""
    return [_separable(measured), _beyond_words(measured), _beyond_untrained(measured), _used(measured)]


def number_text(statistic: str, value: float) -> str:
    """Return a value of a statistic as tiles write it: `97.3 %` of pairs, or an AUROC such as `0.973`."""
    return f"{100 * value:.1f} %" if statistic == "paired_accuracy" else f"{value:.3f}"


def _separable(measured: Measured) -> Tile:
    statistic, question = measured.statistic, "Separable?"
    values = measured.separation[statistic]
    if measured.unknown or not _is_known(values):
        return Tile(question, UNTESTED, "not known", measured.unknown or "no direction can be fitted")
    glyph, best = _at_largest(values, 0.5, (0.0, 1.0), lambda end: number_text(statistic, end).removesuffix(" %"))
    number = f"{number_text(statistic, glyph.value)} {'of pairs in order' if statistic != 'auroc' else 'AUROC'}"
    equal = int((along_depth(values) == glyph.value).sum())
    where = measured.places[best] if equal == 1 else f"{equal} depths"
    tile = Tile(question, NO, f"{number}, {where}", "", glyph, "are not shown to separate")
    tests = None if measured.tests is None else measured.tests["tested_null"].sel(null="p_family")
    if tests is None or not _is_known(tests.sel(tested=statistic)):
        rule = "no permutation test: ✓ if the simultaneous interval of the largest value lies above chance"
        return _passed(tile, rule) if glyph.low > glyph.chance else replace(tile, rule=rule)
    p = float(along_depth(tests.sel(tested=statistic))[best])
    rule = f"✓ if the family-wise p of the largest value is at most {LEVEL} (it is {p:.2g})"
    if p <= LEVEL:
        return _passed(tile, rule)
    if measured.separation["n_used"].min() < LEAST_PROMPTS:
        few = f"with fewer than {LEAST_PROMPTS} prompts in a set, no p can be at most {LEVEL}"
        return replace(tile, answer=UNTESTED, rule=few, claim="are too few to test")
    ridge = _ridge_p(measured)
    if _CLASSIFIERS * ridge <= LEVEL:
        rule += f"; ~ if only ridge regression passes (p = {ridge:.2g}, one of two tests)"
        return replace(tile, answer=PARTLY, rule=rule, claim="separate by ridge regression alone")
    return replace(tile, rule=rule)


def _passed(tile: Tile, rule: str) -> Tile:
    return replace(tile, answer=YES, rule=rule, claim="separate")


def _ridge_p(measured: Measured) -> float:
    """Return the family-wise p of the largest AUROC by ridge regression; infinite if it is unknown."""
    assert measured.tests is not None
    ridge = along_depth(measured.tests["score_auroc"].sel(scored_by="ridge"))
    if not np.isfinite(ridge).any():
        return np.inf
    p = along_depth(measured.tests["tested_null"].sel(tested="ridge_auroc", null="p_family"))
    return float(np.nan_to_num(p[int(np.nanargmax(ridge.values))], nan=np.inf))


def _beyond_words(measured: Measured) -> Tile:
    question, tests = "Beyond words?", measured.tests
    untested = Tile(question, UNTESTED, "not tested", "token counts were not compared", claim=", words not compared")
    if measured.unknown:
        return replace(untested, rule=measured.unknown, claim="")
    if tests is None:
        return _unfinished(question) if "permutations" in measured.unfinished else untested
    values = tests["beyond"].sel(control="words")
    if not _is_known(values.sel(held_out=measured.statistic), "band_low"):
        return untested
    if words_share(measured) == 1:
        rule = "token counts alone order all prompts, so nothing can lie above them"
        return Tile(question, UNTESTED, "words alone reach 100 %", rule, claim=", as their words alone do")
    tile = _difference(measured, question, values.sel(held_out=measured.statistic), "token counts")
    if float(tests["tokens_equal_pairs"]) > MOST_EQUAL_PAIRS:
        rule = "token counts are a weak control: they are equal in most pairs"
        return replace(tile, answer=UNTESTED, rule=rule, claim="")
    if tile.answer == YES:
        return replace(tile, claim=", beyond their words")
    by_ridge = int((along_depth(values.sel(held_out="ridge_auroc"), "band_low") > 0).sum())
    if not by_ridge:
        return replace(tile, claim=", not shown beyond their words")
    rule = f"{tile.rule}; ~ if only the difference by ridge regression does (at {by_ridge} depths)"
    return replace(tile, answer=PARTLY, rule=rule, claim=", beyond their words only by ridge regression")


def words_share(measured: Measured) -> float:
    """Return the AUROC, or share of pairs, that token counts alone reach by the better classifier; NaN if unknown."""
    assert measured.tests is not None
    reached = measured.tests["tokens"].sel(measure=measured.statistic, estimate="value")
    return float(reached.max())


def _beyond_untrained(measured: Measured) -> Tile:
    question = "Beyond untrained?"
    if not measured.is_trained:
        return Tile(question, UNTESTED, "untrained itself", "this model has random weights")
    if not measured.has_twin:
        command = "survey the spec again with model: {weights: random}"
        return Tile(question, UNTESTED, "not tested", measured.unknown or command)
    assert measured.twin is not None
    return _difference(measured, question, measured.twin["auroc_beyond_twin"], "an untrained twin")


def _difference(measured: Measured, question: str, values: xr.DataArray, control: str) -> Tile:
    """Return the tile of a statistic minus that of a control, which is 0 if both separate the sets equally."""
    is_pairs = measured.statistic == "paired_accuracy" and control == "token counts"

    def text(difference: float) -> str:
        return f"{100 * difference:+.1f}" if is_pairs else f"{difference:+.3f}"

    glyph, best = _at_largest(values, 0.0, (-0.5, 0.5), text)
    above = along_depth(values, "band_low") > 0
    size = f"{text(glyph.value)} {'points' if is_pairs else 'AUROC'}"
    rule = f"✓ if the simultaneous interval of the difference from {control} lies above 0 at a depth"
    answer = YES if above.any() else NO
    number = f"{size}, {measured.places[best]}"
    return Tile(question, answer, number, f"{rule} (it does at {int(above.sum())} of {above.size})", glyph)


def _used(measured: Measured) -> Tile:
    question, effects = "Does the model use it?", measured.effects
    if effects is None and "effects" in measured.unfinished and not measured.is_mean:
        return _unfinished(question)
    if effects is None or measured.unknown:
        reason = "a mean over tokens is no state to change" if measured.is_mean else "the spec has no section effects"
        return Tile(question, UNTESTED, "not tested", measured.unknown or reason)
    has_sign = bool(np.isfinite(effects["expected_sign"]).any())
    measure = "log_odds" if has_sign else "kl"
    tested = strictest(effects, measure, ADD, "p_family").notnull().all("prompt_side")
    if not tested.any():
        return Tile(question, UNTESTED, "not tested", "no control can be compared")
    passes = exceeds_controls(effects) if has_sign else changes_more(effects)
    places = "layers" if effects.sizes["site"] == 1 else "places"
    number = f"{int(passes.sum())} of {int(tested.sum())} {places} above controls"
    tile = Tile(question, NO, number, "", claim="; no use by the model shown")
    if not has_sign:
        rule = (
            "~ if adding the direction changes the next token of both sets more than all controls at some; no sign is "
            "predicted, since the log-odds of the sets may be equal"
        )
        claim = "; it changes the next token"
        return replace(tile, answer=PARTLY, rule=rule, claim=claim) if passes.any() else replace(tile, rule=rule)
    rule = f"✓ if adding the direction moves both sets farther than all controls at all tested {places} from one on"
    one_kind = passes & (control_kinds(effects, measure) < len(CONTROLS))
    if one_kind.any():
        rule += f"; at {int(one_kind.sum())} only one kind of controls can be compared"
    if onset_place(passes, tested):
        return replace(tile, answer=YES, rule=rule, claim="; the model uses the direction")
    if passes.any():
        return replace(tile, answer=PARTLY, rule=f"{rule}; ~ if at some", claim="; partly used by the model")
    return replace(tile, rule=rule)


def _unfinished(question: str) -> Tile:
    return Tile(question, UNTESTED, "not finished", "the survey has not computed this yet")


def _is_known(values: xr.DataArray, estimate: str = "value") -> bool:
    return bool(np.isfinite(end_of(values, estimate)).any())


def _at_largest(
    values: xr.DataArray, chance: float, scale: tuple[float, float], text: Callable[[float], str]
) -> tuple[Glyph, int]:
    """Return the largest value along depth with its simultaneous interval, and its index; `text` writes an end."""
    value, low, high = (along_depth(values, end) for end in VALUE_AND_BAND)
    best = int(np.nanargmax(value.values))
    left, right = scale
    at, below, above = (float(one[best]) for one in (value, low, high))
    known = [one for one in (at, below, above) if np.isfinite(one)]
    scale = (min(left, *known), max(right, *known))
    interval = f"[{text(below)}, {text(above)}]" if np.isfinite([below, above]).all() else ""
    return Glyph(at, below, above, chance, scale, interval), best
