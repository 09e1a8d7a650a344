"""Token counts of the prompts as a control, and what activations separate beyond controls, for `permutations`."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.permutations.record import CLASSIFIERS, CONTROLS, HELD_OUT, MEASURES
from theodolite.groups.schema import BAND, NULL_AND_LIMIT
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

SCORES = (held_out_scores, held_out_ridge_scores)
"""The held-out scores of each of CLASSIFIERS."""


def of_tokens(run: Run, contrast: PermutedContrast) -> tuple[Arrays, dict[str, Scored]]:
    """Return the statistics of the prompts' token counts, and the scores of the better classifier.

    The scores are those with the real labels, (sample,), by the name of the statistic that compares the classifiers.
    """
    clouds = (contrast.positive, contrast.negative)
    tokens = {cloud.prompt_set: read_tokens(run, cloud.prompt_set) for cloud in clouds}
    gram = gram_of_token_counts([tokens[cloud.prompt_set][sample] for cloud in clouds for sample in cloud.samples])
    drawn = [np.round(scores(gram, contrast.labels, contrast.folds), _DIGITS) for scores in SCORES]
    for scores in drawn:  # texts from a template: a draw can give two equal means, and then nothing orders the fold
        scores[1:][np.isnan(scores[1:])] = 0
    real = (gram, contrast.labels[0], contrast.folds)
    after = [np.round(refitted(scores, *real, paired=contrast.paired), _DIGITS) for scores in SCORES]
    cells = (len(MEASURES), len(CLASSIFIERS))
    arrays: Arrays = {
        "tokens": np.full((*cells, len(BAND)), np.nan),
        "tokens_null": np.full((*cells, len(NULL_AND_LIMIT)), np.nan),
        "tokens_is_ridge": np.full(len(MEASURES), np.nan),
    }
    better: dict[str, Scored] = {}
    for row, measure in enumerate(MEASURES if contrast.paired else MEASURES[:1]):
        estimate, _, of_draws = STATISTICS[measure]
        for column, scores in enumerate(drawn):
            value = estimate(*contrast.sides(scores[0][:, None]), paired=contrast.paired)
            tested = permutation_test(of_draws(scores, contrast.labels)[:, None])
            arrays["tokens"][row, column] = value.with_band()[0]
            arrays["tokens_null"][row, column] = tested.stacked()[0]
        means, ridge = arrays["tokens"][row, :, 0]
        is_ridge = bool(ridge > means)
        arrays["tokens_is_ridge"][row] = np.nan if np.isnan(means + ridge) else is_ridge
        better[measure] = contrast.scored(drawn[is_ridge][0], after[is_ridge], of_draws)
    if contrast.paired:
        first, second = contrast.sides(drawn[0][0])
        arrays["tokens_equal_pairs"] = np.asarray((first == second).mean())
    return arrays, better


def beyond(scored: Mapping[str, Scored], words: Mapping[str, Scored]) -> NDArray[np.float64]:
    """Return the differences between activations and controls, (site, layer, held_out, control, estimate).

    Args:
        scored: scores with the real labels, (sample, site, layer), by the name of their statistic.
        words: scores of the token counts, from `of_tokens`.
    """
    shape = scored["norm_auroc"].positive.shape[1:]
    differences = np.full((*shape, len(HELD_OUT), len(CONTROLS), len(BAND)), np.nan)
    for row, name in enumerate(HELD_OUT):
        if name not in scored:
            continue
        measure = name.removeprefix("ridge_")
        estimate, terms, _ = STATISTICS[measure]
        controls = [words[measure].along(shape), *([scored["norm_auroc"]] if measure == "auroc" else [])]
        for column, control in enumerate(controls):
            one, band = difference(estimate, terms, scored[name], control)
            differences[..., row, column, :] = one.with_band(band)
    return differences
