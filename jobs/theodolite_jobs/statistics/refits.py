"""The error of statistics of held-out scores, with that of the fitted directions. Pure, in float64.

The scores of a fold belong to a direction that other prompts gave, so a statistic has two errors: that of the scored
prompts, and that of the directions. The functions `…_terms` of `statistics/scores.py` have the first one alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import NDArray

from theodolite_jobs.statistics.scores import Negative, Positive


@dataclass(frozen=True)
class Scored:
    """Held-out scores of both sets, and a statistic of them after each refit.

    Attributes:
        positive: scores of P, (prompt, …).
        negative: scores of N, (prompt, …).
        refitted: the statistic, if its directions are fitted without one pair, or without one prompt: first each of P,
            then each of N, (row, …). Zeros if the error of the directions does not matter, or without a fit.
        paired: whether prompt i of P belongs to prompt i of N.
    """

    positive: Positive
    negative: Negative
    refitted: Float64[np.ndarray, "row *dims"]
    paired: bool

    def terms(self, of_scores: Callable[..., NDArray[np.float64]]) -> Float64[np.ndarray, "row *dims"]:
        """Return terms of both errors, whose products sum to covariances, from the function of the first error alone.

        They are those of the jackknife that leaves a prompt, or a pair, out of the scores and of the fits. Its variance
        is never too small in expectation (Efron and Stein 1981): it counts what k prompts add together k times.
        """
        scored = of_scores(self.positive, self.negative, paired=self.paired)
        sizes = [len(self.positive)] if self.paired else [len(self.positive), len(self.negative)]
        parts = np.split(self.refitted, np.cumsum(sizes)[:-1])
        return np.asarray(
            scored + np.concatenate([(part.mean(axis=0) - part) * np.sqrt(1 - 1 / len(part)) for part in parts])
        )

    def fit_error(self, of_scores: Callable[..., NDArray[np.float64]]) -> Float64[np.ndarray, " *dims"]:
        """Return what the fitted directions add to the standard error, √(both² − that of the scored prompts²).

        0 where they add nothing; NaN where one of the errors is unknown.
        """
        alone, both = length(of_scores(self.positive, self.negative, paired=self.paired)), length(self.terms(of_scores))
        return np.asarray(np.sqrt(np.maximum(both**2 - alone**2, 0)))

    def along(self, shape: tuple[int, ...]) -> "Scored":
        """Return the same scores, (prompt,), at all places of a shape."""
        positive, negative, after = (
            np.broadcast_to(one.reshape(-1, *[1] * len(shape)), (len(one), *shape))
            for one in (self.positive, self.negative, self.refitted)
        )
        return Scored(positive, negative, after, self.paired)


def length(terms: Float64[np.ndarray, "term *dims"]) -> Float64[np.ndarray, " *dims"]:
    """Return the standard error of a statistic from its terms."""
    return np.asarray(np.sqrt((terms**2).sum(axis=0)))


def stacked(places: Sequence[Scored], shape: tuple[int, ...]) -> Scored:
    """Return the scores of places, each (prompt,), as (prompt, …) with the dimensions of a shape."""
    positive, negative, after = (
        np.stack([getattr(place, name) for place in places], axis=-1).reshape(-1, *shape)
        for name in ("positive", "negative", "refitted")
    )
    return Scored(positive, negative, after, places[0].paired)


def refitted(
    scores: Callable[..., Float64[np.ndarray, "draw sample"]],
    gram: Float64[np.ndarray, "sample sample"],
    labels: Bool[np.ndarray, " sample"],
    folds: Int64[np.ndarray, " sample"],
    *,
    paired: bool,
) -> Float64[np.ndarray, "row sample"]:
    """Return the scores of all samples after each refit, in the order of `Scored.refitted`.

    Args:
        scores: one of the functions of `held_out`.
        gram: Gram matrix of the centred samples.
        labels: which samples are positive; P comes first.
        folds: fold of each sample.
        paired: whether a pair is left out at once.
    """
    one = np.eye(len(labels) // 2 if paired else len(labels), dtype=bool)
    left_out = np.hstack([one, one]) if paired else one
    return scores(gram, labels[None], folds, left_out)
