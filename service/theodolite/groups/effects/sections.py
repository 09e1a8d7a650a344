"""What interventions on the last token change: whether the model uses a contrast's direction."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import xarray as xr

from theodolite.drawing.head_map import head_map
from theodolite.drawing.style import set_colours
from theodolite.groups.effects.figures import dose_figure, effects_figure, parts_figure, score_figure
from theodolite.groups.effects.record import ADD
from theodolite.groups.effects.sections_facts import (
    at_place,
    effects_facts,
    followed_layers,
    intact_text,
    passed,
    places_word,
)
from theodolite.groups.schema import LEVEL, SIDES
from theodolite.query.effects import (
    control_kinds,
    exceeds_controls,
    from_on,
    largest,
    moves_both,
    onset_place,
    strictest,
    towards_other,
)
from theodolite.query.first_tokens import set_labels
from theodolite.sections.parts import (
    LARGEST,
    Figure,
    Section,
    last_position,
    listed,
    quoted,
    same_token_notes,
    significant,
    without_spread,
)
from theodolite.sections.worth import UNTESTED, Worth
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_HOW_TO_READ = (
    "All changes are made to the state of the last token. Positive log-odds go towards the other set. The difference "
    "of the means is added with dose 1 for the negative set, and -1 for the positive one. If the log-odds move no "
    "farther than with the control directions, the model need not use the direction."
)

_TESTS = (
    "z is the change (for the KL divergence, its logarithm) minus the mean of those by the control directions, "
    "divided by their standard deviation. The family-wise p is the share of directions, the contrast's own one "
    "included, whose largest z over all changed sites and layers is at least as large as this z. The larger p and "
    "the smaller z of both kinds of controls are stated. Each set, intervention and measure is tested by itself. "
    "These tests compare directions, and do not treat the prompts as random. There are {directions} control "
    "directions of each kind, so the smallest possible p is about {least:.2g}"
)

_BRACKETS = (
    "numbers in square brackets are 95 % intervals for one layer or one head alone, also where it was chosen as the "
    "largest. They are bootstraps over prompts or pairs. If these are few and some of them have far larger effects "
    "than the others, the intervals contain the true mean in fewer than 95 % of cases"
)

_GROUPS = "the names of the groups of tokens are only labels; a token of a group can also begin other answers"

_SAME_PROMPTS = (
    "the contrast's direction comes from the activations of prompts that include those that are changed; it was not "
    "chosen for its effects"
)


_NOT_TESTED = "It is not tested whether the model uses the direction at the last token."
_NOT_COMPARED = "The controls cannot be compared, so it is not shown that the model uses the direction."


def sections(run: Run) -> list[Section]:
    """Return a section for each contrast, at the last position at which its effects were measured."""
    effects = read_group(run, "effects")
    contrasts = effects["contrast"].values.tolist()
    return [section for contrast in contrasts if (section := _section(run, effects, contrast))]


def _section(run: Run, effects: xr.Dataset, contrast: str) -> Section | None:
    position = last_position(effects, contrast)
    values = effects.sel(contrast=contrast, position=position)
    counts = values["n_used"].sel(prompt_side=list(SIDES)).values.tolist()
    if not all(counts):
        return None
    names, labels = effects.attrs["contrasts"][contrast], set_labels(run, position)
    sides = {side: labels[names[side]] for side in SIDES}
    by_set = set_colours(list(run.record.sets), effects.attrs["contrasts"])
    colours = {side: by_set[names[side]] for side in SIDES}
    separation = None
    if "separation" in finished_groups(run):
        group = read_group(run, "separation")
        separation = group.sel(contrast=contrast, position=position) if contrast in group["contrast"] else None
    name, label, directions = f"effects.{contrast}", f"{contrast}@{position}", effects.attrs["options"]["controls"]
    route = effects.attrs["full_route"].get(label, "")
    available = effects.attrs["available"].get(label, counts)
    selected = [str(n) if n == of else f"{n} of {of}" for n, of in zip(counts, available, strict=True)]
    pairs = f"{selected[0]} matched pairs" if names["paired"] else f"{' and '.join(selected)} prompts"
    measured = f"{counts[0]} pairs" if names["paired"] else f"{' and '.join(map(str, counts))} prompts"
    unknown = without_spread(run, [names[side] for side in SIDES], position, values["site"].values.tolist())
    return Section(
        f"Effects along {quoted(contrast)} at position {position}: {pairs}",
        [
            *filter(None, [unknown]),
            *effects_facts(values, sides, effects.attrs["tokens"], effects.attrs["patch"][label], route, separation),
        ],
        [
            Figure(
                name, "Effects of interventions by layer", partial(effects_figure, values, sides, colours, separation)
            ),
            *_place_figures(values, name, sides, colours),
        ],
        _maps(values, name, sides),
        notes=[
            _BRACKETS,
            _TESTS.format(directions=directions, least=1 / (directions + 1)),
            LARGEST,
            _GROUPS,
            _SAME_PROMPTS,
            *_excluded(effects, label, is_paired=names["paired"]),
            *same_token_notes(run, [names[side] for side in SIDES], labels, position),
        ],
        how_to_read=_HOW_TO_READ,
        finding=unknown or f"{_finding(values, sides, list(effects.attrs['tokens']))} Measured with {pairs}.",
        headline=unknown or _headline(values, measured),
        worth=UNTESTED if unknown else _worth(values),
    )


def _place_figures(
    values: xr.Dataset, name: str, sides: Mapping[str, str], colours: Mapping[str, str]
) -> Iterator[Figure]:
    """Yield the dose curves at the place with the largest effect, the later scores, and the patches of parts."""
    tests = (strictest(values, measure, ADD, "z").mean("prompt_side") for measure in ("log_odds", "kl"))
    z, kl = next((one for one in tests if np.isfinite(one).any()), None), values["effect"].sel(measure="kl")
    place = largest(kl.sel(intervention=ADD, estimate="value").mean("prompt_side") if z is None else z)
    reason = "has the largest KL divergence" if z is None else "has the largest z against its controls"
    caption = f"Dose curves at {at_place(values, place)}, where an added difference {reason}"
    yield Figure(f"{name}.doses", caption, partial(dose_figure, values.sel(place), sides, colours))
    of_side = values.sel(site=place["site"], prompt_side=SIDES[1])
    if layers := followed_layers(of_side):
        yield Figure(
            f"{name}.scores",
            "How far an added difference moves the input of later blocks along the contrast's direction there",
            partial(score_figure, of_side, layers, sides[SIDES[1]]),
        )
    if np.isfinite(values["sublayer_effect"]).any():
        caption = "KL divergence when the output of attention, of the MLP, or of both (block) is patched, by layer"
        yield Figure(f"{name}.parts", caption, partial(parts_figure, values, sides))


def _maps(values: xr.Dataset, name: str, sides: Mapping[str, str]) -> list[Figure]:
    if not np.isfinite(values["head_effect"]).any():
        return []
    first, kl = sides[SIDES[0]], values["head_effect"].sel(measure="kl", estimate="value")
    of_first = values.sel(prompt_side=SIDES[0], measure="log_odds", estimate="value")
    shown = {
        "heads_kl": ("heads: KL when patched, mean of both sets", kl.mean("prompt_side"), False),
        "heads_patched": (f"heads: log-odds when patched, {first}", of_first["head_effect"], True),
        "heads_direct": (f"heads: direct change, {first}", of_first["head_direct"], True),
    }
    return [
        Figure(f"{name}.{key}", caption, partial(head_map, of_heads, caption, signed=signed), "ov")
        for key, (caption, of_heads, signed) in shown.items()
        if np.isfinite(of_heads).any()
    ]


def _finding(values: xr.Dataset, sides: Mapping[str, str], groups: Sequence[str]) -> str:
    """Return from where on an added difference moves the log-odds of both sets, and whether farther than controls."""
    intact = intact_text(values, sides, *groups)
    if not np.isfinite(values["expected_sign"]).any():
        return f"{intact} {_any_change_text(values)}"
    return f"{intact} {_moved_text(values)} {_use_text(values, sides)}"


def _worth(values: xr.Dataset) -> Worth:
    """Return what the finding is worth: it passes where the direction moves both sets farther than the controls."""
    z = strictest(values, "log_odds", ADD, "z").min("prompt_side")
    return Worth(bool(exceeds_controls(values).any()), float(np.nan_to_num(z.max())))


def _moved_text(values: xr.Dataset) -> str:
    """Return where an added difference moves the log-odds of both sets towards the other set, and how far."""
    moves, changes = moves_both(values), towards_other(values.sel(intervention=ADD))["value"]
    what, where = "Adding the difference of the means moves the log-odds of both sets", places_word(values)
    if not moves.any():
        return f"{what} towards the other set at none of {moves.size} changed {where}."
    start = onset_place(moves)
    chosen = moves if start is None else from_on(start, moves)
    moved, rest = changes.where(chosen), abs(changes.where(~chosen)).max()
    at = f"from {at_place(values, start)} on" if start else f"at {int(moves.sum())} of {moves.size} changed {where}"
    elsewhere = "" if chosen.all() else f"; at the other {where} by at most {significant(rest)} nats"
    span = f"{significant(moved.min())} to {significant(moved.max())} nats"
    return f"{what} towards the other set {at}, by {span}{elsewhere}."


def _any_change_text(values: xr.Dataset) -> str:
    """Return whether an added difference changes the next token of both sets more than the controls do."""
    passed = _changes_both(values)
    if passed is None:
        return _NOT_TESTED
    return (
        "Adding the difference of the means changes the whole distribution (KL divergence) of both sets more than all "
        f"control directions (family-wise p of at most {LEVEL}) at {int(passed.sum())} of {passed.size} "
        f"{places_word(values)}."
    )


def _changes_both(values: xr.Dataset) -> xr.DataArray | None:
    """Return where an added difference changes the next token of both sets more than the controls; None if unknown."""
    p = strictest(values, "kl", ADD, "p_family")
    return (p <= LEVEL).all("prompt_side") if np.isfinite(p).any() else None


class _Use(NamedTuple):
    """Where an added difference moves the log-odds of both sets farther than the controls do, (site, layer).

    Attributes:
        exceeds: whether it does.
        tested: whether it is compared with controls.
        n_one_kind: at how many places it does, compared with only one kind of controls.
    """

    exceeds: xr.DataArray
    tested: xr.DataArray
    n_one_kind: int


def _use(values: xr.Dataset) -> _Use:
    exceeds, p = exceeds_controls(values), strictest(values, "log_odds", ADD, "p_family")
    kinds = control_kinds(values, "log_odds")
    return _Use(exceeds, p.notnull().all("prompt_side"), int((exceeds & (kinds == 1)).sum()))


def _compared(values: xr.Dataset) -> xr.DataArray:
    """Return whether the log-odds are compared with each kind of controls."""
    null = values["effect_null"].sel(measure="log_odds", intervention=ADD)
    return null.sel(null="p_family", drop=True).notnull()


def _headline(values: xr.Dataset, measured: str) -> str:
    """Return at how many depths an added difference changes both sets more than the controls do.

    Args:
        values: the results at one contrast and position.
        measured: the number of measured pairs or prompts.
    """
    where = "layers" if values.sizes["site"] == 1 else "depths"
    if not np.isfinite(values["expected_sign"]).any():
        changes = _changes_both(values)
        if changes is None:
            return _NOT_TESTED
        counts = f"{int(changes.sum())} of {changes.size} {where}"
        subject = "By KL divergence, adding the direction exceeds all controls at"
        return f"{subject} {counts}; the sets' log-odds may be equal ({measured})."
    exceeds, tested, n_one_kind = _use(values)
    if not tested.any():
        return _NOT_COMPARED
    exceeding = f"exceeds {'one kind of controls' if n_one_kind else 'all controls for both sets'}"
    if start := onset_place(exceeds, tested):
        places = f"At tested {where} from {at_place(values, start).removeprefix('layer ')} on"
        return f"{places}, adding the direction {exceeding}: the model uses it ({measured})."
    ending = ", not at the last" if exceeds.any() else ": its use is not shown"
    counts = f"{int(exceeds.sum())} of {int(tested.sum())} {where}"
    return f"Adding the direction {exceeding} at {counts}{ending} ({measured})."


def _use_text(values: xr.Dataset, sides: Mapping[str, str]) -> str:
    """Return whether an added difference moves the log-odds of both sets farther than the controls do."""
    where, (exceeds, tested, n_one_kind) = places_word(values), _use(values)
    if not tested.any():
        return _NOT_COMPARED
    n = int(tested.sum())
    more = f"farther than all control directions (family-wise p of at most {LEVEL})"
    if n_one_kind:
        more += f", of which only one kind can be compared at {n_one_kind} of these {where},"
    if start := onset_place(exceeds, tested):
        tested_from = f"at all tested {where} from {at_place(values, start)} on"
        return f"This is {more} {tested_from}: the model uses the direction at the last token."
    if exceeds.any():
        return f"This is {more} at {int(exceeds.sum())} of {n} tested {where}, and not at the last one."
    p = strictest(values, "log_odds", ADD, "p_family")
    each = {label: passed(p.sel(prompt_side=side)) for side, label in sides.items()}
    sd = values["effect_null"].sel(measure="log_odds", intervention=ADD, null="sd").where(_compared(values))
    return (
        f"For both sets together, this is {more} at 0 of {n} tested {where} (for each set: {listed(each)}); the "
        f"changes by controls have standard deviations of up to {significant(sd.max())} nats. So it is not shown that "
        "the model uses this direction more than others."
    )


def _excluded(effects: xr.Dataset, label: str, *, is_paired: bool) -> list[str]:
    pairs = effects.attrs["excluded_pairs"].get(label, [])
    if not pairs:
        return []
    of = "pairs" if is_paired else "prompts of each set"
    count = (
        f"1 {of.replace('pairs', 'pair').replace('prompts', 'prompt')} is"
        if len(pairs) == 1
        else f"{len(pairs)} {of} are"
    )
    return [f"{count} left out, because a number was not finite, or a prompt ended the process that ran it"]
