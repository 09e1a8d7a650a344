"""What interventions on the last token change: whether the model uses a contrast's direction."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from theodolite.figures.effects import CONTROL_NAMES, dose_figure, effects_figure, score_figure
from theodolite.figures.heads import head_map
from theodolite.figures.style import set_colours
from theodolite.groups.effects import ADD, CONTROLS_OF, PATCH, REMOVE
from theodolite.groups.permutations import LEVEL
from theodolite.query.effects import largest, strictest
from theodolite.query.first_tokens import set_labels
from theodolite.query.heads import head_name
from theodolite.sections.parts import (
    BRACKETS,
    LARGEST,
    SIDES,
    Figure,
    Section,
    last_position,
    listed,
    percent,
    quoted,
    same_token_notes,
)
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_HOW_TO_READ = (
    "Each intervention changes the state of the last token at one site and layer, and all later blocks compute with "
    "the changed state. No text is generated: the probabilities of the next token are compared with those without a "
    "change. KL is the divergence of the changed probabilities from the unchanged ones; it is 0 if nothing changes, "
    "and it does not say which tokens change. To patch is to replace the state by that of the other prompt of the "
    "pair (or by the mean state of the other set). To remove is to set the coordinate of the state along the "
    "contrast's direction to that of the midpoint between the two means. To add is to add the difference of the means "
    "towards the other set: its dose is 1 for prompts of the negative set, and -1 for prompts of the positive set. "
    "Every vector that is large enough changes the next token. So the direction is compared with control directions: "
    "random ones, random ones along which the activations vary as much, and the directions that permuted labels give. "
    "Random directions are the weakest control, because activations hardly vary along them. If the direction changes "
    "no more than the controls, the model need not use it, also where the direction separates the sets. If it changes "
    "more, the model uses what lies along the direction at this place; the next token can still depend on other "
    "directions too."
)

_TESTS = (
    "z is the logarithm of an effect minus the mean of those of the control directions, divided by their standard "
    "deviation. The "
    "family-wise p is the share of directions, the contrast's own one included, whose largest z over all changed sites "
    "and layers is at least as large as the z of the effect. Each set, intervention and control is tested by itself"
)

_HALF = 0.5

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
    name, label = f"effects.{contrast}", f"{contrast}@{position}"
    route = effects.attrs.get("full_route", {}).get(label, "")
    pairs = f"{counts[0]} matched pairs" if names["paired"] else f"{' and '.join(map(str, counts))} prompts"
    return Section(
        f"Effects along {quoted(contrast)} at position {position}: {pairs}",
        list(_facts(values, sides, effects.attrs["tokens"], effects.attrs["patch"][label], route)),
        [
            Figure(
                name, "Effects of interventions by layer", partial(effects_figure, values, sides, colours, separation)
            ),
            *_place_figures(values, name, sides, colours),
        ],
        _maps(values, name, sides),
        notes=[
            BRACKETS,
            _TESTS,
            LARGEST,
            _SAME_PROMPTS,
            *_excluded(effects, label, is_paired=names["paired"]),
            *same_token_notes(run, [names[side] for side in SIDES], labels, position),
        ],
        how_to_read=_HOW_TO_READ,
        finding=_finding(values, sides, pairs),
    )


def _place_figures(
    values: xr.Dataset, name: str, sides: Mapping[str, str], colours: Mapping[str, str]
) -> Iterator[Figure]:
    """Yield the dose curves at the place with the largest effect of an added difference, and the later scores."""
    place = largest(values["kl"].sel(intervention=ADD).mean("prompt_side"))
    caption = f"Dose curves at {_at(values, place)}, where an added difference changes the next token the most"
    yield Figure(f"{name}.doses", caption, partial(dose_figure, values.sel(place), sides, colours))
    of_side = values.sel(site=place["site"], prompt_side=SIDES[1])
    if layers := _followed_layers(of_side):
        yield Figure(
            f"{name}.scores",
            "How much of an added difference is left along the contrast's direction at the input of later blocks",
            partial(score_figure, of_side, layers, sides[SIDES[1]]),
        )


def _followed_layers(values: xr.Dataset) -> list[int]:
    """Return the first, the middle and the last layer whose added difference is seen at the input of a block."""
    scores = abs(values["score_change"].sel(intervention=ADD)).max("layer_other")
    layers = [int(layer) for layer in scores["layer"].values if float(scores.sel(layer=layer)) > 0]
    return list(dict.fromkeys([layers[0], layers[len(layers) // 2], layers[-1]])) if layers else []


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


def _facts(
    values: xr.Dataset, sides: Mapping[str, str], tokens: Mapping[str, list[str]], patch: str, full_route: str
) -> Iterator[str]:
    first, second = tokens
    intact = {label: f"{float(values['intact_log_odds'].sel(prompt_side=side)):.2f}" for side, label in sides.items()}
    yield (
        f"Log-odds of the next token for the group {first} ({_texts(tokens[first])}) against the group {second} "
        f"({_texts(tokens[second])}), without a change: {listed(intact)}; difference "
        f"{_with_ends(values, 'intact_difference', 2)}."
    )
    yield from _patch_facts(values, sides, patch)
    for intervention, what in ((REMOVE, "Removing the direction"), (ADD, "Adding the difference of the means")):
        texts = {label: _tested(values.sel(prompt_side=side), intervention) for side, label in sides.items()}
        yield (
            f"{what}, compared with {_controls_text(intervention, ' and with ')}: {_places(values)} where the KL "
            f"divergence is larger than for both kinds of controls (family-wise p of at most {LEVEL}): "
            f"{listed(texts)}. Of the z and of the p against each kind, the weaker ones are stated."
        )
    yield from _everywhere_facts(values, sides)
    yield from _score_facts(values, sides)
    yield from _part_facts(values, sides)
    yield from _certificate(values, full_route)


def _texts(texts: list[str]) -> str:
    stripped = list(dict.fromkeys(text.strip() for text in texts))
    return ", ".join(f"“{text}”" for text in stripped)


def _places(values: xr.Dataset) -> str:
    return "layers" if values.sizes["site"] == 1 else "sites and layers"


def _patch_facts(values: xr.Dataset, sides: Mapping[str, str], patch: str) -> Iterator[str]:
    kl = values["kl"].sel(intervention=PATCH)
    texts = {}
    for side, label in sides.items():
        place = largest(kl.sel(prompt_side=side))
        own = values.sel(**place, prompt_side=side, intervention=PATCH)
        texts[label] = f"{_with_ends(own, 'kl', 3)} nats at {_at(values, place)}"
    given = "the state of the other prompt of its pair" if patch == "pair" else "the mean state of the other set"
    yield (
        f"Patch (each prompt gets {given}): the largest KL divergence over {_places(values)} is {listed(texts)}. Late "
        "layers have large effects, since a patch there replaces nearly all that the prompt has computed."
    )
    restored = values["restored"]
    if not np.isfinite(restored).any():
        yield (
            "The difference of the log-odds between the sets may be 0 (it has both signs in the bootstrap), so the "
            "share of it that a patch restores is not stated."
        )
        return
    texts = {}
    for side, label in sides.items():
        shares = restored.sel(prompt_side=side)
        half = shares.where(shares >= _HALF, drop=True)
        if not half.size:
            texts[label] = f"less than {percent(_HALF, 0)} everywhere"
            continue
        place = {"site": half["site"].values.tolist()[0], "layer": int(half["layer"].values[0])}
        at = values.sel(**place, prompt_side=side)
        ends = " to ".join(percent(at[f"restored{end}"], 0) for end in ("_low", "_high"))
        texts[label] = f"{_at(values, place)}, {percent(at['restored'], 0)} [{ends}]"
    yield (
        f"First layer at which a patch restores at least {percent(_HALF, 0)} of the difference of the log-odds to the "
        f"other set: {listed(texts)}."
    )


def _controls_text(intervention: str, joint: str = " and ") -> str:
    return joint.join(CONTROL_NAMES[control] for control in CONTROLS_OF[intervention])


def _tested(values: xr.Dataset, intervention: str) -> str:
    """Return at how many places an intervention changes more than its controls, and the place with the largest z."""
    p, z = (strictest(values, intervention, part) for part in ("p_family", "z"))
    if not np.isfinite(z).any():
        return "no test is possible"
    place = largest(z)
    at = values.sel(**place, intervention=intervention)
    controls = " and ".join(f"{float(at['kl_control'].sel(control=one)):.3f}" for one in CONTROLS_OF[intervention])
    return (
        f"{_passed(p)} (largest z {float(z.sel(place)):.1f}, p = {float(p.sel(place)):.2g}, at {_at(values, place)}: "
        f"{_with_ends(at, 'kl', 3)} nats, controls {controls})"
    )


def _everywhere_facts(values: xr.Dataset, sides: Mapping[str, str]) -> Iterator[str]:
    texts = {}
    for side, label in sides.items():
        own = values.sel(prompt_side=side)
        controls = [own.sel(control=control) for control in CONTROLS_OF[REMOVE]]
        means = " and ".join(f"{float(one['everywhere_kl_control']):.3f}" for one in controls)
        p = max(float(one["everywhere_kl_p"]) for one in controls)
        texts[label] = f"{_with_ends(own, 'everywhere_kl', 3)} nats (controls {means}, p = {p:.2g})"
    yield (
        f"Removing, in one forward pass, the direction of each of the {values.sizes['site'] * values.sizes['layer']} "
        f"{_places(values)} there gives a KL divergence of {listed(texts)}. The controls are "
        f"{_controls_text(REMOVE)}, removed in the same way; the larger p is stated."
    )


def _score_facts(values: xr.Dataset, sides: Mapping[str, str]) -> Iterator[str]:
    site, side = values["site"].values.tolist()[0], SIDES[1]
    of_side = values.sel(site=site, prompt_side=side)
    last = int(values["layer_other"].values[-1])
    scores = of_side["score_change"].sel(intervention=ADD, layer_other=last)
    left = {
        f"layer {layer}": percent(scores.sel(layer=layer), 0) for layer in _followed_layers(of_side) if layer < last
    }
    if left:
        yield (
            f"Of a difference of the means that is added to {sides[side]} prompts at {site}, this share is left along "
            f"the contrast's direction at the input of block {last}, by the layer at which it is added: "
            f"{listed(left)}. The share is in units of the distance of the means at that block."
        )


def _part_facts(values: xr.Dataset, sides: Mapping[str, str]) -> Iterator[str]:
    if not np.isfinite(values["head_kl"]).any():
        return
    texts = {}
    for side, label in sides.items():
        own = values.sel(prompt_side=side)
        at = largest(own["head_kl"])
        texts[label] = f"{head_name(int(at['layer']), int(at['head']))}, {_with_ends(own.sel(at), 'head_kl', 4)} nats"
    yield (
        "Single heads whose output is replaced by that of the other prompt: the largest KL divergence is "
        f"{listed(texts)}."
    )
    correlation = values["direct_correlation"]
    if np.isfinite(correlation).all():
        texts = {label: f"{float(correlation.sel(prompt_side=side)):.2f}" for side, label in sides.items()}
        yield (
            "Correlation over heads between the change of the log-odds by a patch and its direct part (that of the "
            f"changed output alone, added to the stream after the last block): {listed(texts)}. A low correlation can "
            "mean that heads act through later blocks, or that most changes are near 0."
        )


def _certificate(values: xr.Dataset, full_route: str) -> Iterator[str]:
    """Yield how exact the interventions are; nothing if none was compared."""
    error, intact = float(values["route_error"]), float(values["intact_error"])
    if full_route:
        yield (
            "Each intervention was a forward pass of all tokens: the model does not allow a shorter way, since "
            f"{full_route}."
        )
    elif np.isfinite(error):
        yield (
            "Each intervention cost one token per block. In a sample, the states after the last block differ from "
            f"those of forward passes of all tokens by at most {error:.1e} of their norm; unchanged states differ by "
            f"at most {intact:.1e}."
        )


def _finding(values: xr.Dataset, sides: Mapping[str, str], prompts: str) -> str:
    """Return at how many places the direction changes the next token more than all its controls."""
    counts = {
        intervention: {
            label: _passed(strictest(values.sel(prompt_side=side), intervention, "p_family"))
            for side, label in sides.items()
        }
        for intervention in (REMOVE, ADD)
    }
    return (
        "Does the model use the direction at the last token? Removing it changes the next token more than removing "
        f"{_controls_text(REMOVE)} at this many {_places(values)}: "
        f"{listed(counts[REMOVE])}. Adding the difference of the means changes it more than adding vectors of the same "
        f"length along random directions and along directions of permuted labels at this many: {listed(counts[ADD])} "
        f"(family-wise p of at most {LEVEL} against each kind, {prompts}). Where neither is larger, it is not shown "
        "that the model uses the direction."
    )


def _passed(p: xr.DataArray) -> str:
    """Return at how many places an effect is larger than those of its controls."""
    return f"{int((p <= LEVEL).sum())} of {int(np.isfinite(p).sum())}"


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


def _at(values: xr.Dataset, place: Mapping[str, Any]) -> str:
    site = f" {str(place['site']).removeprefix('resid_')}" if values["site"].size > 1 else ""
    return f"layer {place['layer']}{site}"


def _with_ends(values: xr.Dataset, name: str, digits: int) -> str:
    numbers = [f"{float(values[f'{name}{end}']) + 0.0:.{digits}f}" for end in ("", "_low", "_high")]
    return f"{numbers[0]} [{numbers[1]}, {numbers[2]}]"
