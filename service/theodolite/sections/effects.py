"""What interventions on the last token change: whether the model uses a contrast's direction."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import xarray as xr

from theodolite.figures.effects import PART_NAMES, dose_figure, effects_figure, parts_figure, score_figure
from theodolite.figures.heads import head_map
from theodolite.figures.style import set_colours
from theodolite.groups.effects import ADD, REMOVE
from theodolite.groups.permutations import LEVEL
from theodolite.query.effects import largest, strictest
from theodolite.query.first_tokens import set_labels
from theodolite.sections.effects_facts import (
    at_place,
    controls_text,
    effects_facts,
    followed_layers,
    passed,
    places_word,
)
from theodolite.sections.parts import (
    LARGEST,
    SIDES,
    Figure,
    Section,
    last_position,
    listed,
    quoted,
    same_token_notes,
)
from theodolite.sections.worth import worth_of
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_HOW_TO_READ = (
    "An intervention changes the state of the last token (in pairs also the output of a head, of attention, of an MLP, "
    "or of attention and MLP together), and all later blocks compute with the change. No text is generated: the "
    "probabilities of the next token are compared with those that the model gives without a change. KL is the "
    "divergence of the changed probabilities from the unchanged ones; it is 0 if nothing changes, and it does not say "
    "which tokens change. To patch is to replace the state by that of the other prompt of the pair (or by the mean "
    "state of the other set). To remove is to set the coordinate of the state along the contrast's direction to that "
    "of the midpoint between the two means. To add is to add the difference of the means towards the other set: its "
    "dose is 1 for prompts of the negative set, and -1 for prompts of the positive set. Every vector that is large "
    "enough changes the next token. So the direction is compared with control directions: random ones, random ones "
    "along which the activations vary as much, and the directions that permuted labels give. The last two kinds are at "
    "right angles to the contrast's direction. Activations usually vary much less along random directions, so removing "
    "is not compared with these. Along the directions of permuted labels they can vary more, or less, than along the "
    "contrast's. If the direction changes no more than the controls, the model need not use it, also where the "
    "direction separates the sets. If it changes more, the next token depends more on the state along it than on that "
    "along the controls; it can still depend on other directions too."
)

_TESTS = (
    "z is the logarithm of an effect minus the mean of those of the control directions, divided by their standard "
    "deviation. The family-wise p is the share of directions, the contrast's own one included, whose largest z over "
    "all changed sites and layers is at least as large as the z of the effect. Each set, intervention and control is "
    "tested by itself, for the KL divergence; these tests are not corrected for each other. They compare directions, "
    "and do not treat the prompts as random. There are {directions} control directions of each kind, so the smallest "
    "possible p is about {least:.2g}"
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


def sections(run: Run) -> list[Section]:
    """Return a section for each contrast, at the last position that its sets have."""
    effects = read_group(run, "effects")
    contrasts = effects["contrast"].values.tolist()
    return [section for contrast in contrasts if (section := _section(run, effects, contrast))]


def _section(run: Run, effects: xr.Dataset, contrast: str) -> Section | None:
    position = last_position(effects)
    values = effects.sel(contrast=contrast, position=position)
    counts = values["n_prompts"].sel(prompt_side=list(SIDES)).values.tolist()
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
    route = effects.attrs.get("full_route", {}).get(label, "")
    available = effects.attrs.get("available", {}).get(label, counts)
    selected = [str(n) if n == of else f"{n} of {of}" for n, of in zip(counts, available, strict=True)]
    pairs = f"{selected[0]} matched pairs" if names["paired"] else f"{' and '.join(selected)} prompts"
    return Section(
        f"Effects along {quoted(contrast)} at position {position}: {pairs}",
        list(effects_facts(values, sides, effects.attrs["tokens"], effects.attrs["patch"][label], route)),
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
        finding=_finding(values, sides, f"{directions} directions of each kind; {pairs}"),
        worth=worth_of(*((strictest(values, one, "p_family"), strictest(values, one, "z")) for one in (REMOVE, ADD))),
    )


def _place_figures(
    values: xr.Dataset, name: str, sides: Mapping[str, str], colours: Mapping[str, str]
) -> Iterator[Figure]:
    """Yield the dose curves at the place with the largest effect, the later scores, and the patches of parts."""
    place = largest(values["kl"].sel(intervention=ADD).mean("prompt_side"))
    caption = f"Dose curves at {at_place(values, place)}, where an added difference has the largest KL divergence"
    yield Figure(f"{name}.doses", caption, partial(dose_figure, values.sel(place), sides, colours))
    of_side = values.sel(site=place["site"], prompt_side=SIDES[1])
    if layers := followed_layers(of_side):
        yield Figure(
            f"{name}.scores",
            "How far an added difference moves the input of later blocks along the contrast's direction there",
            partial(score_figure, of_side, layers, sides[SIDES[1]]),
        )
    if any(np.isfinite(values[f"{part}_kl"]).any() for part in PART_NAMES):
        caption = "KL divergence when the output of attention, of the MLP, or of both (block) is patched, by layer"
        yield Figure(f"{name}.parts", caption, partial(parts_figure, values, sides))


def _maps(values: xr.Dataset, name: str, sides: Mapping[str, str]) -> list[Figure]:
    if not np.isfinite(values["head_kl"]).any():
        return []
    first = sides[SIDES[0]]
    shown = {
        "heads_kl": ("heads: KL when patched, mean of both sets", values["head_kl"].mean("prompt_side"), False),
        "heads_patched": (
            f"heads: log-odds when patched, {first}",
            values["head_log_odds"].sel(prompt_side=SIDES[0]),
            True,
        ),
        "heads_direct": (f"heads: direct change, {first}", values["head_direct"].sel(prompt_side=SIDES[0]), True),
    }
    return [
        Figure(f"{name}.{key}", caption, partial(head_map, of_heads, caption, signed=signed), "vo")
        for key, (caption, of_heads, signed) in shown.items()
        if np.isfinite(of_heads).any()
    ]


def _finding(values: xr.Dataset, sides: Mapping[str, str], prompts: str) -> str:
    """Return at how many places the direction changes the next token more than all its controls."""
    counts = {
        intervention: {
            label: passed(strictest(values.sel(prompt_side=side), intervention, "p_family"))
            for side, label in sides.items()
        }
        for intervention in (REMOVE, ADD)
    }
    return (
        "Does the model use the direction at the last token? Removing it changes the next token more than removing "
        f"{controls_text(REMOVE)} at this many {places_word(values)}: "
        f"{listed(counts[REMOVE])}. Adding the difference of the means changes it more than adding vectors of the same "
        f"length along random directions and along directions of permuted labels at this many: {listed(counts[ADD])} "
        f"(KL divergence, family-wise p of at most {LEVEL} against each kind, {prompts}). Where neither is larger, "
        "it is not shown that the model uses the direction."
    )


def _excluded(effects: xr.Dataset, label: str, *, is_paired: bool) -> list[str]:
    pairs = effects.attrs.get("excluded_pairs", {}).get(label, [])
    if not pairs:
        return []
    of = "pairs" if is_paired else "prompts of each set"
    count = (
        f"1 {of.replace('pairs', 'pair').replace('prompts', 'prompt')} is"
        if len(pairs) == 1
        else f"{len(pairs)} {of} are"
    )
    return [f"{count} left out, because a number was not finite, or a prompt ended the process that ran it"]
