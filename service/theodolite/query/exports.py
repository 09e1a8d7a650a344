"""Read a contrast's directions with the facts that a tool needs to use them as steering vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.effects.record import ADD
from theodolite.query.effects import largest, strictest
from theodolite.query.group_selection import select_directions
from theodolite.spec_parts import Label
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_contrasts, read_group
from theodolite.store.runs import Run
from theodolite.version import __version__

GROUPS_READ = ("curves", "directions", "moments", "effects")
"""The analyses that an export contains numbers of; a run may lack `effects`."""

CONVENTION = (
    "direction: unit vector from the mean of the negative set to the mean of the positive set; direction times "
    "difference_norm: mean of the positive set minus mean of the negative set"
)

CONVENTION_ADDED = "mean of the positive set minus mean of the negative set, which the tool adds"

EITHER = "add or project"
"""The operation of a unit direction: added times `difference_norm`, or projected out."""

LAYER_NUMBERING = "layer L: block L, counted from 0; resid_pre is the input of the block, resid_post its output"

_OF_CONTRASTS = {
    "difference_norm": "curves",
    "difference_norm_debiased": "directions",
    "noise_share": "directions",
    "reliability": "directions",
}
"""The exported statistics of contrasts, and their analyses."""


@dataclass(frozen=True)
class Directions:
    """A contrast's directions at one site and position.

    Attributes:
        vectors: unit vectors (d_model) by layer.
        facts: their scale, reliability and origin by name; a list has one value for each vector.
    """

    vectors: dict[int, NDArray[np.float64]]
    facts: dict[str, Any]


def read_directions(
    run: Run, contrast: str, site: str, layers: Sequence[int] = (), position: Label | None = None
) -> Directions:
    """Return a contrast's directions and their facts; no layers select all that have a direction.

    Raises as `select_directions` does.
    """
    selected = select_directions(run, contrast, site, layers, position)
    site = str(selected["site"].values)
    chosen = [int(layer) for layer in selected["layer"].values]
    place = {"site": site, "position": selected["position"].item()}
    facts = {
        **facts_of_model(run),
        "contrast": contrast,
        **_sides(run, contrast),
        "site": site,
        "layer": chosen,
        "position": place["position"],
        "layer_numbering": LAYER_NUMBERING,
        "operation": EITHER,
        "convention": CONVENTION,
        "vector_norm": 1.0,
        **_numbers(run, contrast, {**place, "layer": chosen}),
        **_effects(run, contrast, place),
        "written_by": f"theodolite {__version__}",
    }
    return Directions(dict(zip(chosen, selected.values, strict=True)), facts)


def _numbers(run: Run, contrast: str, at: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of prompts, and for each layer the scale and reliability of the direction."""
    groups = {name: read_group(run, name, vectors=["direction"]) for name in ("moments", *_OF_CONTRASTS.values())}
    groups["curves"] = groups["curves"].sel(space="raw")
    counts, numbers = groups["curves"].sel(contrast=contrast, position=at["position"]), dict[str, Any]()
    for side, prompt_set in _sides(run, contrast).items():
        numbers[f"n_{side}"] = int(counts["n_used"].sel(prompt_side=side))
        numbers[f"norm_mean_{side}"] = groups["moments"]["norm_mean"].sel(set=prompt_set, **at).values.tolist()
    for statistic, name in _OF_CONTRASTS.items():
        numbers[statistic] = groups[name][statistic].sel(contrast=contrast, **at).values.tolist()
    return numbers


def _effects(run: Run, contrast: str, place: dict[str, Any]) -> dict[str, Any]:
    """Return where an added difference is farthest above its controls, and what its doses change there.

    Nothing, if the run has no effects at this site and position, or no test is possible.
    """
    if "effects" not in finished_groups(run):
        return {}
    effects = read_group(run, "effects")
    measured = {"contrast": contrast, "position": place["position"], "site": place["site"]}
    if any(label not in effects[dim].values.tolist() for dim, label in measured.items()):
        return {}
    values = effects.sel(measured)
    tests = {name: strictest(values, name, ADD, "z").min("prompt_side", skipna=False) for name in ("log_odds", "kl")}
    measure = next((name for name, z in tests.items() if np.isfinite(z).any()), None)
    if measure is None:
        return {}
    at = largest(tests[measure])
    doses = values["dose_effect"].sel(**at, estimate="value").mean("prompt_side")
    first, second = effects.attrs["tokens"]
    norm = read_group(run, "curves", vectors=())["difference_norm"].sel(contrast=contrast, space="raw", **place, **at)
    return {
        "effect_layer": at["layer"],
        "effect_p": float(strictest(values, measure, ADD, "p_family").sel(at).max()),
        "effect_difference_norm": float(norm),
        "doses": values["dose"].values.tolist(),
        "dose_kl": doses.sel(measure="kl").values.tolist(),
        "dose_log_odds": doses.sel(measure="log_odds").values.tolist(),
        "log_odds": f"{first} against {second}",
    }


def facts_of_model(run: Run) -> dict[str, Any]:
    """Return the run and its model, as files of vectors name them."""
    model = run.record.model
    # A hub id names trained weights, without an adapter.
    has_hub_id = model.kind == "hub" and model.weights != "random" and model.adapter is None
    return {
        "run_id": run.id,
        "model": model.place if has_hub_id else model.name,
        "revision": model.revisions,
        "family": model.family,
        "model_dtype": model.dtype,
    }


def _sides(run: Run, contrast: str) -> dict[str, str]:
    """Return the names of the `positive` and the `negative` set of a contrast."""
    sets = read_contrasts(run, finished_groups(run))[contrast]
    return {side: sets[side] for side in ("positive", "negative")}
