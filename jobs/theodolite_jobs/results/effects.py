"""The result group `effects`: what interventions on the last token change in the distribution of the next token."""

import json
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from theodolite.errors import StoreError, UnsupportedModelError
from theodolite.groups.effects import (
    ADD,
    CONTROLS,
    CONTROLS_OF,
    HEAD,
    INTERVENTIONS,
    MATCHED,
    MEASURES,
    PARTS,
    PERMUTED,
    PROMPT_EFFECTS,
    SIDES,
)
from theodolite.spec_parts import EffectsSpec
from theodolite.store.tables import encode_table
from theodolite_jobs.effects.work import Arrays, EffectsWork, Question, read_part, write_vectors
from theodolite_jobs.prompts.next_tokens import next_token_groups
from theodolite_jobs.results.context import Context, Result, missing_arrays
from theodolite_jobs.results.effects_inputs import check_range, places_of, question_of, sides_of, tokens_of, vectors_of
from theodolite_jobs.results.permuted_labels import PermutedContrast, permuted_contrast
from theodolite_jobs.statistics.effects_means import Estimate, against_controls, mean_over_prompts, share_of_means


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
    arrays, frames = missing_arrays("effects", coordinates), [_empty_table()]
    excluded: dict[str, NDArray[np.int64]] = {}
    routes: dict[str, str] = {}
    for label, contrast in contrasts.items():
        name, position = _parsed(label)
        at = list(context.contrasts).index(name), coordinates["position"].index(position)
        measured, excluded[label], route = _measured(context, work, label)
        routes |= {label: route} if route else {}
        if not len(measured["intact_log_odds"]):
            continue
        for variable, values in _statistics(measured, (len(sites), len(layers))).items():
            arrays[variable][at] = values
        arrays["score_change"][at][..., scored[label]] = _score_changes(measured, (len(sites), len(layers)))
        arrays["matched_variance"][at] = variances[label].reshape(len(sites), len(layers))
        samples = np.delete(np.transpose(sides_of(contrast, options.prompts)), excluded[label], axis=0).ravel()
        sets = contrast.positive.prompt_set, contrast.negative.prompt_set
        frames.append(_table(measured, questions[label], samples, sets).assign(contrast=name, position=position))
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


def _statistics(measured: Arrays, shape: tuple[int, int]) -> dict[str, NDArray[np.float64]]:
    """Return the variables of a contrast at a position, (side, …); `shape` is that of (site, layer)."""
    sides = [_of_side(measured, which, shape) for which in range(len(SIDES))]
    found = {name: np.stack([side[name] for side in sides]) for name in sides[0]}
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


_TESTED = ("control", "z", "p", "p_family")


def _of_parts(own: Arrays) -> dict[str, NDArray[np.float64]]:
    """Return the variables of patched heads, attention and MLPs, (layer, …)."""
    found: dict[str, NDArray[np.float64]] = {}
    for part in PARTS:
        for name in MEASURES:
            found |= _named(f"{part}_{name}", mean_over_prompts(own[f"{part}_{name}"]))
        found[f"{part}_direct"] = own[f"{part}_direct"].mean(axis=0)
    direct, patched = found[f"{HEAD}_direct"].ravel(), found[f"{HEAD}_log_odds"].ravel()
    if np.isfinite(direct + patched).all() and direct.std() and patched.std():
        found["direct_correlation"] = np.corrcoef(direct, patched)[0, 1]
    return found


def _score_changes(measured: Arrays, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Return the mean changes of the scores, (side, site, layer, intervention, layer that is scored)."""
    sides = []
    for which in range(len(SIDES)):
        means = [measured[f"{name}_score"][which::2].mean(axis=0) for name in INTERVENTIONS]
        sides.append(np.stack([mean.reshape(*shape, -1) for mean in means], axis=2))
    return np.stack(sides)


def _named(name: str, estimate: Estimate) -> dict[str, NDArray[np.float64]]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _reshaped(estimate: Estimate, shape: tuple[int, int]) -> Estimate:
    return Estimate(*(values.reshape(*shape, *values.shape[1:]) for values in estimate))


def _table(measured: Arrays, question: Question, samples: NDArray[np.int64], sets: Sequence[str]) -> pd.DataFrame:
    """Return the table of one contrast at one position: a row for each prompt, place, and intervention or dose."""
    columns = {name: measured[f"{name}_kl"] for name in INTERVENTIONS if name != ADD}
    kl = np.concatenate([np.stack(list(columns.values()), axis=-1), measured["dose_kl"]], axis=-1)
    moved = np.stack([measured[f"{name}_log_odds"] for name in columns], axis=-1)
    odds = np.concatenate([moved, measured["dose_log_odds"]], axis=-1)
    names = [*columns, *[ADD] * len(question.doses)]
    doses = [*[np.nan] * len(columns), *question.doses]
    prompt, place, which = (index.ravel() for index in np.indices(kl.shape))
    return pd.DataFrame(
        {
            "set": np.array(sets, dtype=object)[prompt % 2],
            "sample": samples[prompt],
            "site": np.array([str(site) for site, _ in question.places], dtype=object)[place],
            "layer": np.array([layer for _, layer in question.places])[place],
            "intervention": np.array(names, dtype=object)[which],
            "dose": np.array(doses)[which],
            "kl": kl.ravel(),
            "log_odds": odds.ravel(),
        }
    )


def _empty_table() -> pd.DataFrame:
    """Return the table without rows, which fixes the order of its columns."""
    texts = {name: pd.Series(dtype=object) for name in ("contrast", "set", "site", "intervention")}
    counts = {name: pd.Series(dtype="int64") for name in ("position", "sample", "layer")}
    numbers = {name: pd.Series(dtype="float64") for name in ("dose", "kl", "log_odds")}
    order = ("contrast", "position", "set", "sample", "site", "layer", "intervention", "dose", "kl", "log_odds")
    columns = {**texts, **counts, **numbers}
    return pd.DataFrame({name: columns[name] for name in order})
