"""The variables of `effects` from the numbers of all prompts: means, intervals, and tests against controls."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.effects import (
    ADD,
    CONTROLS,
    HEAD,
    INTERVENTIONS,
    LEAST_EFFECTIVE,
    LEAST_VARIANCE,
    MATCHED,
    MEASURES,
    PARTS,
    PATCH,
    REMOVE,
    SIDES,
)
from theodolite.sites import Site, depth
from theodolite_jobs.effects.work import Arrays
from theodolite_jobs.statistics.effects_controls import ControlFacts
from theodolite_jobs.statistics.effects_means import (
    ControlTest,
    against_controls,
    half_dose,
    mean_over_prompts,
    share_of_means,
)
from theodolite_jobs.statistics.estimates import Estimate

_SCORES = ("score_change", "score_change_low", "score_change_high")


def variables_of(
    measured: Arrays, doses: Sequence[float], facts: ControlFacts, shape: tuple[int, int]
) -> dict[str, NDArray[np.float64]]:
    """Return the variables of a contrast at a position, except those of the scores, (side, …).

    Args:
        measured: the numbers of all prompts, the positive and the negative one of each pair in turns.
        doses: the doses of the difference of the means.
        facts: what is known of the controls.
        shape: number of sites and of layers.
    """
    odds = measured["intact_log_odds"]
    difference = mean_over_prompts(odds[0::2] - odds[1::2])
    sign = np.sign(difference.value) if difference.low * difference.high > 0 else np.nan
    sides = [
        _Side(
            {name: values[which::2] for name, values in measured.items()},
            odds[1 - which :: 2],
            float(towards * sign),
            np.array(doses) * towards,
            facts,
            shape,
        )
        for which, towards in enumerate((-1, 1))
    ]
    found = _joined([side.variables() for side in sides])
    found |= {name: values.reshape(*shape, -1) for name, values in facts._asdict().items()}
    found |= difference.named("intact_difference")
    errors = {"intact_error": measured["intact_error"].max(initial=0.0)}
    return {**found, **errors, "route_error": measured["route_error"][0]}


def _usable(facts: ControlFacts, name: str) -> NDArray[np.bool_]:
    """Return whether effects on a measure can be compared with controls, (place, intervention, control)."""
    usable = np.zeros((len(facts.effective_controls), len(INTERVENTIONS), len(CONTROLS)), dtype=bool)
    usable[:, [INTERVENTIONS.index(REMOVE), INTERVENTIONS.index(ADD)]] = (facts.effective_controls >= LEAST_EFFECTIVE)[
        :, None
    ]
    matched = CONTROLS.index(MATCHED)
    # Both sets have the same mean along `matched`, so its removal moves no mean; that of the direction does.
    usable[:, INTERVENTIONS.index(REMOVE), matched] &= name != "log_odds"
    usable[:, INTERVENTIONS.index(REMOVE), matched] &= facts.control_variance[:, matched] >= LEAST_VARIANCE
    return usable


@dataclass(frozen=True)
class _Side:
    """The prompts of one side.

    Attributes:
        own: their numbers.
        other_log_odds: intact log-odds of the other side's prompts.
        sign: `expected_sign`.
        doses: the doses; those towards the other set are greater than 0.
        facts: what is known of the controls.
        shape: number of sites and of layers.
    """

    own: Arrays
    other_log_odds: NDArray[np.float64]
    sign: float
    doses: NDArray[np.float64]
    facts: ControlFacts
    shape: tuple[int, int]

    def variables(self) -> dict[str, NDArray[np.float64]]:
        """Return the variables of the side."""
        own, shape = self.own, self.shape
        found = {
            "n_prompts": np.array(len(own["intact_log_odds"])),
            "intact_probability": own["intact_probability"].mean(axis=0),
            "expected_sign": np.array(self.sign),
            "direct_correlation": np.array(np.nan),
            **mean_over_prompts(own["intact_log_odds"]).named("intact_log_odds"),
        }
        for name in MEASURES:
            values = np.stack([own[f"{intervention}_{name}"] for intervention in INTERVENTIONS], axis=-1)
            found |= _reshaped(mean_over_prompts(values), shape).named(name)
            found |= self._tests(name)
            found |= _reshaped(mean_over_prompts(own[f"dose_{name}"]), shape).named(f"dose_{name}")
            found |= mean_over_prompts(own[f"everywhere_{name}"]).named(f"everywhere_{name}")
        wholes = self.other_log_odds - own["intact_log_odds"]
        found |= _reshaped(share_of_means(own["patch_log_odds"], wholes), shape).named("restored")
        towards = np.argsort(self.doses)[(self.doses <= 0).sum() :]  # doses greater than 0, ascending
        changes = self.sign * own["dose_log_odds"][..., towards]
        found |= _reshaped(half_dose(changes, self.doses[towards], self.sign * wholes), shape).named("half_dose")
        if f"{HEAD}_kl" in own:
            found |= _of_parts(own)
        return found

    def _tests(self, name: str) -> dict[str, NDArray[np.float64]]:
        """Return the tests of a measure, (site, layer, intervention, control) and, everywhere, (control,)."""
        dims = (len(INTERVENTIONS), len(CONTROLS))
        at_places = {part: np.full((*self.shape, *dims), np.nan) for part in ControlTest._fields}
        everywhere = {part: np.full(len(CONTROLS), np.nan) for part in ControlTest._fields}
        usable = _usable(self.facts, name)
        has_direction = ~np.isnan(self.facts.effective_controls[:, 0])
        for (which, intervention), (kind, control) in product(enumerate(INTERVENTIONS), enumerate(CONTROLS)):
            if intervention != PATCH:
                tested = self._test(name, intervention, control, usable[:, which, kind])
                for part, values in tested._asdict().items():
                    at_places[part][..., which, kind] = values.reshape(self.shape)
        for kind, control in enumerate(CONTROLS):
            at_all = np.array([usable[has_direction, INTERVENTIONS.index(REMOVE), kind].all()])
            tested = self._test(name, "everywhere", control, at_all)
            for part, values in tested._asdict().items():
                everywhere[part][kind] = values[0]
        return {
            **{f"{name}_{part}": values for part, values in at_places.items()},
            **{f"everywhere_{name}_{part}": everywhere[part] for part in ControlTest._fields if part != "p_family"},
        }

    def _test(self, name: str, intervention: str, control: str, usable: NDArray[np.bool_]) -> ControlTest:
        """Return the test of a measure against one kind of controls, (place,); NaN where it is not usable."""
        sign = self.sign if name == "log_odds" else 1.0
        effect = np.atleast_1d(sign * self.own[f"{intervention}_{name}"].mean(axis=0))
        drawn = np.atleast_2d(sign * self.own[f"{intervention}_{control}_{name}"].mean(axis=0)).T
        return against_controls(np.where(usable, effect, np.nan), drawn, are_sizes=name == "kl")


def _of_parts(own: Arrays) -> dict[str, NDArray[np.float64]]:
    """Return the variables of patched heads, attention, MLPs and blocks, (layer, …)."""
    found: dict[str, NDArray[np.float64]] = {}
    for part in PARTS:
        for name in MEASURES:
            found |= mean_over_prompts(own[f"{part}_{name}"]).named(f"{part}_{name}")
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
        for variable, values in means.named("score_change").items():
            found[variable][side, place, which, later] = values
    return found


def is_after(scored: int, change: tuple[Site, int]) -> bool:
    """Return whether the input of a block comes after a change, or is what is changed."""
    return depth(Site.RESID_PRE, scored) >= depth(*change)


def _reshaped(estimate: Estimate, shape: tuple[int, int]) -> Estimate:
    return Estimate(*(values.reshape(*shape, *values.shape[1:]) for values in estimate))


def _joined(sides: Sequence[dict[str, NDArray[np.float64]]]) -> dict[str, NDArray[np.float64]]:
    return {name: np.stack([side[name] for side in sides]) for name in sides[0]}
