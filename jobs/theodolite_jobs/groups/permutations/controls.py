"""Token counts of the prompts as a control, and what activations separate beyond controls, for `permutations`."""

from collections.abc import Mapping

import numpy as np

from theodolite.groups.permutations.record import BEYOND_LENGTH, BEYOND_WORDS
from theodolite.store.prompts import read_tokens
from theodolite.store.runs import Run
from theodolite_jobs.passes.collect import Arrays
from theodolite_jobs.results.permuted_labels import PermutedContrast
from theodolite_jobs.statistics import permutations
from theodolite_jobs.statistics import scores as separation_scores
from theodolite_jobs.statistics.held_out import held_out_ridge_scores, held_out_scores
from theodolite_jobs.statistics.permutations import permutation_test
from theodolite_jobs.statistics.refits import Scored, refitted
from theodolite_jobs.statistics.score_differences import difference
from theodolite_jobs.statistics.token_counts import gram_of_token_counts

_DIGITS = 9  # of scores of token counts: equal scores, which are frequent, stay equal in spite of rounding

STATISTICS = {
    "auroc": (separation_scores.auroc, separation_scores.auroc_terms, permutations.auroc),
    "paired_accuracy": (
        separation_scores.paired_accuracy,
        separation_scores.paired_accuracy_terms,
        permutations.paired_accuracy,
    ),
}
"""Each statistic of scores: with its interval, the terms of its error, and under each draw."""

CLASSIFIERS = (held_out_scores, held_out_ridge_scores)


def of_tokens(run: Run, contrast: PermutedContrast) -> tuple[Arrays, dict[str, Scored]]:
    """Return the statistics of the prompts' token counts, each a number, and the scores of the better classifier.

    The scores are those with the real labels, (sample,), by the name of the statistic that compares the classifiers.
    """
    clouds = (contrast.positive, contrast.negative)
    tokens = {cloud.prompt_set: read_tokens(run, cloud.prompt_set) for cloud in clouds}
    gram = gram_of_token_counts([tokens[cloud.prompt_set][sample] for cloud in clouds for sample in cloud.samples])
    drawn = [np.round(scores(gram, contrast.labels, contrast.folds), _DIGITS) for scores in CLASSIFIERS]
    real = (gram, contrast.labels[0], contrast.folds)
    after = [np.round(refitted(scores, *real, paired=contrast.paired), _DIGITS) for scores in CLASSIFIERS]
    arrays: Arrays = {}
    better: dict[str, Scored] = {}
    for statistic in ("auroc", "paired_accuracy") if contrast.paired else ("auroc",):
        estimate, _, of_draws = STATISTICS[statistic]
        values = []
        for prefix, scores in zip(("tokens_", "tokens_ridge_"), drawn, strict=True):
            name, value = prefix + statistic, estimate(*contrast.sides(scores[0][:, None]), paired=contrast.paired)
            tested = permutation_test(of_draws(scores, contrast.labels)[:, None])
            arrays[name] = value.with_band()[0]
            arrays[f"{name}_null"] = tested.stacked()[0]
            values.append(float(value.value[0]))
        is_ridge = values[1] > values[0]
        arrays[f"tokens_{statistic}_is_ridge"] = np.asarray(np.nan if np.isnan(values).any() else float(is_ridge))
        best = int(is_ridge)
        better[statistic] = contrast.scored(drawn[best][0], after[best], of_draws)
    if contrast.paired:
        first, second = contrast.sides(drawn[0][0])
        arrays["tokens_equal_pairs"] = np.asarray((first == second).mean())
    return arrays, better


def beyond(scored: Mapping[str, Scored], words: Mapping[str, Scored]) -> Arrays:
    """Return the differences between activations and controls with intervals and bands, each (site, layer, estimate).

    Args:
        scored: scores with the real labels, (sample, site, layer), by the name of their statistic.
        words: scores of the token counts, from `of_tokens`.
    """
    arrays: Arrays = {}
    for name, of in {**BEYOND_WORDS, **BEYOND_LENGTH}.items():
        if of not in scored:
            continue
        own, statistic = scored[of], of.removeprefix("ridge_")
        control = scored["norm_auroc"] if name in BEYOND_LENGTH else words[statistic].along(own.positive.shape[1:])
        estimate, terms, _ = STATISTICS[statistic]
        one, band = difference(estimate, terms, own, control)
        arrays[name] = one.with_band(band)
    return arrays
