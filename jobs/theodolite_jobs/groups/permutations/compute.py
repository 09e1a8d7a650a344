"""The analysis `permutations`: statistics of a contrast against those with permuted labels."""

from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from theodolite.bands import simultaneous_quantile
from theodolite.groups import GROUPS
from theodolite.groups.permutations.record import HELD_OUT, SCORED_BY, TESTED
from theodolite.groups.schema import NULL_AND_LIMIT
from theodolite.sites import Site
from theodolite.store.runs import Run
from theodolite_jobs.groups.permutations.controls import SCORES, STATISTICS, beyond, of_tokens
from theodolite_jobs.passes.collect import Arrays
from theodolite_jobs.results.context import Context, Result, missing_arrays
from theodolite_jobs.results.locations import locations
from theodolite_jobs.results.permuted_labels import PermutedContrast, permuted_contrast
from theodolite_jobs.statistics import scores as separation_scores
from theodolite_jobs.statistics.gram_matrices import centred
from theodolite_jobs.statistics.held_out import (
    difference_norms,
    difference_weights,
    held_out_ridge_scores,
    held_out_scores,
)
from theodolite_jobs.statistics.moments import on_sphere
from theodolite_jobs.statistics.permutations import (
    accuracy,
    auroc,
    cosines_between_layers,
    cosines_of_independent_draws,
    paired_accuracy,
    permutation_test,
    silhouettes,
)
from theodolite_jobs.statistics.refits import Scored, refitted, stacked
from theodolite_jobs.tasks import Progress, run_tasks, shared


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("permutations", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from the first stored samples of each contrast, layer by layer.

    Raises:
        RunDamagedError: a shard differs from its commit record, or contains a number that is not finite.
    """
    coordinates = context.coordinates
    arrays = missing_arrays("permutations", coordinates)
    known: dict[int, dict[int, PermutedContrast]] = {}  # by position and contrast
    with context.tasks():
        for row, label in enumerate(context.contrasts):
            for column, position in enumerate(coordinates["position"]):
                contrast = permuted_contrast(context, label, position)
                if contrast is None:
                    continue
                known.setdefault(column, {})[row] = contrast
                for name, values in _tests(context.run, contrast, label, context.progress).items():
                    at = (row, slice(None), column) if "site" in _DIMS[name] else (row, column)
                    arrays[name][at] = values
        for column, contrasts in known.items():
            _between_contrasts(context, contrasts, arrays["contrast_cosine_null"][:, :, :, column])
    return Result(arrays, coordinates, {"contrasts": context.contrasts})


def _between_contrasts(context: Context, contrasts: Mapping[int, PermutedContrast], null: NDArray[np.float64]) -> None:
    """Write what permuted labels give for the cosines between the directions of contrasts without a common set.

    Args:
        context: the computation.
        contrasts: contrasts at one position, by index.
        null: the array at this position, (contrast, contrast_other, site, layer, null).
    """
    sets = {row: {side.prompt_set for side in (one.positive, one.negative)} for row, one in contrasts.items()}
    pairs = [pair for pair in combinations(contrasts, 2) if sets[pair[0]].isdisjoint(sets[pair[1]])]
    if not pairs:
        return
    run, given = context.run, {row: shared(contrasts[row]) for row in dict.fromkeys(chain.from_iterable(pairs))}
    sites = run.record.spec.capture.stream_sites
    places = [
        (index, layer)
        for index, site in enumerate(sites)
        for layer in range(len(run.record.layers))
        if run.record.has_site_at(site, layer)
    ]
    # A task gets the contrasts as arguments of their own, since on a cluster they are futures.
    arguments = [(run, sites[index], layer, [*given], pairs, *given.values()) for index, layer in places]
    found = run_tasks(_cosines_of_pairs, arguments, context.progress, "permutations of pairs of contrasts", rounds=1)
    for (index, layer), of_pairs in zip(places, found, strict=True):
        for (one, other), values in zip(pairs, of_pairs, strict=True):
            null[one, other, index, layer, : len(values)] = null[other, one, index, layer, : len(values)] = values


def _cosines_of_pairs(
    run: Run,
    site: Site,
    layer: int,
    rows: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    *contrasts: PermutedContrast,
) -> list[tuple[float, float, float]]:
    """Return mean, sd and z of the cosine between two contrasts' directions, for each pair of rows."""
    differences = {row: contrast.differences(run, site, layer) for row, contrast in zip(rows, contrasts, strict=True)}
    return [cosines_of_independent_draws(differences[one], differences[other]) for one, other in pairs]


_DIMS = {variable.name: variable.dims for variable in GROUPS["permutations"].variables}


def _tests(run: Run, contrast: PermutedContrast, label: str, progress: Progress) -> Arrays:
    """Return the variables of a contrast at one position: (site, layer, …) or a number."""
    sites, n_layers = list(run.record.spec.capture.stream_sites), len(run.record.layers)
    arguments = [(run, shared(contrast), site, layer) for site in sites for layer in range(n_layers)]
    places = run_tasks(_place, arguments, progress, f"permutations of {label}", rounds=1)
    statistics: list[NDArray[np.float64]] = []
    scores: list[dict[str, Scored]] = []
    cosines = []
    for _ in sites:
        differences = np.empty((len(contrast.labels) - 1, n_layers, run.record.model.d_model), dtype=np.float32)
        for layer in range(n_layers):
            place = next(places)
            statistics.append(place.draws)
            scores.append(place.scores)
            differences[:, layer] = place.differences
        mean, sd = cosines_between_layers(differences)
        cosines.append(np.stack([mean, sd, *[np.full_like(mean, np.nan)] * (len(NULL_AND_LIMIT) - 2)], axis=-1))
    # (draw, statistic, site, layer)
    draws = np.stack(statistics, axis=-1).reshape(-1, len(TESTED), len(sites), n_layers)
    arrays, words = of_tokens(run, contrast)
    arrays |= {
        "n_used": np.array([len(side.samples) for side in (contrast.positive, contrast.negative)]),
        "direction_cosine_null": np.stack(cosines),
    }
    shape = (len(sites), n_layers)
    scored = {name: stacked([place[name] for place in scores], shape) for name in scores[0]}
    arrays["score_auroc"] = np.stack([_area(scored[f"{one}_auroc"]) for one in SCORED_BY], axis=-2)
    arrays["location"] = _locations([str(site) for site in sites], scored)
    arrays["auroc_fit_error"] = scored["auroc"].fit_error(separation_scores.auroc_terms)
    arrays["beyond"] = beyond(scored, words)
    nulls = [permutation_test(draws[:, index]).stacked() for index in range(len(TESTED))]
    arrays["tested_null"] = np.stack(nulls, axis=-2)
    return arrays


class _Place(NamedTuple):
    """The statistics at one site and layer.

    Attributes:
        draws: with the real labels and in each draw, (draw, statistic).
        scores: scores of the samples with the real labels, by the name of their statistic.
        differences: differences of the means in each draw, (draw, d_model).
    """

    draws: NDArray[np.float64]
    scores: dict[str, Scored]
    differences: NDArray[np.float32]


def _place(run: Run, contrast: PermutedContrast, site: Site, layer: int) -> _Place:
    """Return the statistics at a site and an index into the run's layers; NaN at a layer without the site."""
    labels = contrast.labels
    aurocs = (f"{one}_auroc" for one in SCORED_BY)
    scored = [name for name in (*HELD_OUT, *aurocs) if contrast.paired or name != "paired_accuracy"]
    if not run.record.has_site_at(site, layer):
        return _Place(
            np.full((len(labels), len(TESTED)), np.nan),
            dict.fromkeys(scored, contrast.scored(np.full(labels.shape[1], np.nan))),
            np.full((len(labels) - 1, run.record.model.d_model), np.nan, dtype=np.float32),
        )
    captured = contrast.samples(run, site, layer)
    samples, sphere = centred(captured), centred(on_sphere(captured))
    gram = samples @ samples.T
    scores = held_out_scores(gram, labels, contrast.folds)
    by_ridge = held_out_ridge_scores(gram, labels, contrast.folds)
    on_the_sphere = held_out_scores(sphere @ sphere.T, labels, contrast.folds)
    norms = np.linalg.norm(captured, axis=1)
    of_norms = auroc(np.tile(norms, (len(labels), 1)), labels)
    statistics = {
        "auroc": auroc(scores, labels),
        "ridge_auroc": auroc(by_ridge, labels),
        "accuracy": accuracy(scores, labels),
        "paired_accuracy": paired_accuracy(scores, labels) if contrast.paired else np.full(len(labels), np.nan),
        "difference_norm": difference_norms(gram, labels),
        "silhouette": silhouettes(gram, labels),
        "on_sphere_auroc": auroc(on_the_sphere, labels),
        "norm_auroc": np.maximum(of_norms, 1 - of_norms),  # the larger norms may belong to either set
    }
    refits = (refitted(one, gram, labels[0], contrast.folds, paired=contrast.paired) for one in SCORES)
    means, ridge = zip((scores[0], by_ridge[0]), refits, strict=True)
    real = {
        "auroc": contrast.scored(*means),
        "ridge_auroc": contrast.scored(*ridge),
        "on_sphere_auroc": contrast.scored(on_the_sphere[0]),
        "norm_auroc": contrast.scored(norms if of_norms[0] >= 0.5 else -norms),
    }
    if contrast.paired:
        real["paired_accuracy"] = contrast.scored(*means, paired_accuracy)
    return _Place(
        np.stack([statistics[name] for name in TESTED], axis=1),
        real,
        (difference_weights(labels[1:]) @ samples).astype(np.float32),
    )


def _area(scores: Scored) -> NDArray[np.float64]:
    """Return the AUROC of scores, (sample, site, layer), with its interval and its band, (site, layer, estimate)."""
    sides, paired = (scores.positive, scores.negative), scores.paired
    value = separation_scores.auroc(*sides, paired=paired)
    quantile = simultaneous_quantile(separation_scores.auroc_terms(*sides, paired=paired))
    band = separation_scores.auroc(*sides, paired=paired, quantile=quantile)
    return value.with_band(band)


def _locations(sites: list[str], scored: Mapping[str, Scored]) -> NDArray[np.float64]:
    """Return where each statistic of held-out prompts may be largest, (site, layer, held_out), from its scores."""
    found = np.full((*scored["auroc"].positive.shape[1:], len(HELD_OUT)), np.nan)
    for index, name in enumerate(HELD_OUT):
        if name in scored:
            scores = scored[name]
            sides = scores.positive, scores.negative
            estimate, terms, _ = STATISTICS[name.removeprefix("ridge_")]
            value = estimate(*sides, paired=scores.paired).value
            located = locations(sites, value[:, None], scores.terms(terms)[:, :, None], min(map(len, sides)) - 1)
            found[..., index] = located[:, 0]
    return found
