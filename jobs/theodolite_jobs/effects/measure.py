"""Measure what all interventions of a contrast change for some of its prompts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from theodolite.groups.effects.record import ADD, MATCHED, PATCH, PERMUTED, REMOVE
from theodolite.sites import Site
from theodolite.spec import TokenIds
from theodolite_jobs.effects.intact import Intact, run_intact
from theodolite_jobs.effects.next_token import LogitHead, NextTokenChange, next_token_change
from theodolite_jobs.effects.one_token import COLUMNS
from theodolite_jobs.effects.outcome import Outcome, Reading
from theodolite_jobs.effects.parts import measure_parts, part_locations
from theodolite_jobs.effects.routes import prepare_variants, route_error, run_variants
from theodolite_jobs.effects.variants import Add, Change, Location, Patch, Remove, Variant
from theodolite_jobs.effects.work import Arrays, Question, Vectors
from theodolite_jobs.models.loaded import LoadedModel


@dataclass(frozen=True)
class _Prompts:
    """Prompts and the intact states of their last tokens.

    Prompts 2i and 2i + 1 are the positive and the negative one of pair i. `groups` are the indices of prompts of equal
    length that run together; `states` are (prompt, feature) by location.
    """

    groups: list[list[int]]
    states: Mapping[Location, torch.Tensor]


def measure(
    model: LoadedModel,
    head: LogitHead,
    question: Question,
    vectors: Vectors,
    tokens: Sequence[TokenIds],
    columns: int = COLUMNS,
) -> Arrays:
    """Return what the interventions change for prompts, in arrays whose first dimension is the prompt.

    `tokens` are those of the pairs' positive and negative prompts in turns. The last token of each is changed. Numbers
    that are not finite are NaN or infinite in the arrays.

    Args:
        model: the model.
        head: its language-model head.
        question: what to change and to measure.
        vectors: the vectors that the interventions use.
        tokens: token ids of each prompt.
        columns: the largest number of tokens of a prompt that run at once.
    """
    locations = list(dict.fromkeys(_locations(model, question, vectors)))
    prompts = _run_intact(model, tokens, locations, columns)
    found: dict[str, NDArray[np.float64]] = {"route_error": _route_errors(model, question, tokens, prompts.groups)}
    for rows in prompts.groups:
        # Keys and values of one group at a time, since those of all prompts may not fit into memory.
        intact = prepare_variants(model, [tokens[row] for row in rows], locations)
        interventions = _Interventions(model, head, question, vectors, prompts, rows, intact, columns)
        for name, values in interventions.arrays().items():
            if name not in found:
                found[name] = np.full((len(tokens), *values.shape[1:]), np.nan)
            found[name][rows] = values
    return found


def _route_errors(
    model: LoadedModel, question: Question, tokens: Sequence[TokenIds], groups: Sequence[list[int]]
) -> NDArray[np.float64]:
    """Return the difference between the two routes for the longest prompt, (prompt,); NaN for all others.

    It is a sample, since each comparison costs forward passes of all tokens: at the first, a middle and the last place.
    An error can grow with the length, and with the layers behind.
    """
    errors, places = np.full(len(tokens), np.nan), _places(question)
    row = max(groups, key=lambda rows: len(tokens[rows[0]]))[0]
    some = [places[index] for index in sorted({0, len(places) // 2, len(places) - 1})]
    errors[row] = route_error(model, prepare_variants(model, [tokens[row]], some), some)
    return errors


def _locations(model: LoadedModel, question: Question, vectors: Vectors) -> list[Location]:
    """Return where states are changed and read."""
    read = [Location(Site.RESID_PRE, layer) for layer in vectors.score_layers]
    return [*_places(question), *read, *(part_locations(model, question.layers) if question.has_parts else ())]


def _run_intact(
    model: LoadedModel, tokens: Sequence[TokenIds], locations: Sequence[Location], columns: int
) -> _Prompts:
    """Run the prompts without a change, and keep the states of their last tokens."""
    by_length: dict[int, list[int]] = {}
    for row, ids in enumerate(tokens):
        by_length.setdefault(len(ids), []).append(row)
    most = max(1, columns // 4)  # prompts of one forward, so that fewer columns also mean less memory
    groups = [same[start : start + most] for same in by_length.values() for start in range(0, len(same), most)]
    states: dict[Location, torch.Tensor] = {}
    for rows in groups:
        intact = run_intact(model, [tokens[row] for row in rows], locations, is_cached=False)
        for location in locations:
            values = intact.states[location]
            if location not in states:
                states[location] = values.new_empty((len(tokens), values.shape[-1]))
            states[location][rows] = values.to(states[location])
    return _Prompts(groups, states)


@dataclass(frozen=True)
class _Interventions:
    """The interventions on the prompts of one group."""

    model: LoadedModel
    head: LogitHead
    question: Question
    vectors: Vectors
    prompts: _Prompts
    rows: list[int]
    intact: Intact
    columns: int

    def arrays(self) -> Arrays:
        """Return all arrays of these prompts."""
        merged: dict[str, list[NDArray[np.float64]]] = {}
        for place in range(len(self.question.places)):
            for name, values in self._of_place(place).items():
                merged.setdefault(name, []).append(values)
        arrays = {name: np.stack(values, axis=1) for name, values in merged.items()}
        arrays |= self._everywhere()
        if self.question.has_parts:
            partners = {at: self._partners(at) for at in part_locations(self.model, self.question.layers)}
            arrays |= measure_parts(
                self.model, self.intact, self.question.layers, partners, self._run, self._changes, self.columns
            )
        intact = self._changes(self._run([]))
        return {
            **arrays,
            "intact_log_odds": intact.intact_log_odds,
            "intact_probability": intact.intact_probability,
        }

    def _of_place(self, place: int) -> Arrays:
        """Return the effects at one place, (prompt, …)."""
        at, vectors = _places(self.question)[place], self.vectors
        step = torch.from_numpy(vectors.differences[place]).to(self.model.device)
        centre, readings = self._centres[place], self._readings
        main: list[Change] = [Patch(self._patched_state(place)), Remove(step, centre)]
        main += [Add(step, dose) for dose in self.question.doses]
        controls: dict[tuple[str, str], list[Change]] = {
            (REMOVE, MATCHED): [Remove(one, centre) for one in self._directions(vectors.matched, place)],
            (REMOVE, PERMUTED): [Remove(step, centre, one) for one in self._directions(vectors.permuted, place)],
            (ADD, MATCHED): [Add(self._towards_other(one)) for one in self._directions(vectors.matched, place)],
            (ADD, PERMUTED): [Add(self._towards_other(one)) for one in self._directions(vectors.permuted, place)],
        }
        changes = [*main, *(change for of_control in controls.values() for change in of_control)]
        outcome = self._run([Variant({at: change}) for change in changes], readings)
        change = self._changes(outcome)
        own = len(main) - len(self.question.doses) + self._towards_other_dose()
        chosen = {PATCH: np.full(len(own), 0), REMOVE: np.full(len(own), 1), ADD: own}
        arrays = {f"{name}_score": self._score_changes(outcome, readings, of) for name, of in chosen.items()}
        for name, values in {"kl": change.kl, "log_odds": _moved(change)}.items():
            arrays |= {f"{one}_{name}": _chosen(values, of) for one, of in chosen.items()}
            arrays[f"dose_{name}"] = values[:, 2 : len(main)]
            start = len(main)
            for (one, control), of_control in controls.items():
                arrays[f"{one}_{control}_{name}"] = values[:, start : start + len(of_control)]
                start += len(of_control)
        arrays["intact_error"] = np.full(len(self.rows), outcome.intact_error)
        return arrays

    def _everywhere(self) -> Arrays:
        """Return the effects of removing each place's own direction at every place in one forward."""
        own, matched, permuted = (
            torch.from_numpy(values).to(self.model.device)
            for values in (self.vectors.differences, self.vectors.matched, self.vectors.permuted)
        )
        arrays = {}
        for kind, removed in {
            "": [[Remove(*of) for of in zip(own, self._centres, strict=True)]],
            f"{MATCHED}_": [[Remove(*of) for of in zip(draw, self._centres, strict=True)] for draw in matched],
            f"{PERMUTED}_": [[Remove(*of) for of in zip(own, self._centres, draw, strict=True)] for draw in permuted],
        }.items():
            variants = [Variant(dict(zip(_places(self.question), changes, strict=True))) for changes in removed]
            change = self._changes(self._run(variants))
            for name, values in {"kl": change.kl, "log_odds": _moved(change)}.items():
                arrays[f"everywhere_{kind}{name}"] = values if kind else values[:, 0]
        return arrays

    def _run(self, variants: Sequence[Variant], readings: Sequence[Reading] = ()) -> Outcome:
        return run_variants(self.model, self.intact, variants, readings, self.columns)

    def _changes(self, outcome: Outcome) -> NextTokenChange:
        return next_token_change(self.head, self.intact, outcome, self.question.first, self.question.second)

    def _directions(self, vectors: NDArray[np.float32], place: int) -> Iterator[torch.Tensor]:
        yield from torch.from_numpy(np.ascontiguousarray(vectors[:, place])).to(self.model.device)

    @cached_property
    def _signs(self) -> NDArray[np.float64]:
        """The sign of the step towards the other set: -1 for positive prompts, 1 for negative ones, (prompt,)."""
        return np.array([1.0 if row % 2 else -1.0 for row in self.rows])

    @cached_property
    def _readings(self) -> list[Reading]:
        """What reads the scores."""
        return [
            Reading(Location(Site.RESID_PRE, layer), torch.from_numpy(row)[None].to(self.model.device))
            for layer, row in zip(self.vectors.score_layers, self.vectors.scores, strict=True)
        ]

    @cached_property
    def _centres(self) -> torch.Tensor:
        """The midpoint of both sets' means at each place, (place, d_model)."""
        return torch.from_numpy(self.vectors.means.mean(axis=0)).to(self.model.device)

    def _towards_other(self, step: torch.Tensor) -> torch.Tensor:
        """Return the step of each prompt, (prompt, d_model)."""
        return torch.from_numpy(self._signs).to(step)[:, None] * step

    def _towards_other_dose(self) -> NDArray[np.int64]:
        """Return the index of the dose of each prompt that adds the difference of the means towards the other set."""
        return np.array([self.question.doses.index(sign) for sign in self._signs])

    def _patched_state(self, place: int) -> torch.Tensor:
        if self.question.is_paired:
            return self._partners(_places(self.question)[place])
        others = [1 - row % 2 for row in self.rows]  # of a positive prompt the mean of the negative set, index 1
        return torch.from_numpy(self.vectors.means[others, place]).to(self.model.device)

    def _partners(self, location: Location) -> torch.Tensor:
        """Return the states of the other prompts of the pairs."""
        return self.prompts.states[location][[row ^ 1 for row in self.rows]]

    def _score_changes(
        self, outcome: Outcome, readings: Sequence[Reading], variants: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the changes of the scores of one variant for each prompt, towards the other set, (prompt, layer)."""
        if not readings:
            return np.zeros((len(self.rows), 0))
        after = np.stack([_chosen(values[:, :, 0].double().cpu().numpy(), variants) for values in outcome.readings], 1)
        before = np.stack(
            [reading.of(self.intact.states[reading.location])[:, 0].double().cpu().numpy() for reading in readings], 1
        )
        return np.asarray((after - before) * self._signs[:, None])


def _chosen(values: NDArray[np.float64], variants: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the value of one variant for each prompt, from (prompt, variant)."""
    return values[np.arange(len(variants)), variants]


def _moved(change: NextTokenChange) -> NDArray[np.float64]:
    return change.log_odds - change.intact_log_odds[:, None]


def _places(question: Question) -> list[Location]:
    return [Location(site, layer) for site, layer in question.places]
