"""The analysis `probes`: logistic and linear discriminant probes beside the difference of means."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from theodolite.bands import simultaneous_quantile
from theodolite.groups.probes.record import BEYOND_MEANS, BEYOND_WORDS, FIT, MEASURES, PROBES, TESTED
from theodolite.groups.schema import BAND
from theodolite.sites import Site
from theodolite.spec_options import ProbesSpec
from theodolite.store.prompts import read_tokens
from theodolite.store.runs import Run
from theodolite_jobs.groups.probes.formulas import (
    chosen_ridge,
    chosen_ridges,
    held_out_lda_scores,
    held_out_logistic_scores,
    lda,
    logistic,
    mean_difference,
    shrinkage,
)
from theodolite_jobs.passes.collect import Arrays
from theodolite_jobs.results.context import Context, Result, missing_arrays
from theodolite_jobs.results.permuted_labels import PermutedContrast, permuted_contrast
from theodolite_jobs.statistics import permutations, scores
from theodolite_jobs.statistics.folds import FOLDS
from theodolite_jobs.statistics.gram_matrices import centred
from theodolite_jobs.statistics.held_out import held_out_scores
from theodolite_jobs.statistics.permutations import permutation_test
from theodolite_jobs.statistics.ratio import ratio
from theodolite_jobs.statistics.refits import Scored, refitted, stacked
from theodolite_jobs.statistics.score_differences import difference
from theodolite_jobs.statistics.token_counts import gram_of_token_counts
from theodolite_jobs.tasks import Progress, run_tasks, shared

_DIGITS = 9  # of scores of token counts: equal scores, which are frequent, stay equal in spite of rounding

_OF_DRAWS = {
    "auroc": permutations.auroc,
    "accuracy": permutations.accuracy,
    "paired_accuracy": permutations.paired_accuracy,
}
"""Each of TESTED under each draw."""


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("probes", context.contrasts, **_options(context).model_dump())


def _options(context: Context) -> ProbesSpec:
    return context.spec.probes or ProbesSpec()


def compute(context: Context) -> Result:
    """Return the group from the first stored samples of each contrast, layer by layer.

    A contrast has no values if one of the five folds lacks prompts of a set.

    Raises:
        RunDamagedError: a shard differs from its commit record, or contains a number that is not finite.
    """
    coordinates, options = context.coordinates, _options(context)
    arrays = missing_arrays("probes", coordinates)
    with context.tasks():
        for row, label in enumerate(context.contrasts):
            for column, position in enumerate(coordinates["position"]):
                contrast = permuted_contrast(context, label, position)
                if contrast is None:
                    continue
                sides = np.split(contrast.folds, [len(contrast.positive.samples)])
                arrays["n_used"][row, column] = [len(side) for side in sides]
                if all(len(np.unique(side)) == FOLDS for side in sides):
                    for name, values in _values(context.run, contrast, label, options.draws, context.progress).items():
                        arrays[name][row, :, column] = values
    return Result(arrays, coordinates, {"contrasts": context.contrasts, "options": options.model_dump()})


class _Place(NamedTuple):
    """The probes at one site and layer.

    Attributes:
        draws: each of TESTED with the real labels and in each draw, by probe, (draw, tested).
        scores: the held-out scores with the real labels, by probe.
        fit: the numbers of the probes that are fitted on all samples, (probe, fit).
        directions: the unit vectors of these, (probe, d_model).
    """

    draws: dict[str, NDArray[np.float64]]
    scores: dict[str, Scored]
    fit: NDArray[np.float64]
    directions: NDArray[np.float64]


def _values(run: Run, contrast: PermutedContrast, label: str, draws: int, progress: Progress) -> Arrays:
    """Return the arrays of a contrast at one position but its numbers of prompts, each (site, layer, …)."""
    sites, n_layers = list(run.record.spec.capture.stream_sites), len(run.record.layers)
    arguments = [(run, shared(contrast), site, layer, draws) for site in sites for layer in range(n_layers)]
    places = list(run_tasks(_place, arguments, progress, f"probes of {label}", rounds=1))
    shape = (len(sites), n_layers)
    scored = {one: stacked([place.scores[one] for place in places], shape) for one in PROBES}
    nulls = []
    for one in PROBES:
        of_draws = np.stack([place.draws[one] for place in places], axis=-1)
        tests = [permutation_test(of_draws[:, index].reshape(-1, *shape)).stacked() for index in range(len(TESTED))]
        nulls.append(np.stack(tests, axis=-2))
    return {
        "probe_performance": _performance(scored, _of_tokens(run, contrast)),
        "probe_null": np.stack(nulls, axis=-3),
        "probe_fit": np.stack([place.fit for place in places]).reshape(*shape, len(PROBES), len(FIT)),
        "probe_direction": np.stack([place.directions for place in places]).reshape(*shape, len(PROBES), -1),
    }


def _place(run: Run, contrast: PermutedContrast, site: Site, layer: int, draws: int) -> _Place:
    """Return the probes at a site and an index into the run's layers; NaN at a layer without the site."""
    d_model, n_rows = run.record.model.d_model, {"logistic": 1 + draws}
    rows = {one: contrast.labels[: n_rows.get(one)] for one in PROBES}
    if not run.record.has_site_at(site, layer):
        return _Place(
            {one: np.full((len(labels), len(TESTED)), np.nan) for one, labels in rows.items()},
            dict.fromkeys(PROBES, contrast.scored(np.full(len(contrast.folds), np.nan))),
            np.full((len(PROBES), len(FIT)), np.nan),
            np.full((len(PROBES), d_model), np.nan),
        )
    captured, folds = contrast.samples(run, site, layer), contrast.folds
    samples = centred(captured)
    gram = samples @ samples.T
    of_draws, scored = {}, {}
    for one, scorer in _scorers(gram, rows["logistic"], folds, d_model).items():
        found = scorer(gram, rows[one], folds)
        of_draws[one] = np.full((len(found), len(TESTED)), np.nan)
        for column, name in enumerate(TESTED):
            if contrast.paired or name != "paired_accuracy":
                of_draws[one][:, column] = _OF_DRAWS[name](found, rows[one])
        scored[one] = contrast.scored(found[0], refitted(scorer, gram, rows[one][0], folds, paired=contrast.paired))
    return _Place(of_draws, scored, *_fitted(captured, samples, gram, contrast))


def _scorers(
    gram: NDArray[np.float64], labels: NDArray[np.bool_], folds: NDArray[np.int64], n_features: int
) -> dict[str, Callable[..., NDArray[np.float64]]]:
    """Return what scores samples by each probe; `labels` are the rows for which the logistic one chooses ridges."""
    return {
        "mean_difference": held_out_scores,
        "lda": partial(held_out_lda_scores, n_features=n_features),
        "logistic": partial(held_out_logistic_scores, ridges=chosen_ridges(gram, labels, folds)),
    }


def _fitted(
    captured: NDArray[np.float64], samples: NDArray[np.float64], gram: NDArray[np.float64], contrast: PermutedContrast
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the numbers and the directions of the probes that are fitted on all samples.

    Args:
        captured: the samples, (sample, d_model).
        samples: the samples minus their mean.
        gram: the Gram matrix of these.
        contrast: the labels and the folds.
    """
    real, d_model = contrast.labels[:1], samples.shape[1]
    ridge = chosen_ridge(gram, real, contrast.folds)
    probes = mean_difference(gram, real), lda(gram, real, d_model), logistic(gram, real, ridge)
    vectors = np.concatenate([probe.weights for probe in probes]) @ samples
    lengths = np.linalg.norm(vectors, axis=1)
    directions = ratio(vectors, lengths[:, None])
    offsets = np.concatenate([probe.offsets for probe in probes]) + vectors @ (captured - samples)[0]
    penalties = np.array([np.nan, *shrinkage(gram, real, d_model)[0], *ridge])
    numbers = {"cosine": directions @ directions[0], "penalty": penalties, "length": lengths, "offset": offsets}
    fit = np.stack([numbers[name] for name in FIT], axis=-1)
    return np.where(np.isnan(lengths)[:, None], np.nan, fit), directions


def _of_tokens(run: Run, contrast: PermutedContrast) -> Scored:
    """Return the scores of the prompts' token counts by the probe with the largest AUROC; NaN if none has one."""
    clouds, labels, folds = (contrast.positive, contrast.negative), contrast.labels[:1], contrast.folds
    tokens = {cloud.prompt_set: read_tokens(run, cloud.prompt_set) for cloud in clouds}
    prompts = [tokens[cloud.prompt_set][sample] for cloud in clouds for sample in cloud.samples]
    gram, n_features = gram_of_token_counts(prompts), len(set(chain.from_iterable(prompts)))
    found = []
    for scorer in _scorers(gram, labels, folds, n_features).values():
        after = refitted(scorer, gram, labels[0], folds, paired=contrast.paired)
        own = np.round(scorer(gram, labels, folds), _DIGITS)
        found.append((permutations.auroc(own, labels)[0], contrast.scored(own[0], np.round(after, _DIGITS))))
    return max(found, key=lambda one: -np.inf if np.isnan(one[0]) else one[0])[1]


def _performance(scored: Mapping[str, Scored], words: Scored) -> NDArray[np.float64]:
    """Return the measures of held-out scores, each (prompt, site, layer), as (site, layer, probe, measure, estimate).

    Args:
        scored: the scores of each probe.
        words: the scores of the token counts, each (prompt,).
    """
    means = scored["mean_difference"]
    shape = means.positive.shape[1:]
    found = np.full((*shape, len(PROBES), len(MEASURES), len(BAND)), np.nan)
    for row, (name, one) in enumerate(scored.items()):
        sides = one.positive, one.negative
        for column, (estimate, terms) in enumerate(map(scores.OF_SCORES.__getitem__, TESTED)):
            value = estimate(*sides, paired=one.paired)
            quantile = simultaneous_quantile(terms(*sides, paired=one.paired))
            band = estimate(*sides, paired=one.paired, quantile=quantile)
            found[..., row, column, :] = value.with_band(band)
        controls = {BEYOND_WORDS: words.along(shape), BEYOND_MEANS: means}
        for measure, control in controls.items():
            if not (name == "mean_difference" and measure == BEYOND_MEANS):
                value, band = difference(scores.auroc, scores.auroc_terms, one, control)
                found[..., row, MEASURES.index(measure), :] = value.with_band(band)
    return found
