"""The experts that prompts use: the shares of each set, and their differences in each contrast."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import starmap
from typing import Any

import numpy as np
import xarray as xr

from theodolite.groups.routing.figures import difference_map, share_map
from theodolite.groups.schema import LEVEL, SIDES
from theodolite.query.effects import largest
from theodolite.query.first_tokens import set_labels
from theodolite.sections.parts import (
    BRACKETS,
    CHANCE,
    Figure,
    Section,
    last_position,
    leading_sets,
    number,
    percent,
    prompt_counts,
    quoted,
    same_token_notes,
    side_counts,
    texts_of,
    with_counts,
)
from theodolite.sections.worth import worth_of
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_HOW_TO_READ = (
    "A cell is one expert of one layer: the share of the prompts whose token at the position uses it, or this share in "
    "the positive set minus that in the negative set. With equal use, a share is the number of experts of a token, "
    "divided by all experts. A difference does not show an effect."
)

_LARGEST = "a largest share or z is the largest of all experts of all layers, so it is biased upwards"


def sections(run: Run) -> list[Section]:
    """Return a section for the sets and one for each contrast, at the last position of a single token.

    Sets without this position are left out.
    """
    routing = read_group(run, "routing")
    contrasts = routing["contrast"].values.tolist()
    found = [_of_sets(run, routing), *(_of_contrast(run, routing, contrast) for contrast in contrasts)]
    return [section for section in found if section]


def _of_sets(run: Run, routing: xr.Dataset) -> Section | None:
    measured = with_counts((routing["n_samples"] > 0).any("set"))
    if not measured:
        return None
    position = measured[-1]
    routing = routing.sel(position=[position])
    at = routing.sel(position=position)
    names = [str(name) for name in routing["set"].values if int(at["n_samples"].sel(set=name))]
    labels = {name: label for name, label in set_labels(run, position).items() if name in names}
    if not labels:
        return None
    maps = [
        Figure(
            f"routing.share.{name}",
            f"{label}: share of the prompts that use each expert, %",
            partial(share_map, at, name, f"{label}: share of the prompts, %"),
        )
        for name, label in labels.items()
    ]
    of_sets = [(at.sel(set=name), label) for name, label in labels.items()]
    return Section(
        f"Experts at position {position}; {prompt_counts(routing, labels)}",
        [*starmap(_shares, of_sets), *filter(None, starmap(_active_units, of_sets))],
        maps=maps,
        notes=[BRACKETS, _LARGEST, *_without_experts(at["expert_share"]), *texts_of(routing.attrs.get("notes", []))],
        how_to_read=_HOW_TO_READ,
        headline=_shares_headline(at, leading_sets(run, labels)),
    )


def _shares(values: xr.Dataset, label: str) -> str:
    """Return the largest share of a set, beside that of equal use, and how many experts no prompt uses."""
    share = values["expert_share"].sel(estimate="value")
    used, n_experts = _n_used(share), values.sizes["expert"]
    at = largest(share)
    finite = int(np.isfinite(share).sum())
    value, low, high = (percent(end, 1) for end in values["expert_share"].sel(at))
    return (
        f"{label} (n = {int(values['n_samples'])}): each token uses {number(used, 0)} of {n_experts} experts of a "
        f"layer, so with equal use each share would be {percent(used / n_experts, 1)}. Largest share: {_name(at)}, "
        f"{value} [{low}, {high}]. "
        f"{int((share == 0).sum())} of {finite} experts (of all layers) are used by no prompt of the set."
    )


def _n_used(share: xr.DataArray) -> float:
    """Return the number of experts of a layer that a token uses."""
    return float(share.sum("expert").max())


def _shares_headline(values: xr.Dataset, names: Sequence[str]) -> str:
    """Return the largest share of each named set, beside that of equal use; empty if none is known."""
    shares = {name: values["expert_share"].sel(set=name, estimate="value") for name in names}
    known = {name: share for name, share in shares.items() if np.isfinite(share).any()}
    if not known:
        return ""
    texts = ", ".join(f"{name} {percent(share.max(), 1)}" for name, share in known.items())
    equal = percent(_n_used(next(iter(known.values()))) / values.sizes["expert"], 1)
    return f"Largest share of prompts that use one expert: {texts}; equal use would give {equal}."


def _active_units(values: xr.Dataset, label: str) -> str:
    """Return the share of active hidden units of the experts that tokens use; empty if it is not known."""
    if not np.isfinite(values["expert_active_units"]).any():
        return ""
    shares, units = values["expert_share"].sel(estimate="value"), values["expert_active_units"]
    mean = float(units.weighted(shares.fillna(0)).mean())
    by_layer = units.weighted(shares.fillna(0)).mean("expert").dropna("layer")
    low, high = (by_layer.isel(layer=int(at(by_layer.values))) for at in (np.argmin, np.argmax))
    return (
        f"{label} (n = {int(values['n_samples'])}): {percent(mean, 1)} of the hidden units of an expert that a token "
        f"uses are active (mean over layers and prompts; {percent(low, 1)} in layer {int(low['layer'])} "
        f"to {percent(high, 1)} in layer {int(high['layer'])}; 50 % if positive and negative inputs were "
        "equally frequent)."
    )


def _of_contrast(run: Run, routing: xr.Dataset, contrast: str) -> Section | None:
    position = last_position(routing, contrast)
    values = routing.sel(contrast=contrast, position=position)
    sides, labels = routing.attrs["contrasts"][contrast], set_labels(run, position)
    if not values["n_used"].all():
        return None
    null = values["expert_difference_null"]
    counts = side_counts(values, [labels[sides[side]] for side in SIDES])
    caption = f"{contrast}: difference of the shares of each expert, percentage points"
    return Section(
        f"Experts in {quoted(contrast)} at position {position}: {counts} prompts",
        list(_differences(values, [labels[sides[side]] for side in SIDES])),
        [Figure(f"routing.difference.{contrast}", caption, partial(difference_map, values, caption))],
        notes=[
            BRACKETS,
            CHANCE,
            _LARGEST,
            *_without_experts(values["expert_difference"]),
            *same_token_notes(run, [sides[side] for side in SIDES], labels, position),
        ],
        how_to_read=_HOW_TO_READ,
        finding=_finding(values),
        headline=_headline(values),
        worth=worth_of((null.sel(null="p_family"), null.sel(null="z"))),
    )


def _differences(values: xr.Dataset, labels: list[str]) -> Iterator[str]:
    """Return the expert with the largest z, with its test, and how many experts pass theirs."""
    null, difference = values["expert_difference_null"], values["expert_difference"].sel(estimate="value")
    p, z = null.sel(null="p_family"), null.sel(null="z")
    tested = int(np.isfinite(p).sum())
    if not tested:
        yield (
            f"No expert can be tested: in each layer with experts, all prompts of {' and '.join(labels)} use the same "
            "experts, or all permutations of the labels give the same differences."
        )
        return
    at = largest(z)
    value, low, high = (number(100 * end, 1) for end in values["expert_difference"].sel(at))
    mean, sd = (number(100 * null.sel(at | {"null": part}), 1) for part in ("mean", "sd"))
    first, second = labels if float(difference.sel(at)) > 0 else labels[::-1]
    differs = bool(difference.sel(at) != 0)
    yield (
        f"Expert with the largest z: {_name(at)}, z = {number(z.sel(at), 1)}. "
        f"{f'It is used by a larger share of {first} than of {second}: the' if differs else 'The'} difference of the "
        f"shares ({labels[0]} minus {labels[1]}) is {value} percentage points [{low}, {high}]. Permuted labels give an "
        f"absolute difference of {mean} ± {sd}; family-wise p = {float(p.sel(at)):.2g} over "
        f"{tested} experts."
    )
    passed = difference.where(p <= LEVEL)
    yield (
        f"Experts whose absolute difference is larger than with permuted labels (two-sided; family-wise p of at most "
        f"{LEVEL} over all layers and experts): {int((p <= LEVEL).sum())} of {tested}; {int((passed > 0).sum())} of "
        f"them are used by a larger share of {labels[0]}, {int((passed < 0).sum())} by one of {labels[1]}. If two sets "
        "differ at all, many experts can be expected to differ, since all routers read the same stream."
    )


def _finding(values: xr.Dataset) -> str:
    """Return how many experts of how many layers are used more in one set than chance gives."""
    counts = _counts(values)
    if not counts:
        return ""
    experts, layers = counts
    return (
        f"{experts} tested experts, in {layers} layers with experts, are "
        f"shown to be used by a larger share of one set than of the other (family-wise p of at most {LEVEL}; n = "
        f"{' and '.join(map(str, values['n_used'].values))} prompts)."
    )


def _counts(values: xr.Dataset) -> tuple[str, str] | None:
    """Return how many of the tested experts, and of the layers, differ between the sets; None without a test."""
    p = values["expert_difference_null"].sel(null="p_family")
    tested = int(np.isfinite(p).sum())
    has_experts = values["expert_difference"].sel(estimate="value").notnull()
    layers, with_experts = (int(some.any("expert").sum()) for some in (p <= LEVEL, has_experts))
    return (f"{int((p <= LEVEL).sum())} of {tested}", f"{layers} of {with_experts}") if tested else None


def _headline(values: xr.Dataset) -> str:
    """Return how many experts are used more in one set than chance gives."""
    counts = _counts(values)
    if not counts:
        return "No expert can be tested, so nothing can be concluded."
    experts, layers = counts
    return f"{experts} experts, in {layers} layers, are shown to be used more in one set than in the other."


def _without_experts(values: xr.DataArray) -> list[str]:
    """Return a note about the layers that have no experts."""
    known = np.isfinite(values.transpose("layer", ...).values).reshape(values.sizes["layer"], -1).any(axis=1)
    missing = values["layer"].values[~known].tolist()
    if not missing:
        return []
    if len(missing) == 1:
        return [f"layer {missing[0]} has no experts, so its numbers are missing"]
    return [f"layers {', '.join(map(str, missing))} have no experts, so their numbers are missing"]


def _name(at: Mapping[str, Any]) -> str:
    return f"expert {at['expert']} of layer {at['layer']}"
