"""The parts of a section: sentences, figures and tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import SupportsFloat

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.sinks import limit_axes
from theodolite.drawing.style import set_colours
from theodolite.groups.schema import INTERVAL, SIDES, VALUE_AND_BAND
from theodolite.query.curves import along_depth
from theodolite.query.first_tokens import SINK
from theodolite.sections.worth import UNTESTED, Worth
from theodolite.sites import HALF_BLOCKS, depth_label
from theodolite.spec_parts import Label
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

BRACKETS = "numbers in square brackets are 95 % intervals"
"""Note of sections whose sentences have intervals."""

BAND = (
    "simultaneous 95 % intervals contain, with a probability of about 95 %, the true values of one statistic at all "
    "depths. They are the pale bands of figures, and the intervals in brackets of smallest and largest values, of "
    "accuracy and of the share of pairs in the right order. Every other interval is for one depth, as a dark band is"
)
"""Note of sections that state an extreme over depths with its interval."""

LARGEST = "a largest value without brackets has no interval; as the largest of many values, it is biased upwards"
"""Note of sections that state an extreme without an interval."""

LOCATION = (
    "another depth could have the largest (or smallest) value with other prompts if chance explains the difference of "
    "both: the chance of the scored prompts, and of those to which the directions of both depths are fitted, which can "
    "be larger than the bands of the figures. With a probability of about 95 %, these depths, with the named one, "
    "include the depth whose true value is the largest (or smallest). At most the first 512 prompts of each set count "
    "for AUROC and pairs"
)
"""Note of sections that state where a statistic is largest or smallest."""

CHANCE = (
    "chance is what the same prompts give with permuted labels; in a paired contrast, labels are exchanged only inside "
    "a pair. z is a statistic minus its mean with permuted labels, divided by their standard deviation. The "
    "family-wise p of a statistic is the share of permutations whose largest z, over all depths, heads or experts, is "
    "at least as large as the z of the statistic. Each statistic is tested by itself. The tests are one-sided: they "
    "look for values above chance, unless the text says otherwise. The real labels count as one of the permutations, "
    "so with 200 random permutations the smallest possible p is 1/201 ≈ 0.005"
)
"""Note of sections whose sentences have permutation tests."""

_MOST_RANGES = 3  # of depths, in one sentence

MISSING = "\N{EN DASH}"
"""A value that is missing in a table."""


def percent(share: SupportsFloat, digits: int) -> str:
    """Return a share as percent with this number of decimal places, such as `99.2 %`."""
    return f"{number(100 * float(share), digits)} %"


def percents(*shares: SupportsFloat, digits: int) -> list[str]:
    """Return shares that are compared, as percent; with two significant digits if all would otherwise read 0."""
    rounded = [percent(share, digits) for share in shares]
    zero = percent(0, digits)
    return rounded if set(rounded) != {zero} else [f"{significant(100 * float(share))} %" for share in shares]


def number(value: SupportsFloat, digits: int) -> str:
    """Return a number with this number of decimal places, without a minus sign before zeros."""
    return f"{round(float(value), digits) + 0.0:.{digits}f}"  # + 0.0 turns -0 into 0


@dataclass(frozen=True)
class Table:
    """A table; report and page show it folded, under its caption. The note, full sentences, stands above its rows."""

    caption: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure that is drawn on request.

    Its name has dots between its parts, such as `gram.cka.harmful`; the first part is the analysis. A map of heads
    has a `circuit`, and a click on a cell opens the head's card.
    """

    name: str
    caption: str
    draw: Callable[[], go.Figure]
    circuit: str = ""


@dataclass(frozen=True)
class Section:
    """Findings of one analysis.

    Attributes:
        title: subject and numbers of prompts.
        facts: sentences; each states a finding, its number and what it is compared with.
        figures: figures that are as wide as the page.
        maps: small figures, side by side.
        notes: conventions, without a full stop.
        how_to_read: explanation of the figures; empty for figures that need none.
        finding: the main result as one or more sentences, for the conclusion; empty if there is none.
        headline: the main result in one sentence of at most 25 words; empty if nothing is known.
        worth: the result of the finding's test, which orders the findings of the conclusion.
    """

    title: str
    facts: list[str]
    figures: list[Figure] = field(default_factory=list)
    maps: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    how_to_read: str = ""
    finding: str = ""
    headline: str = ""
    worth: Worth = UNTESTED


def significant(value: SupportsFloat) -> str:
    """Return a number with two significant digits; whole numbers of three digits and more stay whole."""
    return f"{float(value) + 0.0:{'.0f' if abs(float(value)) >= 99.5 else '.2g'}}"


def listed(texts: Mapping[str, str]) -> str:
    """Return the texts of several sets as one: `harmful 3.53; harmless 3.55`."""
    return "; ".join(f"{label} {text}" for label, text in texts.items())


def quoted(contrast: str) -> str:
    """Return the name of a contrast as sentences write it: `the contrast “refusal”`."""
    return f"the contrast “{contrast}”"


def last_position(group: xr.Dataset, contrast: str | None = None) -> Label:
    """Return the position that sections describe: the last measured one, or that of a contrast, with both sets."""
    labels: list[Label] = group["position"].values.tolist()
    if contrast is not None:
        labels = with_counts(group["n_used"].sel(contrast=contrast).all("prompt_side")) or labels
    return labels[-1]


def with_counts(has_prompts: xr.DataArray) -> list[Label]:
    """Return the positions at which an analysis has prompts, in their order; some have none at means over tokens."""
    labels: list[Label] = has_prompts["position"].values[has_prompts.values].tolist()
    return labels


def colours_of(run: Run, group: xr.Dataset, count: str = "n_samples") -> dict[str, str]:
    """Return the colour of each set that has prompts at the last position; it is the same in each group."""
    counts, curves = group[count].sel(position=last_position(group)), read_group(run, "curves")
    colours = set_colours(curves["set"].values.tolist(), curves.attrs["contrasts"])
    return {str(name): colours[name] for name in group["set"].values.tolist() if int(counts.sel(set=name)) > 0}


def leading_sets(run: Run, names: Iterable[str]) -> list[str]:
    """Return those of some sets that a headline names: the sides of the first contrast, or else the first two."""
    contrasts, known = read_group(run, "curves").attrs["contrasts"], list(names)
    both = [str(sides[side]) for sides in list(contrasts.values())[:1] for side in SIDES]
    return [name for name in dict.fromkeys(both) if name in known] or known[:2]


def prompt_counts(group: xr.Dataset, labels: Mapping[str, str]) -> str:
    """Return the number of prompts of each set, such as `prompts: 256 harmful, 256 harmless`.

    Args:
        group: the results of an analysis, with the variable `n_samples`.
        labels: label of each set.
    """
    counts = group["n_samples"].sel(position=last_position(group))
    return "prompts: " + ", ".join(f"{int(counts.sel(set=name))} {label}" for name, label in labels.items())


def side_counts(values: xr.Dataset, names: Sequence[str]) -> str:
    """Return the numbers of prompts of both sides of a contrast with the names of their sets, at one position."""
    return " and ".join(f"{n} {name}" for n, name in zip(values["n_used"].values, names, strict=True))


def token_notes(run: Run, labels: Mapping[str, str], position: Label) -> list[str]:
    """Return a note if all prompts of some sets, and not of others, have the same token at a position.

    The stream that enters the first block then varies in the other sets only. Learned positions hide a shared token.
    """
    variances = _entering_variances(run, position)
    if variances is None:
        return []
    shared = [label for name, label in labels.items() if float(variances.sel(set=name)) == 0]
    varied = [label for name, label in labels.items() if float(variances.sel(set=name)) > 0]
    if not shared or not varied:
        return []
    note = (
        f"at position {position}, {_one_token(shared)}; the prompts of {' and '.join(varied)} have different tokens. "
        f"This alone can make the statistics of {' and '.join(varied)} differ from those of {' and '.join(shared)}; so "
        "can a different template"
    )
    if len(shared) > 1:
        note += (
            f". The shared tokens can also make the statistics of {' and '.join(shared)} agree, so equal results of "
            "these sets are not independent findings"
        )
    return [note]


def same_token_notes(run: Run, names: Sequence[str], labels: Mapping[str, str], position: Label) -> list[str]:
    """Return a note if all prompts of both sets of a contrast have the same token at a position; see `token_notes`."""
    shown = [labels[name] for name in dict.fromkeys(names)]
    if not _has_one_token_each(run, names, position):
        return []
    if has_common_token(run, names, position):
        return [
            f"at position {position}, all prompts of {' and of '.join(shown)} have the same token. This alone makes "
            "activations similar, within and between sets, and equal at the input of the first block"
        ]
    return [
        f"at position {position}, {_one_token(shown)}. This alone makes the activations of a set similar, and equal at "
        "the input of the first block"
    ]


def has_common_token(run: Run, names: Sequence[str], position: Label) -> bool:
    """Return whether all prompts of both sets of a contrast have the same token at a position, as far as is known."""
    if not _has_one_token_each(run, names, position):
        return False
    curves = read_group(run, "curves")
    contrasts = curves.attrs["contrasts"].items()
    own = [name for name, sides in contrasts if {sides["positive"], sides["negative"]} == set(names)]
    distances = curves["difference_norm"].sel(contrast=own, position=position, site="resid_pre", layer=0, space="raw")
    return bool((distances == 0).any())


def without_spread(run: Run, names: Sequence[str], position: Label, sites: Sequence[str]) -> str:
    """Return that nothing can be concluded if no prompt of two sets differs from its set; empty otherwise."""
    at = {"set": list(names), "position": position, "site": list(sites), "space": "raw"}
    variances = read_group(run, "curves")["variance_mean"].sel(at)
    if not (variances == 0).any() or (variances > 0).any():
        return ""
    return (
        "All prompts of a set have the same activations, so each set counts as one prompt: nothing can be concluded "
        "about other prompts."
    )


def _has_one_token_each(run: Run, names: Sequence[str], position: Label) -> bool:
    variances = _entering_variances(run, position)
    return variances is not None and not (variances.sel(set=list(names)) != 0).any()


def _one_token(labels: Sequence[str]) -> str:
    """Return that the prompts of each of these sets share a token."""
    first, *others = labels
    return f"all prompts of {first} have the same token{''.join(f', and so have those of {name}' for name in others)}"


def _entering_variances(run: Run, position: Label) -> xr.DataArray | None:
    """Return each set's variance of the stream that enters the first block; None if that was not captured."""
    variances = read_group(run, "curves")["variance_mean"].sel(position=position, space="raw")
    is_captured = "resid_pre" in variances["site"] and 0 in variances["layer"]
    return variances.sel(site="resid_pre", layer=0) if is_captured else None


def labelled(draw: Callable[[], go.Figure], labels: Mapping[str, str]) -> Callable[[], go.Figure]:
    """Return a function that draws a figure in which lines have the label of each set instead of its name.

    Sets at their first token do not set the range of an axis that other sets share.
    """
    sinks = {name: label for name, label in labels.items() if label.endswith(SINK)}

    def draw_labelled() -> go.Figure:
        figure = draw()
        limit_axes(figure, sinks)
        for trace in figure.data:
            name, comma, rest = (trace.name or "").partition(",")
            trace.update(name=f"{labels.get(name, name)}{comma}{rest}" if name else trace.name)
        return figure

    return draw_labelled


def leaves_out_end(values: xr.Dataset) -> bool:
    """Return whether the sites of statistics end before the output of the last block."""
    return set(values["site"].values) <= set(HALF_BLOCKS)


def layer_text(depth: int) -> str:
    """Return a depth as sentences write it, such as `layer 17 mid`."""
    return f"layer {depth_label(depth).replace('-', ' ')}"


def layer_of(curve: xr.DataArray, index: int) -> str:
    """Return the depth of one point of a curve along depth, such as `layer 17 mid`."""
    return layer_text(int(curve["depth"][index]))


def depths_text(chosen: xr.DataArray) -> str:
    """Return the chosen depths of a curve as ranges, such as `layers 7 mid to 10 pre, 15 mid to 29 mid`.

    Empty if no depth is chosen, if there are more than three ranges, or if the curve leaves out layers.

    Args:
        chosen: whether each depth is chosen, (depth).
    """
    indices = np.flatnonzero(chosen.values)
    ranges = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    steps = np.diff(chosen["depth"].values)
    if not len(indices) or len(ranges) > _MOST_RANGES or len(set(steps.tolist())) > 1:
        return ""
    ends = [[layer_of(chosen, index).removeprefix("layer ") for index in (one[0], one[-1])] for one in ranges]
    names = [" to ".join(dict.fromkeys(pair)) for pair in ends]
    return f"layer{'s' if len(indices) > 1 else ''} {', '.join(names)}"


def in_brackets(*details: str) -> str:
    """Return the details that are not empty in brackets, after a space; empty if all are."""
    known = "; ".join(filter(None, details))
    return f" ({known})" if known else ""


def point_text(values: xr.Dataset, statistic: str, index: int, form: str, scale: int = 1, *, band: bool = False) -> str:
    """Return a statistic and its 95 % interval at one depth, such as `0.9975 [0.9971, 0.9980]`.

    An unknown interval is left out.

    Args:
        values: statistics of one contrast at one position, (site, layer).
        statistic: name of the statistic.
        index: index of the point in its curve along depth.
        form: format of the three numbers, such as `.4f`.
        scale: factor on the three numbers; 100 for percent.
        band: whether the depth was chosen for its value, so that the interval must hold at all depths at once.
    """
    ends = VALUE_AND_BAND if band else INTERVAL
    value, low, high = (scale * float(along_depth(values[statistic], end)[index]) for end in ends)
    interval = f" [{low:{form}}, {high:{form}}]" if np.isfinite(low + high) else ""
    return f"{value:{form}}{interval}"


def null_text(null: xr.DataArray) -> str:
    """Return what permuted labels give at one place: `permuted labels give 0.50 ± 0.02 there, p = 0.005 over …`.

    Args:
        null: the permutation test of a statistic at one place, (null).
    """
    mean, sd, p = (float(null.sel(null=part)) for part in ("mean", "sd", "p_family"))
    return f"permuted labels give {mean:.2f} ± {sd:.2f} there, p = {p:.2g} over all depths"


def location_text(locations: xr.DataArray, named: int) -> str:
    """Return how many other depths could have the extreme value with other prompts, with a space before it.

    Empty if it is unknown, with one depth, and if the named depth is not among them: it was found with more prompts.

    Args:
        locations: 1 at each depth that may have the extreme value, else 0 or NaN, (site, layer).
        named: index of the depth of the extreme value.
    """
    located = along_depth(locations)
    if located[named] != 1:
        return ""
    others, total = int((located == 1).sum()) - 1, int(np.isfinite(located).sum()) - 1
    if total < 1:
        return ""
    if total == 1:
        return f" With other prompts, the other depth {'could' if others else 'would hardly'} come first."
    if not others:
        return f" With other prompts, none of the {total} other depths would come first, as paired differences show."
    if others == total:
        return f" With other prompts, any of the {total} other depths could come first."
    other = (located == 1) & (np.arange(len(located)) != named)
    return (
        f" With other prompts, {others} of the {total} other depths could come first{in_brackets(depths_text(other))}."
    )


def texts_of(attribute: str | Sequence[str]) -> list[str]:
    """Return the texts of a stored attribute, which is one text or a list of texts."""
    return [attribute] if isinstance(attribute, str) else list(attribute)
