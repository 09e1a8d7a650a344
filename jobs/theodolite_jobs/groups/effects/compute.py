"""The analysis `effects`: what interventions on the last token change in the distribution of the next token."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from theodolite.errors import StoreError
from theodolite.groups.effects.record import CONTROLS, HEAD, INTERVENTIONS, MEASURES, PROMPT_EFFECTS
from theodolite.groups.schema import SIDES, SUBLAYERS
from theodolite.sites import Site
from theodolite.spec_options import EffectsSpec
from theodolite.spec_parts import Label
from theodolite.store.tables import encode_table
from theodolite_jobs.effects.part_store import PartStore
from theodolite_jobs.effects.work import Arrays, EffectsWork, Question
from theodolite_jobs.groups.effects.formulas_controls import ControlFacts
from theodolite_jobs.groups.effects.inputs import check_range, places_of, question_of, sides_of, tokens_of, vectors_of
from theodolite_jobs.groups.effects.means import score_changes, variables_of
from theodolite_jobs.groups.effects.table import empty_table, table_of
from theodolite_jobs.models.anatomy import check_next_token
from theodolite_jobs.prompts.next_tokens import next_token_groups
from theodolite_jobs.results.context import Context, Result, missing_arrays
from theodolite_jobs.results.permuted_labels import PermutedContrast, permuted_contrast


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("effects", context.contrasts, options=_options(context).model_dump(mode="json"))


def _options(context: Context) -> EffectsSpec:
    return context.spec.effects or EffectsSpec()


def compute(context: Context) -> Result:
    """Return the group from interventions on stored prompts of each contrast.

    Raises:
        SpecError: the options do not fit the captured sites and layers, the vocabulary, or the range of float16.
        UnsupportedModelError: the model is an encoder, which predicts no next token.
        RunDamagedError: a shard differs from its commit record, or contains a number that is not finite.
        CaptureError: replicas cannot start, or all of them failed.
    """
    options, weights = _options(context), context.weights
    check_next_token(weights.anatomy, weights.config.model_type)
    tokenizer = context.open_tokenizer(weights)
    groups = next_token_groups(tokenizer, options.tokens)
    sites, layers = places_of(context.run, options)
    with context.tasks():
        requests = {one.label: one for one in _requests(context, sites, layers, list(groups.values()))}
    tokens = {
        label: tokens_of(context.run, one.contrast, one.position, options.prompts) for label, one in requests.items()
    }
    work = EffectsWork(context.stale["effects"], tokens, {label: one.question for label, one in requests.items()})
    context.measure_effects(work)

    coordinates = {
        **context.coordinates,
        "prompt_side": SIDES,
        "site": [str(site) for site in sites],
        "layer": layers,
        "intervention": INTERVENTIONS,
        "control": CONTROLS,
        "dose": options.doses,
        "head": range(weights.dimensions.n_heads),
    }
    arrays, frames = missing_arrays("effects", coordinates), [empty_table()]
    excluded: dict[str, list[int]] = {}
    routes: dict[str, str] = {}
    for label, one in requests.items():
        measured, left_out, route = _measured(context, work, label)
        routes |= {label: route} if route else {}
        excluded |= {label: left_out.tolist()} if len(left_out) else {}
        if len(measured["intact_log_odds"]):
            at = list(context.contrasts).index(one.name), coordinates["position"].index(one.position)
            for variable, values in one.variables(measured).items():
                arrays[variable][at] = values
            samples = np.delete(np.transpose(sides_of(one.contrast, options.prompts)), left_out, axis=0).ravel()
            frames.append(one.table(measured, samples))
    attributes = {
        "contrasts": context.contrasts,
        "options": options.model_dump(mode="json"),
        "tokens": {name: [tokenizer.decode([token]) for token in ids] for name, ids in groups.items()},
        "patch": {label: "pair" if one.question.is_paired else "mean" for label, one in requests.items()},
        "available": {label: one.available for label, one in requests.items()},
        "full_route": routes,
        "excluded_pairs": excluded,
    }
    table = pd.concat(frames, ignore_index=True)[PROMPT_EFFECTS.names]
    return Result(arrays, coordinates, attributes, tables={PROMPT_EFFECTS.name: encode_table(table)})


@dataclass(frozen=True)
class _Request:
    """What is measured of a contrast at a position.

    Attributes:
        name, position, contrast: the contrast at the position.
        question: what is changed and measured.
        controls: what is known of the controls.
        captured, scored: the captured layers, and those at whose input the score is measured.
    """

    name: str
    position: Label
    contrast: PermutedContrast
    question: Question
    controls: ControlFacts
    captured: list[int]
    scored: tuple[int, ...]

    @property
    def label(self) -> str:
        return f"{self.name}@{self.position}"

    @property
    def available(self) -> list[int]:
        """Number of positive and of negative prompts, of which some are intervened on."""
        return [len(side.samples) for side in (self.contrast.positive, self.contrast.negative)]

    def variables(self, measured: Arrays) -> dict[str, NDArray[np.float64]]:
        """Return the variables of the group at this contrast and position."""
        shape = len(self.question.sites), len(self.question.layers)
        values = score_changes(measured, self.question.places, self.scored)
        sides, _, interventions, scored, ends = values.shape
        scores = np.full((sides, *shape, interventions, len(self.captured), ends), np.nan)
        at = [self.captured.index(layer) for layer in self.scored]
        scores[..., at, :] = values.reshape(sides, *shape, interventions, scored, ends)
        return {**variables_of(measured, self.question.doses, self.controls, shape), "score_change": scores}

    def table(self, measured: Arrays, samples: NDArray[np.int64]) -> pd.DataFrame:
        """Return the rows of the table; `samples` are the indices of the prompts in their sets."""
        sets = self.contrast.positive.prompt_set, self.contrast.negative.prompt_set
        table = table_of(measured, self.question, samples, sets, self.scored)
        return table.assign(contrast=self.name, position=self.position)


def _requests(
    context: Context, sites: Sequence[Site], layers: Sequence[int], groups: Sequence[Sequence[int]]
) -> Iterator[_Request]:
    """Yield what is measured of each contrast at each position, and store its vectors for the replicas."""
    options, run = _options(context), context.run
    for name, position in product(context.contrasts, context.coordinates["position"]):
        is_mean = position in run.record.spec.means  # a mean is no state of a token, which could be changed
        contrast = None if is_mean else permuted_contrast(context, name, position)
        if contrast is None:
            continue
        question = question_of(options, contrast, sites, layers, groups)
        vectors, controls = vectors_of(context, contrast, sites, layers, options.controls)
        check_range(run, question, vectors)
        one = _Request(name, position, contrast, question, controls, list(run.record.layers), vectors.score_layers)
        _stored(context).write_vectors(one.label, vectors)
        yield one


def _stored(context: Context) -> PartStore:
    return PartStore(context.run.location, context.run.id, context.stale["effects"])


def _measured(context: Context, work: EffectsWork, label: str) -> tuple[Arrays, NDArray[np.int64], str]:
    """Return the numbers of all prompts of a label, the indices of the pairs left out, and the full route's reason.

    A pair is left out if one of its prompts kills the process that runs it, or if a number of it is not finite. Without
    pairs, the arrays are empty. The reason is empty if interventions cost one token.

    Raises:
        StoreError: a part is missing.
    """
    parts = []
    for part in work.parts(label):
        arrays = _stored(context).read_part(part)
        if arrays is None:
            raise StoreError(f"{context.run.id}: a part of effects is missing; run `theodolite run analyse` again")
        parts.append((part.stop - part.start, arrays))
    route = next((reason for _, arrays in parts if (reason := json.loads(str(arrays["facts"]))["full_route"])), "")
    known: dict[str, NDArray[Any]] = next((arrays for _, arrays in parts if "patch_kl" in arrays), {})
    if not known:
        return {"intact_log_odds": np.empty(0)}, np.arange(len(work.tokens[label]) // 2), route
    joined = {
        name: np.concatenate([arrays.get(name, np.full((count, *values.shape[1:]), np.nan)) for count, arrays in parts])
        for name, values in known.items()
        if name != "facts"
    }
    # These are NaN if the model lacks the part.
    of_parts = {f"{part}_{name}" for part in (HEAD, *SUBLAYERS) for name in (*MEASURES, "direct")}
    needed = joined.keys() - of_parts - {"route_error"}
    is_good = np.all([np.isfinite(joined[name].reshape(len(joined[name]), -1)).all(axis=1) for name in needed], axis=0)
    pairs = is_good[0::2] & is_good[1::2]
    errors = joined["route_error"][~np.isnan(joined["route_error"])]
    joined["route_error"] = np.full(len(is_good), errors.max() if len(errors) else np.nan)
    return {name: values[np.repeat(pairs, 2)] for name, values in joined.items()}, np.flatnonzero(~pairs), route
