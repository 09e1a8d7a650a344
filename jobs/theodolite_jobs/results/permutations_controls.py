"""Token counts of the prompts as a control, and what activations separate beyond controls, for `permutations`."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.permutations import BEYOND
from theodolite.store.prompts import read_tokens
from theodolite.store.runs import Run
from theodolite_jobs.passes.collect import Arrays
from theodolite_jobs.results.permuted_labels import PermutedContrast
from theodolite_jobs.statistics import permutations, separation_scores
from theodolite_jobs.statistics.permutations import held_out_ridge_scores, held_out_scores, permutation_test
from theodolite_jobs.statistics.score_differences import difference
from theodolite_jobs.statistics.separation import Estimate
from theodolite_jobs.statistics.token_counts import gram_of_token_counts

_DIGITS = 9  # of scores of token counts: equal scores, which are frequent, stay equal in spite of rounding

_STATISTICS = {
    "auroc": (separation_scores.auroc, separation_scores.auroc_terms, permutations.auroc),
    "paired_accuracy": (
        separation_scores.paired_accuracy,
        separation_scores.paired_accuracy_terms,
        permutations.paired_accuracy,
    ),
}
"""Each statistic of scores: with its interval, the terms of its error, and under each draw."""


def of_tokens(run: Run, contrast: PermutedContrast) -> tuple[Arrays, dict[str, NDArray[np.float64]]]:
    """Return the statistics of the prompts' token counts, each a number, and the scores of the better classifier.

    The scores are those with the real labels, (sample,), by the name of the statistic that compares the classifiers.
    """
    clouds = (contrast.positive, contrast.negative)
    tokens = {cloud.prompt_set: read_tokens(run, cloud.prompt_set) for cloud in clouds}
    gram = gram_of_token_counts([tokens[cloud.prompt_set][sample] for cloud in clouds for sample in cloud.samples])
    labels = contrast.labels
    plain, ridge = (
        np.round(scores(gram, labels, contrast.folds), _DIGITS) for scores in (held_out_scores, held_out_ridge_scores)
    )
    arrays: Arrays = {}
    better: dict[str, NDArray[np.float64]] = {}
    for statistic in ("auroc", "paired_accuracy") if contrast.paired else ("auroc",):
        estimate, _, drawn = _STATISTICS[statistic]
        values = []
        for prefix, scores in (("tokens_", plain), ("tokens_ridge_", ridge)):
            name, value = prefix + statistic, estimate(*_sides(scores[0][:, None], contrast), paired=contrast.paired)
            tested = permutation_test(drawn(scores, labels)[:, None])
            arrays |= {end: array[0] for end, array in _named(name, value).items()}
            arrays |= {f"{name}_{part}": getattr(tested, part)[0] for part in ("null_mean", "null_sd", "p")}
            values.append(float(value.value[0]))
        is_ridge = values[1] > values[0]
        arrays[f"tokens_{statistic}_is_ridge"] = np.asarray(np.nan if np.isnan(values).any() else float(is_ridge))
        better[statistic] = (ridge if is_ridge else plain)[0]
    if contrast.paired:
        first, second = _sides(plain[0], contrast)
        arrays["tokens_equal_pairs"] = np.asarray((first == second).mean())
    return arrays, better


def beyond(
    scored: Mapping[str, NDArray[np.float64]], words: Mapping[str, NDArray[np.float64]], contrast: PermutedContrast
) -> Arrays:
    """Return the differences between activations and controls with intervals and bands, each (site, layer).

    Args:
        scored: scores with the real labels, (sample, site, layer), by the name of their AUROC.
        words: scores of the token counts, from `of_tokens`.
        contrast: the contrast.
    """
    arrays: Arrays = {}
    for name, (of, _) in BEYOND.items():
        statistic = of.removeprefix("ridge_")
        scores = scored["ridge_auroc" if of == "ridge_auroc" else "auroc"]
        if statistic == "paired_accuracy" and not contrast.paired:
            continue
        control = scored["norm_auroc"] if name.endswith("_length") else words[statistic][:, None, None]
        estimate, terms, _ = _STATISTICS[statistic]
        sides = _sides(scores, contrast), _sides(np.broadcast_to(control, scores.shape), contrast)
        one, band = difference(estimate, terms, *sides, paired=contrast.paired)
        arrays |= _named(name, one) | {f"{name}_band_low": band.low, f"{name}_band_high": band.high}
    return arrays


def _named(name: str, estimate: Estimate) -> Arrays:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _sides(scores: NDArray[np.float64], contrast: PermutedContrast) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scores of P and of N."""
    positive, negative = np.split(scores, [len(contrast.positive.samples)])
    return positive, negative
