"""The variables of `effects` from the numbers of all prompts: means, intervals, and tests against controls."""

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.effects import (
    CONTROLS,
    CONTROLS_OF,
    HEAD,
    INTERVENTIONS,
    MATCHED,
    MEASURES,
    PARTS,
    PERMUTED,
    SIDES,
)
from theodolite.sites import Site, depth
from theodolite_jobs.effects.work import Arrays
from theodolite_jobs.statistics.effects_means import Estimate, against_controls, mean_over_prompts, share_of_means

_TESTED = ("control", "z", "p", "p_family")
_SCORES = ("score_change", "score_change_low", "score_change_high")


def variables_of(measured: Arrays, shape: tuple[int, int]) -> dict[str, NDArray[np.float64]]:
    """Return the variables of a contrast at a position, except those of the scores, (side, …).

    Args:
        measured: the numbers of all prompts, the positive and the negative one of each pair in turns.
        shape: number of sites and of layers.
    """
    found = _joined([_of_side(measured, which, shape) for which in range(len(SIDES))])
    odds = measured["intact_log_odds"]
    found |= _named("intact_difference", mean_over_prompts(odds[0::2] - odds[1::2]))
    errors = {"intact_error": measured["intact_error"].max(initial=0.0)}
    return {**found, **errors, "route_error": measured["route_error"][0]}


def _of_side(measured: Arrays, which: int, shape: tuple[int, int]) -> dict[str, NDArray[np.float64]]:
    """Return the variables of the prompts of one side."""
    own = {name: values[which::2] for name, values in measured.items()}
    found = {
        "n_prompts": np.array(len(own["intact_log_odds"])),
        "intact_log_odds": own["intact_log_odds"].mean(axis=0),
        "direct_correlation": np.array(np.nan),
    }
    for name in MEASURES:
        values = np.stack([own[f"{intervention}_{name}"] for intervention in INTERVENTIONS], axis=-1)
        found |= _named(name, _reshaped(mean_over_prompts(values), shape))
        found |= _tests(own, name, shape)
        found |= _named(f"dose_{name}", _reshaped(mean_over_prompts(own[f"dose_{name}"]), shape))
        found |= _named(f"everywhere_{name}", mean_over_prompts(own[f"everywhere_{name}"]))
    wholes = measured["intact_log_odds"][1 - which :: 2] - own["intact_log_odds"]
    found |= _named("restored", _reshaped(share_of_means(own["patch_log_odds"], wholes), shape))
    if f"{HEAD}_kl" in own:
        found |= _of_parts(own)
    return found


def _tests(own: Arrays, name: str, shape: tuple[int, int]) -> dict[str, NDArray[np.float64]]:
    """Return the tests of a measure against control directions, (site, layer, intervention, control) and (control,)."""
    size = np.abs if name == "log_odds" else np.asarray
    at_places = {part: np.full((*shape, len(INTERVENTIONS), len(CONTROLS)), np.nan) for part in _TESTED}
    everywhere = {part: np.full(len(CONTROLS), np.nan) for part in _TESTED[:-1]}
    for intervention, controls in CONTROLS_OF.items():
        effect = size(own[f"{intervention}_{name}"].mean(axis=0)).reshape(shape)
        for control in controls:
            drawn = size(own[f"{intervention}_{control}_{name}"].mean(axis=0)).T.reshape(-1, *shape)
            at = INTERVENTIONS.index(intervention), CONTROLS.index(control)
            for part, values in against_controls(effect, drawn)._asdict().items():
                at_places[part][..., *at] = values
    for control in (MATCHED, PERMUTED):
        effect = size(own[f"everywhere_{name}"].mean(axis=0))
        drawn = size(own[f"everywhere_{control}_{name}"].mean(axis=0))
        tested = against_controls(effect[None], drawn[:, None])._asdict()
        for part, values in everywhere.items():
            values[CONTROLS.index(control)] = tested[part][0]
    return {
        **{f"{name}_{part}": values for part, values in at_places.items()},
        **{f"everywhere_{name}_{part}": values for part, values in everywhere.items()},
    }


def _of_parts(own: Arrays) -> dict[str, NDArray[np.float64]]:
    """Return the variables of patched heads, attention, MLPs and blocks, (layer, …)."""
    found: dict[str, NDArray[np.float64]] = {}
    for part in PARTS:
        for name in MEASURES:
            found |= _named(f"{part}_{name}", mean_over_prompts(own[f"{part}_{name}"]))
        found[f"{part}_direct"] = own[f"{part}_direct"].mean(axis=0)
    direct, patched = found[f"{HEAD}_direct"].ravel(), found[f"{HEAD}_log_odds"].ravel()
    if np.isfinite(direct + patched).all() and direct.std() and patched.std():
        found["direct_correlation"] = np.corrcoef(direct, patched)[0, 1]
    return found


def score_changes(
    measured: Arrays, places: Sequence[tuple[Site, int]], scored: Sequence[int]
) -> dict[str, NDArray[np.float64]]:
    """Return the variables `score_change` and its ends, (side, place, intervention, layer that is scored).

    Args:
        measured: the numbers of all prompts, the positive and the negative one of each pair in turns.
        places: the site and the layer of each change.
        scored: the layers at whose input the scores are measured; NaN where the input precedes the change.
    """
    found = {name: np.full((len(SIDES), len(places), len(INTERVENTIONS), len(scored)), np.nan) for name in _SCORES}
    for side, (place, change), (which, name) in product(range(len(SIDES)), enumerate(places), enumerate(INTERVENTIONS)):
        later = [index for index, layer in enumerate(scored) if is_after(layer, change)]
        if not later:
            continue
        means = mean_over_prompts(measured[f"{name}_score"][side::2, place][:, later])
        for variable, values in _named("score_change", means).items():
            found[variable][side, place, which, later] = values
    return found


def is_after(scored: int, change: tuple[Site, int]) -> bool:
    """Return whether the input of a block comes after a change, or is what is changed."""
    return depth(Site.RESID_PRE, scored) >= depth(*change)


def _named(name: str, estimate: Estimate) -> dict[str, NDArray[np.float64]]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _reshaped(estimate: Estimate, shape: tuple[int, int]) -> Estimate:
    return Estimate(*(values.reshape(*shape, *values.shape[1:]) for values in estimate))


def _joined(sides: Sequence[dict[str, NDArray[np.float64]]]) -> dict[str, NDArray[np.float64]]:
    return {name: np.stack([side[name] for side in sides]) for name in sides[0]}
