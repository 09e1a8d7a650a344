"""The sentences about effects at one contrast and position."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr

from theodolite.figures.effects import CONTROL_NAMES
from theodolite.groups.effects import ADD, ATTENTION, BLOCK, CONTROLS_OF, MLP, PATCH, REMOVE
from theodolite.groups.permutations import LEVEL
from theodolite.query.effects import first_place, largest, strictest
from theodolite.query.heads import head_name
from theodolite.sections.parts import SIDES, listed, number, percent, significant

_HALF = 0.5

_REPLACED = {
    ATTENTION: "The output of attention in one layer is replaced by that",
    MLP: "The output of the MLP in one layer is replaced by that",
    BLOCK: "The outputs of attention and MLP of one block are replaced by those",
}


def effects_facts(
    values: xr.Dataset, sides: Mapping[str, str], tokens: Mapping[str, list[str]], patch: str, full_route: str
) -> Iterator[str]:
    """Yield the sentences.

    Args:
        values: the result group at one contrast and position.
        sides: label of the set on each side.
        tokens: texts of the next tokens of both groups.
        patch: what a patched prompt gets, "pair" or "mean".
        full_route: why interventions took forward passes of all tokens; empty if they did not.
    """
    yield _where(values)
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
            f"{what}, compared with {controls_text(intervention, ' and with ')}: {places_word(values)} where the KL "
            f"divergence is larger than for both kinds of controls (family-wise p of at most {LEVEL}): "
            f"{listed(texts)}. z and p are those against the kind of controls that is exceeded less."
        )
    yield from _everywhere_facts(values, sides)
    yield from _score_facts(values, sides)
    yield from _head_facts(values, sides)
    yield from _part_facts(values, sides)
    yield from _certificate(values, full_route)


def _where(values: xr.Dataset) -> str:
    """Return at which sites and layers states are changed, and whether the outputs of heads are."""
    sites, layers = (values[dim].values.tolist() for dim in ("site", "layer"))
    captured = values["layer_other"].size
    which = f"all {captured} captured layers"
    if len(layers) < captured:
        which = f"{len(layers)} of {captured} captured layers ({', '.join(map(str, layers))})"
    heads = ""
    if np.isfinite(values["head_kl"]).any():
        per_layer = values.sizes["head"]
        heads = f", and the outputs of the heads in these layers ({len(layers) * per_layer} of {captured * per_layer})"
    return f"Interventions change the states at {' and '.join(sites)} of {which}{heads}."


def _texts(texts: list[str]) -> str:
    stripped = list(dict.fromkeys(text.strip() for text in texts))
    return ", ".join(f"“{text}”" for text in stripped)


def places_word(values: xr.Dataset) -> str:
    """Return what the changed places are called."""
    return "layers" if values.sizes["site"] == 1 else "sites and layers"


def _patch_facts(values: xr.Dataset, sides: Mapping[str, str], patch: str) -> Iterator[str]:
    kl = values["kl"].sel(intervention=PATCH)
    texts = {}
    for side, label in sides.items():
        place = largest(kl.sel(prompt_side=side))
        own = values.sel(**place, prompt_side=side, intervention=PATCH)
        texts[label] = f"{_with_ends(own, 'kl')} nats at {at_place(values, place)}"
    given = "the state of the other prompt of its pair" if patch == "pair" else "the mean state of the other set"
    yield (
        f"Patch (each prompt gets {given}): the largest KL divergence over {places_word(values)} is {listed(texts)}. "
        "Late layers have large effects, since a patch there replaces the whole stream of the last token, and few "
        "blocks follow."
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
        if first := first_place(shares >= _HALF):
            at = values.sel(**first, prompt_side=side)
            texts[label] = f"{at_place(values, first)}, {_share(at, 'restored')}"
        else:
            texts[label] = f"less than {percent(_HALF, 0)} everywhere"
    yield (
        f"First place at which a patch restores at least {percent(_HALF, 0)} of the difference of the log-odds to the "
        f"other set: {listed(texts)}."
    )


def controls_text(intervention: str, joint: str = " and ") -> str:
    """Return the names of the control directions of an intervention."""
    return joint.join(CONTROL_NAMES[control] for control in CONTROLS_OF[intervention])


def _tested(values: xr.Dataset, intervention: str) -> str:
    """Return at how many places an intervention changes more than its controls, and the place with the largest z."""
    p, z = (strictest(values, intervention, part) for part in ("p_family", "z"))
    if not np.isfinite(z).any():
        return "no test is possible"
    place = largest(z)
    at = values.sel(**place, intervention=intervention)
    controls = " and ".join(significant(at["kl_control"].sel(control=one)) for one in CONTROLS_OF[intervention])
    each = "; ".join(
        f"against {CONTROL_NAMES[one]} alone "
        f"{passed(values['kl_p_family'].sel(intervention=intervention, control=one)).partition(' ')[0]}"
        for one in CONTROLS_OF[intervention]
    )
    return (
        f"{passed(p)} ({each}; largest z {float(z.sel(place)):.1f}, p = {float(p.sel(place)):.2g}, at "
        f"{at_place(values, place)}: {_with_ends(at, 'kl')} nats, controls {controls})"
    )


def _everywhere_facts(values: xr.Dataset, sides: Mapping[str, str]) -> Iterator[str]:
    texts = {}
    for side, label in sides.items():
        own = values.sel(prompt_side=side)
        controls = [own.sel(control=control) for control in CONTROLS_OF[REMOVE]]
        means = " and ".join(significant(one["everywhere_kl_control"]) for one in controls)
        p = max(float(one["everywhere_kl_p"]) for one in controls)
        texts[label] = f"{_with_ends(own, 'everywhere_kl')} nats (controls {means}, p = {p:.2g})"
    n_layers = values.sizes["layer"]
    together = (
        "Together, those of equal variance can take out more than the contrast's own directions, which can be more "
        "alike from layer to layer. "
    ) * (n_layers > 1)
    yield (
        f"Removing, in one forward pass, the direction of each of the {values.sizes['site'] * values.sizes['layer']} "
        f"{places_word(values)} there gives a KL divergence of {listed(texts)}. The controls are "
        f"{controls_text(REMOVE)}, removed in the same way. {together}The larger p is stated."
    )


def _score_facts(values: xr.Dataset, sides: Mapping[str, str]) -> Iterator[str]:
    site, side = values["site"].values.tolist()[0], SIDES[1]
    of_side = values.sel(site=site, prompt_side=side)
    last = int(values["layer_other"].values[-1])
    at_last = of_side.sel(intervention=ADD, layer_other=last)
    left = {
        f"layer {layer}:": _share(at_last.sel(layer=layer), "score_change")
        for layer in followed_layers(of_side)
        if layer < last
    }
    if left:
        yield (
            f"A difference of the means that is added to {sides[side]} prompts at {site} moves the stream at the input "
            f"of block {last} along the contrast's direction there by this share of the distance of the means there, "
            f"by the layer at which it is added: {listed(left)}. The added vector itself can be shorter or longer than "
            "that distance."
        )


def _head_facts(values: xr.Dataset, sides: Mapping[str, str]) -> Iterator[str]:
    if not np.isfinite(values["head_kl"]).any():
        return
    texts = {}
    for side, label in sides.items():
        own = values.sel(prompt_side=side)
        at = largest(own["head_kl"])
        texts[label] = f"{head_name(int(at['layer']), int(at['head']))}, {_with_ends(own.sel(at), 'head_kl')} nats"
    yield (
        f"Single heads whose output is replaced by that of the other prompt: the largest KL divergence of these "
        f"{own['head_kl'].size} heads is {listed(texts)}."
    )
    correlation = values["direct_correlation"]
    if np.isfinite(correlation).all():
        texts = {label: f"{float(correlation.sel(prompt_side=side)):.2f}" for side, label in sides.items()}
        yield (
            "Correlation over these heads between the change of the log-odds by a patch and its direct part (that of "
            f"the changed output alone, added to the stream after the last block): {listed(texts)}. A low correlation "
            "can mean that heads act through later parts, or that most changes are near 0."
        )


def _part_facts(values: xr.Dataset, sides: Mapping[str, str]) -> Iterator[str]:
    for part, what in _REPLACED.items():
        if np.isfinite(values[f"{part}_kl"]).any():
            texts = {}
            for side, label in sides.items():
                own = values.sel(prompt_side=side)
                at = largest(own[f"{part}_kl"])
                texts[label] = f"layer {at['layer']}, {_with_ends(own.sel(at), f'{part}_kl')} nats"
            yield f"{what} of the other prompt: the largest KL divergence over layers is {listed(texts)}."


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


def passed(p: xr.DataArray) -> str:
    """Return at how many places an effect is larger than those of its controls."""
    return f"{int((p <= LEVEL).sum())} of {int(np.isfinite(p).sum())}"


def followed_layers(values: xr.Dataset) -> list[int]:
    """Return the first, the middle and the last layer whose added difference is seen at the input of a block."""
    scores = abs(values["score_change"].sel(intervention=ADD)).max("layer_other")
    layers = [int(layer) for layer in scores["layer"].values if float(scores.sel(layer=layer)) > 0]
    return list(dict.fromkeys([layers[0], layers[len(layers) // 2], layers[-1]])) if layers else []


def at_place(values: xr.Dataset, place: Mapping[str, Any]) -> str:
    """Return the name of a changed place, without its site if only one site is changed."""
    site = f" {str(place['site']).removeprefix('resid_')}" if values["site"].size > 1 else ""
    return f"layer {place['layer']}{site}"


def _with_ends(values: xr.Dataset, name: str, digits: int | None = None) -> str:
    """Return a value and its interval with this number of decimal places, or with two significant digits."""
    ends = (values[f"{name}{end}"] for end in ("", "_low", "_high"))
    value, low, high = (significant(end) if digits is None else number(end, digits) for end in ends)
    return f"{value} [{low}, {high}]"


def _share(values: xr.Dataset, name: str) -> str:
    share, low, high = (significant(100 * values[f"{name}{end}"]) for end in ("", "_low", "_high"))
    return f"{share} [{low}, {high}] %"
