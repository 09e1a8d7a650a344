"""The result group `effects`: what interventions on the last token change in the distribution of the next token."""

import json
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from theodolite.errors import StoreError, UnsupportedModelError
from theodolite.groups.effects import CONTROLS, INTERVENTIONS, MEASURES, PARTS, PROMPT_EFFECTS, SIDES
from theodolite.spec_parts import EffectsSpec
from theodolite.store.tables import encode_table
from theodolite_jobs.effects.work import Arrays, EffectsWork, read_part, write_vectors
from theodolite_jobs.prompts.next_tokens import next_token_groups
from theodolite_jobs.results.context import Context, Result, missing_arrays
from theodolite_jobs.results.effects_inputs import check_range, places_of, question_of, sides_of, tokens_of, vectors_of
from theodolite_jobs.results.effects_means import means_of, score_changes
from theodolite_jobs.results.effects_table import empty_table, table_of
from theodolite_jobs.results.permuted_labels import PermutedContrast, permuted_contrast


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("effects", context.contrasts, options=_options(context).model_dump(mode="json"))


def _options(context: Context) -> EffectsSpec:
    return context.spec.effects or EffectsSpec()


def compute(context: Context) -> Result:
    """Return the group from interventions on the first stored prompts of each contrast.

    Raises:
        SpecError: the options do not fit the captured sites and layers, the vocabulary, or the range of float16.
        UnsupportedModelError: the model is an encoder, which predicts no next token.
        RunDamagedError: a shard differs from its commit record, or contains a number that is not finite.
        CaptureError: replicas cannot start, or all of them failed.
    """
    options, weights = _options(context), context.weights
    if not weights.anatomy.causal:
        raise UnsupportedModelError(f"{weights.config.model_type!r} is an encoder, and effects need a next token")
    tokenizer = context.open_tokenizer(weights)
    groups = next_token_groups(tokenizer, options.tokens)
    sites, layers = places_of(context.run, options)
    contrasts = _contrasts(context)
    tokens, questions, variances, scored = {}, {}, {}, {}
    with context.tasks():
        for label, contrast in contrasts.items():
            tokens[label] = tokens_of(context.run, contrast, _parsed(label)[1], options.prompts)
            questions[label] = question_of(options, contrast, sites, layers, list(groups.values()))
            vectors, variances[label] = vectors_of(context, contrast, sites, layers, options.controls)
            check_range(context.run, questions[label], vectors)
            scored[label] = [context.run.record.layers.index(layer) for layer in vectors.score_layers]
            write_vectors(context.run.location, context.stale["effects"], label, vectors)
    work = EffectsWork(context.stale["effects"], tokens, questions)
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
    excluded: dict[str, NDArray[np.int64]] = {}
    routes: dict[str, str] = {}
    for label, contrast in contrasts.items():
        name, position = _parsed(label)
        at = list(context.contrasts).index(name), coordinates["position"].index(position)
        measured, excluded[label], route = _measured(context, work, label)
        routes |= {label: route} if route else {}
        if not len(measured["intact_log_odds"]):
            continue
        shape = len(sites), len(layers)
        for variable, values in means_of(measured, shape).items():
            arrays[variable][at] = values
        for variable, values in score_changes(measured, shape).items():
            arrays[variable][at][..., scored[label]] = values
        arrays["matched_variance"][at] = variances[label].reshape(len(sites), len(layers))
        samples = np.delete(np.transpose(sides_of(contrast, options.prompts)), excluded[label], axis=0).ravel()
        sets = contrast.positive.prompt_set, contrast.negative.prompt_set
        frames.append(table_of(measured, questions[label], samples, sets).assign(contrast=name, position=position))
    attributes = {
        "contrasts": context.contrasts,
        "options": options.model_dump(mode="json"),
        "tokens": {name: [tokenizer.decode([token]) for token in ids] for name, ids in groups.items()},
        "patch": {label: "pair" if question.is_paired else "mean" for label, question in questions.items()},
        "full_route": routes,
        "excluded_pairs": {label: [int(pair) for pair in pairs] for label, pairs in excluded.items() if len(pairs)},
    }
    table = pd.concat(frames, ignore_index=True)[list(frames[0].columns)]
    return Result(arrays, coordinates, attributes, tables={PROMPT_EFFECTS: encode_table(table)})


def _contrasts(context: Context) -> dict[str, PermutedContrast]:
    """Return the contrasts at each of their positions, by label."""
    places = product(context.contrasts, context.coordinates["position"])
    found = {f"{name}@{position}": permuted_contrast(context, name, position) for name, position in places}
    return {label: contrast for label, contrast in found.items() if contrast is not None}


def _parsed(label: str) -> tuple[str, int]:
    """Return the contrast and the position of a label."""
    name, _, position = label.rpartition("@")
    return name, int(position)


def _measured(context: Context, work: EffectsWork, label: str) -> tuple[Arrays, NDArray[np.int64], str]:
    """Return the numbers of all prompts of a label, the indices of the pairs left out, and the full route's reason.

    A pair is left out if one of its prompts kills the process that runs it, or if a number of it is not finite. Without
    pairs, the arrays are empty. The reason is empty if interventions cost one token.

    Raises:
        StoreError: a part is missing.
    """
    parts = []
    for part in work.parts(label):
        arrays = read_part(context.run.location, work.digest, part)
        if arrays is None:
            raise StoreError(f"{context.run.id}: a part of effects is missing; run `theodolite analyse` again")
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
    of_parts = {f"{part}_{name}" for part in PARTS for name in (*MEASURES, "direct")}  # NaN if the model lacks the part
    needed = joined.keys() - of_parts - {"route_error"}
    is_good = np.all([np.isfinite(joined[name].reshape(len(joined[name]), -1)).all(axis=1) for name in needed], axis=0)
    pairs = is_good[0::2] & is_good[1::2]
    errors = joined["route_error"][~np.isnan(joined["route_error"])]
    joined["route_error"] = np.full(len(is_good), errors.max() if len(errors) else np.nan)
    return {name: values[np.repeat(pairs, 2)] for name, values in joined.items()}, np.flatnonzero(~pairs), route
