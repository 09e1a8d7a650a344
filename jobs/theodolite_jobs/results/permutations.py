"""The result group `permutations`: statistics of a contrast against those with permuted labels."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from theodolite.groups import GROUPS
from theodolite.groups.permutations import CONTROLS, TESTED
from theodolite.sites import Site
from theodolite.store.prompts import read_tokens
from theodolite.store.runs import Run
from theodolite_jobs.passes.collect import Arrays
from theodolite_jobs.results.context import Context, Result, missing_arrays
from theodolite_jobs.results.permuted_labels import PermutedContrast, permuted_contrast
from theodolite_jobs.statistics import separation_scores
from theodolite_jobs.statistics.bands import simultaneous_quantile
from theodolite_jobs.statistics.gram import centred
from theodolite_jobs.statistics.moments import on_sphere
from theodolite_jobs.statistics.permutations import (
    accuracy,
    auroc,
    cosines_between_layers,
    difference_norms,
    difference_weights,
    held_out_scores,
    paired_accuracy,
    permutation_test,
    silhouettes,
)
from theodolite_jobs.statistics.token_counts import gram_of_token_counts
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
    with context.tasks():
        for row, label in enumerate(context.contrasts):
            for column, position in enumerate(coordinates["position"]):
                contrast = permuted_contrast(context, label, position)
                if contrast is None:
                    continue
                for name, values in _tests(context.run, contrast, label, context.progress).items():
                    at = (row, slice(None), column) if "site" in _DIMS[name] else (row, column)
                    arrays[name][at] = values
    return Result(arrays, coordinates, {"contrasts": context.contrasts})


_DIGITS = 9  # of scores of token counts: equal scores, which are frequent, stay equal in spite of rounding

_DIMS = {variable.name: variable.dims for variable in GROUPS["permutations"].variables}


def _tests(run: Run, contrast: PermutedContrast, label: str, progress: Progress) -> Arrays:
    """Return the variables of a contrast at one position: (site, layer, …) or a number."""
    sites, n_layers = list(run.record.spec.capture.stream_sites), len(run.record.layers)
    arguments = [(run, shared(contrast), site, layer) for site in sites for layer in range(n_layers)]
    places = run_tasks(_place, arguments, progress, f"permutations of {label}", rounds=1)
    statistics: list[NDArray[np.float64]] = []
    controls: list[NDArray[np.float64]] = []
    cosines = []
    for _ in sites:
        differences = np.empty((len(contrast.labels) - 1, n_layers, run.record.model.d_model), dtype=np.float32)
        for layer in range(n_layers):
            place = next(places)
            statistics.append(place.draws)
            controls.append(place.controls)
            differences[:, layer] = place.differences
        cosines.append(cosines_between_layers(differences))
    # (draw, statistic, site, layer)
    draws = np.stack(statistics, axis=-1).reshape(-1, len(TESTED), len(sites), n_layers)
    arrays: Arrays = _of_tokens(run, contrast) | {
        "n_positive": np.array(len(contrast.positive.samples)),
        "n_negative": np.array(len(contrast.negative.samples)),
        "direction_cosine_null_mean": np.stack([mean for mean, _ in cosines]),
        "direction_cosine_null_sd": np.stack([sd for _, sd in cosines]),
    }
    scores = np.stack(controls, axis=-1).reshape(len(CONTROLS), -1, len(sites), n_layers)
    for name, of_samples in zip(CONTROLS, scores, strict=True):
        arrays |= _areas(name, of_samples, contrast)
    for index, name in enumerate(TESTED):
        tested = permutation_test(draws[:, index])
        arrays |= {f"{name}_{part}": values for part, values in tested._asdict().items()}
    return arrays


class _Place(NamedTuple):
    """The statistics at one site and layer.

    Attributes:
        draws: with the real labels and in each draw, (draw, statistic).
        controls: scores of the samples with the real labels, (control, sample).
        differences: differences of the means in each draw, (draw, d_model).
    """

    draws: NDArray[np.float64]
    controls: NDArray[np.float64]
    differences: NDArray[np.float32]


def _place(run: Run, contrast: PermutedContrast, site: Site, layer: int) -> _Place:
    """Return the statistics at a site and an index into the run's layers; NaN at a layer without the site."""
    labels = contrast.labels
    if not run.record.has_site_at(site, layer):
        return _Place(
            np.full((len(labels), len(TESTED)), np.nan),
            np.full((len(CONTROLS), labels.shape[1]), np.nan),
            np.full((len(labels) - 1, run.record.model.d_model), np.nan, dtype=np.float32),
        )
    captured = contrast.samples(run, site, layer)
    samples, sphere = centred(captured), centred(on_sphere(captured))
    gram = samples @ samples.T
    scores = held_out_scores(gram, labels, contrast.folds)
    on_the_sphere = held_out_scores(sphere @ sphere.T, labels, contrast.folds)
    norms = np.linalg.norm(captured, axis=1)
    of_norms = auroc(np.tile(norms, (len(labels), 1)), labels)
    statistics = {
        "auroc": auroc(scores, labels),
        "accuracy": accuracy(scores, labels),
        "paired_accuracy": paired_accuracy(scores, labels) if contrast.paired else np.full(len(labels), np.nan),
        "difference_norm": difference_norms(gram, labels),
        "silhouette": silhouettes(gram, labels),
        "on_sphere_auroc": auroc(on_the_sphere, labels),
        "norm_auroc": np.maximum(of_norms, 1 - of_norms),  # the larger norms may belong to either set
    }
    controls = {"on_sphere_auroc": on_the_sphere[0], "norm_auroc": norms if of_norms[0] >= 0.5 else -norms}
    return _Place(
        np.stack([statistics[name] for name in TESTED], axis=1),
        np.stack([controls[name] for name in CONTROLS]),
        (difference_weights(labels[1:]) @ samples).astype(np.float32),
    )


def _of_tokens(run: Run, contrast: PermutedContrast) -> Arrays:
    """Return the statistics of the prompts' token counts, each a number."""
    clouds = (contrast.positive, contrast.negative)
    tokens = {cloud.prompt_set: read_tokens(run, cloud.prompt_set) for cloud in clouds}
    gram = gram_of_token_counts([tokens[cloud.prompt_set][sample] for cloud in clouds for sample in cloud.samples])
    scores = np.round(held_out_scores(gram, contrast.labels, contrast.folds), _DIGITS)
    sides = np.split(scores[0][:, None], [len(contrast.positive.samples)])
    draws = {"tokens_auroc": auroc(scores, contrast.labels)}
    values = {"tokens_auroc": separation_scores.auroc(*sides, paired=contrast.paired)}
    if contrast.paired:
        draws["tokens_paired_accuracy"] = paired_accuracy(scores, contrast.labels)
        values["tokens_paired_accuracy"] = separation_scores.paired_accuracy(*sides, paired=True)
    arrays: Arrays = {}
    if contrast.paired:
        arrays["tokens_equal_pairs"] = np.asarray((sides[0] == sides[1]).mean())
    for name, value in values.items():
        tested = permutation_test(draws[name][:, None])
        arrays |= {
            f"{name}{end}": one[0] for end, one in (("", value.value), ("_low", value.low), ("_high", value.high))
        }
        arrays |= {f"{name}_{part}": getattr(tested, part)[0] for part in ("null_mean", "null_sd", "p")}
    return arrays


def _areas(name: str, scores: NDArray[np.float64], contrast: PermutedContrast) -> Arrays:
    """Return the AUROC of scores, (sample, site, layer), with its interval and its band, each (site, layer)."""
    sides, paired = np.split(scores, [len(contrast.positive.samples)]), contrast.paired
    value = separation_scores.auroc(*sides, paired=paired)
    quantile = simultaneous_quantile(separation_scores.auroc_terms(*sides, paired=paired))
    band = separation_scores.auroc(*sides, paired=paired, quantile=quantile)
    ends = {"": value.value, "_low": value.low, "_high": value.high, "_band_low": band.low, "_band_high": band.high}
    return {f"{name}{end}": values for end, values in ends.items()}
