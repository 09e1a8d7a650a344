"""The variables of `effects` from the numbers of all prompts: means, intervals, and tests against controls."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.effects.record import (
    ADD,
    CONTROLS,
    HEAD,
    INTERVENTIONS,
    LEAST_EFFECTIVE,
    LEAST_VARIANCE,
    MATCHED,
    MEASURES,
    PATCH,
    REMOVE,
)
from theodolite.groups.schema import INTERVAL, NULL, SIDES, SUBLAYERS
from theodolite.sites import Site, depth
from theodolite_jobs.effects.work import Arrays
from theodolite_jobs.groups.effects.formulas_controls import ControlFacts
from theodolite_jobs.groups.effects.formulas_means import (
    against_controls,
    half_dose,
    mean_over_prompts,
    restored_of_means,
)
from theodolite_jobs.statistics.estimates import Estimate


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
    return {
        **found,
        "intact_difference": difference.stacked(),
        "forward_error": np.array([measured["intact_error"].max(initial=0.0), measured["route_error"][0]]),
    }


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
        own = self.own
        wholes = self.other_log_odds - own["intact_log_odds"]
        towards = np.argsort(self.doses)[(self.doses <= 0).sum() :]  # doses greater than 0, ascending
        changes = self.sign * own["dose_log_odds"][..., towards]
        found = {
            "n_used": np.array(len(own["intact_log_odds"])),
            "intact_probability": own["intact_probability"].mean(axis=0),
            "expected_sign": np.array(self.sign),
            "direct_correlation": np.array(np.nan),
            "intact_log_odds": mean_over_prompts(own["intact_log_odds"]).stacked(),
            "restored": self._at_places(restored_of_means(own["patch_log_odds"], wholes)),
            "half_dose": self._at_places(half_dose(changes, self.doses[towards], self.sign * wholes)),
        }
        found |= _joined([self._effects(measure) for measure in MEASURES])
        return found | (_of_parts(own) if f"{HEAD}_kl" in own else {})

    def _effects(self, measure: str) -> dict[str, NDArray[np.float64]]:
        """Return the effects on a measure, and their tests."""
        values = np.stack([self.own[f"{intervention}_{measure}"] for intervention in INTERVENTIONS], axis=-1)
        at_places, everywhere = self._tests(measure)
        return {
            "effect": self._at_places(mean_over_prompts(values)),
            "effect_null": at_places,
            "dose_effect": self._at_places(mean_over_prompts(self.own[f"dose_{measure}"])),
            "everywhere_effect": mean_over_prompts(self.own[f"everywhere_{measure}"]).stacked(),
            "everywhere_effect_null": everywhere,
        }

    def _at_places(self, estimate: Estimate) -> NDArray[np.float64]:
        """Return an estimate, (site, layer, …, estimate), from one of shape (place, …)."""
        values = estimate.stacked()
        return values.reshape(*self.shape, *values.shape[1:])

    def _tests(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the tests of a measure, (site, layer, intervention, control, null), and everywhere, (control, null).

        Everywhere is one place, which is no family.
        """
        at_places = np.full((*self.shape, len(INTERVENTIONS), len(CONTROLS), len(NULL)), np.nan)
        everywhere = np.full((len(CONTROLS), len(NULL)), np.nan)
        usable = _usable(self.facts, name)
        has_direction = ~np.isnan(self.facts.effective_controls[:, 0])
        for kind, control in enumerate(CONTROLS):
            for which, intervention in enumerate(INTERVENTIONS):
                if intervention != PATCH:
                    tested = self._test(name, intervention, control, usable[:, which, kind])
                    at_places[..., which, kind, :] = tested.reshape(*self.shape, len(NULL))
            at_all = np.array([usable[has_direction, INTERVENTIONS.index(REMOVE), kind].all()])
            everywhere[kind] = self._test(name, "everywhere", control, at_all)[0]
        everywhere[:, NULL.index("p_family")] = np.nan
        return at_places, everywhere

    def _test(self, name: str, intervention: str, control: str, usable: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the test of a measure against one kind of controls, (place, null); NaN where it is not usable."""
        sign = self.sign if name == "log_odds" else 1.0
        effect = np.atleast_1d(sign * self.own[f"{intervention}_{name}"].mean(axis=0))
        drawn = np.atleast_2d(sign * self.own[f"{intervention}_{control}_{name}"].mean(axis=0)).T
        tested = against_controls(np.where(usable, effect, np.nan), drawn, are_sizes=name == "kl")
        return np.stack(tested, axis=-1)  # its fields have the order of NULL


def _of_parts(own: Arrays) -> dict[str, NDArray[np.float64]]:
    """Return the variables of patched heads and sublayers, (layer, …)."""
    parts = (HEAD, *SUBLAYERS)
    head, *sublayers = (
        np.stack([mean_over_prompts(own[f"{part}_{measure}"]).stacked() for measure in MEASURES]) for part in parts
    )
    head_direct, *directs = (own[f"{part}_direct"].mean(axis=0) for part in parts)
    found = {
        "head_effect": head,
        "sublayer_effect": np.stack(sublayers, axis=-2),
        "head_direct": head_direct,
        "sublayer_direct": np.stack(directs, axis=-1),
    }
    direct, patched = head_direct.ravel(), head[MEASURES.index("log_odds"), ..., 0].ravel()
    if np.isfinite(direct + patched).all() and direct.std() and patched.std():
        found["direct_correlation"] = np.corrcoef(direct, patched)[0, 1]
    return found


def score_changes(measured: Arrays, places: Sequence[tuple[Site, int]], scored: Sequence[int]) -> NDArray[np.float64]:
    """Return the variable `score_change`, (side, place, intervention, layer that is scored, estimate).

    Args:
        measured: the numbers of all prompts, the positive and the negative one of each pair in turns.
        places: the site and the layer of each change.
        scored: the layers at whose input the scores are measured; NaN where the input precedes the change.
    """
    found = np.full((len(SIDES), len(places), len(INTERVENTIONS), len(scored), len(INTERVAL)), np.nan)
    for side, (place, change), (which, name) in product(range(len(SIDES)), enumerate(places), enumerate(INTERVENTIONS)):
        later = [index for index, layer in enumerate(scored) if is_after(layer, change)]
        if later:
            means = mean_over_prompts(measured[f"{name}_score"][side::2, place][:, later])
            found[side, place, which, later] = means.stacked()
    return found


def is_after(scored: int, change: tuple[Site, int]) -> bool:
    """Return whether the input of a block comes after a change, or is what is changed."""
    return depth(Site.RESID_PRE, scored) >= depth(*change)


def _joined(sides: Sequence[dict[str, NDArray[np.float64]]]) -> dict[str, NDArray[np.float64]]:
    return {name: np.stack([side[name] for side in sides]) for name in sides[0]}
