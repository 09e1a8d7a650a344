"""The sentences about effects at one contrast and position."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr

from theodolite.groups.effects.figures import CONTROL_NAMES
from theodolite.groups.effects.record import (
    ADD,
    ATTENTION,
    BLOCK,
    LEAST_EFFECTIVE,
    LEAST_VARIANCE,
    MATCHED,
    MLP,
    PATCH,
    REMOVE,
)
from theodolite.groups.schema import LEVEL, SIDES
from theodolite.query.curves import end_of
from theodolite.query.effects import first_place, largest, places, rank_correlation, strictest, towards_other
from theodolite.query.heads import head_name
from theodolite.sections.parts import listed, number, percent, significant

_HALF = 0.5

_REPLACED = {
    ATTENTION: "The output of attention in one layer is replaced by that",
    MLP: "The output of the MLP in one layer is replaced by that",
    BLOCK: "The outputs of attention and MLP of one block are replaced by those",
}

_WHAT = {REMOVE: "Removing the direction", ADD: "Adding the difference of the means towards the other set"}


def effects_facts(
    values: xr.Dataset,
    sides: Mapping[str, str],
    tokens: Mapping[str, list[str]],
    patch: str,
    full_route: str,
    separation: xr.Dataset | None,
) -> Iterator[str]:
    """Yield the sentences.

    Args:
        values: the results at one contrast and position.
        sides: label of the set on each side.
        tokens: texts of the next tokens of both groups.
        patch: what a patched prompt gets, "pair" or "mean".
        full_route: why interventions took forward passes of all tokens; empty if they did not.
        separation: the results of the analysis `separation` at the same contrast and position, if the run has it.
    """
    yield _where(values)
    first, second = tokens
    chances = {label: percent(values["intact_probability"].sel(prompt_side=side), 0) for side, label in sides.items()}
    yield (
        f"Without a change, the next token is in the group {first} ({_texts(tokens[first])}) or {second} "
        f"({_texts(tokens[second])}) with a probability of {listed(chances)}. "
        f"{intact_text(values, sides, first, second)}"
    )
    for intervention, what in _WHAT.items():
        changes = towards_other(values.sel(intervention=intervention))
        if np.isfinite(changes["value"]).any():
            texts = {
                label: _tested(values.sel(prompt_side=side), "log_odds", intervention) for side, label in sides.items()
            }
            yield f"{what} moves the log-odds towards the other set: {listed(texts)}."
    yield from _untested(values)
    yield from _dose_facts(values, sides)
    if separation is not None:
        yield from _separation_facts(values, sides, separation)
    for intervention, what in _WHAT.items():
        texts = {label: _tested(values.sel(prompt_side=side), "kl", intervention) for side, label in sides.items()}
        yield f"{what} gives a KL divergence, which has no direction: {listed(texts)}."
    yield from _everywhere_facts(values, sides)
    yield from _patch_facts(values, sides, patch)
    yield from _score_facts(values, sides)
    yield from _head_facts(values, sides)
    yield from _part_facts(values, sides)
    yield from _certificate(values, full_route)


def intact_text(values: xr.Dataset, sides: Mapping[str, str], first: str, second: str) -> str:
    """Return the log-odds without a change, and whether those of the sets differ."""
    odds = values["intact_log_odds"]
    intact = {label: _with_ends(odds.sel(prompt_side=side), 2) for side, label in sides.items()}
    known = np.isfinite(values["expected_sign"]).any()
    differ = "" if known else ", which may be 0, so it is not known which change to expect"
    return (
        f"Without a change, the log-odds of {first} against {second} are {listed(intact)}; their difference is "
        f"{_with_ends(values['intact_difference'], 2)}{differ}."
    )


def _where(values: xr.Dataset) -> str:
    """Return at which sites and layers states are changed, and whether the outputs of heads are."""
    sites, layers = (values[dim].values.tolist() for dim in ("site", "layer"))
    captured = values["layer_other"].size
    which = f"all {captured} captured layers" if captured > 1 else "the only captured layer"
    if len(layers) < captured:
        which = f"{len(layers)} of {captured} captured layers ({', '.join(map(str, layers))})"
    heads = ""
    if np.isfinite(values["head_effect"]).any():
        per_layer = values.sizes["head"]
        heads = f", and the outputs of the heads in these layers ({len(layers) * per_layer} of {captured * per_layer})"
    return f"Interventions change the states at {' and '.join(sites)} of {which}{heads}."


def _texts(texts: list[str]) -> str:
    stripped = list(dict.fromkeys(text.strip() for text in texts))
    return ", ".join(f"“{text}”" for text in stripped)


def places_word(values: xr.Dataset) -> str:
    """Return what the changed places are called."""
    return "layers" if values.sizes["site"] == 1 else "sites and layers"


def _untested(values: xr.Dataset) -> Iterator[str]:
    """Yield why effects are not compared with a kind of controls."""
    n, where = values.sizes["site"] * values.sizes["layer"], places_word(values)
    share, effective = values["control_variance"].sel(control=MATCHED), values["effective_controls"]
    if equal := int(effective.isnull().all("control").sum()):
        yield f"At {equal} of {n} {where}, the means of both sets are equal: there is no direction to remove or to add."
    if few := int((share < LEAST_VARIANCE).sum()):
        yield (
            f"At {few} of {n} {where}, the KL divergence of removals is not compared with {CONTROL_NAMES[MATCHED]}: on "
            f"average, they hold less than {percent(LEAST_VARIANCE, 0)} of the variance along the contrast's direction "
            f"(smallest share {percent(share.min(), 0)})."
        )
    for control, of_kind in effective.groupby("control"):
        if few := int((of_kind < LEAST_EFFECTIVE).sum()):
            yield (
                f"At {few} of {n} {where}, effects are not compared with {CONTROL_NAMES[str(control)]}: fewer than "
                f"{LEAST_EFFECTIVE:g} of them are effectively different."
            )


def _dose_facts(values: xr.Dataset, sides: Mapping[str, str]) -> Iterator[str]:
    """Yield the smallest dose that changes the log-odds by half of the difference of the sets."""
    if not np.isfinite(values["expected_sign"]).any():
        return
    texts = {}
    for side, label in sides.items():
        own = values["half_dose"].sel(prompt_side=side)
        most = f"{float((values['dose'] * (1 if side == SIDES[1] else -1)).max()):g}"  # towards the other set
        if not np.isfinite(own).any():
            texts[label] = f"no dose up to {most} at any place"
            continue
        at = largest(-own.sel(estimate="value"))  # the smallest one
        dose, low, high = own.sel(at).values.tolist()
        end = f"{high:.2f}]" if np.isfinite(high) else f"more than {most}]"
        texts[label] = f"{dose:.2f} [{low:.2f}, {end} at {at_place(values, at)}"
    yield f"Smallest dose that moves the log-odds by half of their difference between the sets: {listed(texts)}."
    grows = _grows(values)
    yield (
        f"At {int(grows.sum())} of {grows.size} {places_word(values)}, the mean log-odds of both sets change in the "
        "same order as the doses."
    )


def _grows(values: xr.Dataset) -> xr.DataArray:
    """Return where the log-odds of both sets grow, or fall, with each dose as expected, (site, layer)."""
    sign = values["expected_sign"].sel(prompt_side=SIDES[1])  # of a dose greater than 0
    doses = values["dose_effect"].sel(measure="log_odds", dose=values["dose"] != 0, estimate="value")
    none = xr.zeros_like(doses.isel(dose=[0])).assign_coords(dose=[0.0])
    curve = xr.concat([doses, none], "dose").sortby("dose")
    return (sign * curve.diff("dose") > 0).all(["dose", "prompt_side"])


def _separation_facts(values: xr.Dataset, sides: Mapping[str, str], separation: xr.Dataset) -> Iterator[str]:
    """Yield whether the direction moves the log-odds more where it separates the sets better."""
    changes = towards_other(values.sel(intervention=ADD))["value"]
    texts = {}
    for side, label in sides.items():
        correlation = rank_correlation(changes.sel(prompt_side=side), end_of(separation["auroc"]))
        if np.isfinite(correlation):
            texts[label] = f"{correlation:.2f}"
    if texts:
        yield (
            f"Rank correlation over the changed {places_word(values)} between the AUROC of held-out prompts and this "
            f"change of the log-odds: {listed(texts)}."
        )


def _tested(values: xr.Dataset, measure: str, intervention: str) -> str:
    """Return the range of an effect, where it exceeds its controls, and its largest z."""
    changes = values.sel(intervention=intervention)
    kl = changes["effect"].sel(measure="kl", estimate="value")
    effect = towards_other(changes)["value"] if measure == "log_odds" else kl
    p, z = (strictest(values, measure, intervention, part) for part in ("p_family", "z"))
    span = f"{significant(effect.min())} to {significant(effect.max())} nats"
    if not np.isfinite(z).any():
        return f"{span}, not tested"
    at = largest(z)
    return (
        f"{span}, more than the controls at {passed(p)} {places_word(values)} (largest z {float(z.sel(at)):.1f} at "
        f"{at_place(values, at)}, p = {float(p.sel(at)):.2g})"
    )


def _everywhere_facts(values: xr.Dataset, sides: Mapping[str, str]) -> Iterator[str]:
    """Yield what the removal at all places in one forward changes."""
    texts = {}
    changes = towards_other(values, "everywhere_effect")
    for side, label in sides.items():
        own, change = values.sel(prompt_side=side), changes.sel(prompt_side=side)
        p = own["everywhere_effect_null"].sel(measure="log_odds", null="p").max()
        test = f" (p = {float(p):.2g})" if np.isfinite(p) else ""
        moved = f"log-odds by {_ends_text(change)} nats{test}, " if np.isfinite(change["value"]) else ""
        texts[label] = f"{moved}KL {_with_ends(own['everywhere_effect'].sel(measure='kl'))} nats"
    if len(places(values)) > 1:
        yield (
            f"Removing the direction of each of the {len(places(values))} {places_word(values)} there, in one forward "
            f"pass, gives these changes (log-odds towards the other set): {listed(texts)}."
        )


def _patch_facts(values: xr.Dataset, sides: Mapping[str, str], patch: str) -> Iterator[str]:
    kl = values["effect"].sel(measure="kl", intervention=PATCH)
    texts = {}
    for side, label in sides.items():
        own = kl.sel(prompt_side=side)
        place = largest(own.sel(estimate="value"))
        texts[label] = f"{_with_ends(own.sel(place))} nats at {at_place(values, place)}"
    given = "the state of the other prompt of its pair" if patch == "pair" else "the mean state of the other set"
    yield (
        f"Patch (each prompt gets {given}): the largest KL divergence over {places_word(values)} is {listed(texts)}. "
        "Late layers have large effects, since a patch there replaces the whole stream of the last token, and few "
        "blocks follow."
    )
    restored = values["restored"]
    if not np.isfinite(restored).any():
        yield (
            "The share of the difference of the log-odds that a patch restores is not stated: this difference has both "
            "signs among the draws of the bootstrap."
        )
        return
    texts = {}
    for side, label in sides.items():
        shares = restored.sel(prompt_side=side)
        if first := first_place(shares.sel(estimate="low") >= _HALF):
            texts[label] = f"{at_place(values, first)}, {_share(shares.sel(first))}"
        else:
            texts[label] = f"none; largest {_share(shares.sel(largest(shares.sel(estimate='value'))))}"
    yield (
        f"First place at which a patch restores at least {percent(_HALF, 0)} of the difference of the log-odds, with "
        f"its whole interval: {listed(texts)}."
    )


def _score_facts(values: xr.Dataset, sides: Mapping[str, str]) -> Iterator[str]:
    site, side = values["site"].values.tolist()[0], SIDES[1]
    of_side = values.sel(site=site, prompt_side=side)
    last = int(values["layer_other"].values[-1])
    at_last = of_side["score_change"].sel(intervention=ADD, layer_other=last)
    left = {f"layer {layer}:": _share(at_last.sel(layer=layer)) for layer in followed_layers(of_side) if layer < last}
    if left:
        yield (
            f"A difference of the means that is added to {sides[side]} prompts at {site} moves the stream at the input "
            f"of block {last} along the contrast's direction there by this share of the distance of the means there, "
            f"by the layer at which it is added: {listed(left)}. The added vector itself can be shorter or longer than "
            "that distance."
        )


def _head_facts(values: xr.Dataset, sides: Mapping[str, str]) -> Iterator[str]:
    if not np.isfinite(values["head_effect"]).any():
        return
    texts = {}
    for side, label in sides.items():
        own = values["head_effect"].sel(measure="kl", prompt_side=side)
        at = largest(own.sel(estimate="value"))
        texts[label] = f"{head_name(int(at['layer']), int(at['head']))}, {_with_ends(own.sel(at))} nats"
    yield (
        f"Single heads whose output is replaced by that of the other prompt: the largest KL divergence of these "
        f"{own.sizes['layer'] * own.sizes['head']} heads is {listed(texts)}."
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
    for sublayer, what in _REPLACED.items():
        kl = values["sublayer_effect"].sel(measure="kl", sublayer=sublayer)
        if np.isfinite(kl).any():
            texts = {}
            for side, label in sides.items():
                own = kl.sel(prompt_side=side)
                at = largest(own.sel(estimate="value"))
                texts[label] = f"layer {at['layer']}, {_with_ends(own.sel(at))} nats"
            yield f"{what} of the other prompt: the largest KL divergence over layers is {listed(texts)}."


def _certificate(values: xr.Dataset, full_route: str) -> Iterator[str]:
    """Yield how exact the interventions are; nothing if none was compared."""
    intact, error = values["forward_error"].values.tolist()
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
    scores = abs(values["score_change"].sel(intervention=ADD, estimate="value")).max("layer_other")
    layers = [int(layer) for layer in scores["layer"].values if float(scores.sel(layer=layer)) > 0]
    return list(dict.fromkeys([layers[0], layers[len(layers) // 2], layers[-1]])) if layers else []


def at_place(values: xr.Dataset, place: Mapping[str, Any]) -> str:
    """Return the name of a changed place, without its site if only one site is changed."""
    site = f" {str(place['site']).removeprefix('resid_')}" if values["site"].size > 1 else ""
    return f"layer {place['layer']}{site}"


def _with_ends(estimate: xr.DataArray, digits: int | None = None) -> str:
    """Return a value and its interval with this number of decimal places, or with two significant digits."""
    value, low, high = (significant(end) if digits is None else number(end, digits) for end in estimate)
    return f"{value} [{low}, {high}]"


def _ends_text(change: xr.Dataset) -> str:
    return f"{significant(change['value'])} [{significant(change['low'])}, {significant(change['high'])}]"


def _share(estimate: xr.DataArray) -> str:
    share, low, high = (significant(100 * end) for end in estimate)
    return f"{share} [{low}, {high}] %"
