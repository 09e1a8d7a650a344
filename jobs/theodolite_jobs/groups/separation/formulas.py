"""The Fisher ratio of two sets, by cross-validation. Pure, in float64."""

import numpy as np
from numpy.typing import NDArray

from theodolite_jobs.statistics.estimates import Estimate
from theodolite_jobs.statistics.folds import FOLDS, Folds, jackknife
from theodolite_jobs.statistics.ratio import ratio


def fisher_ratio(positive: Folds, negative: Folds) -> Estimate:
    """Return the Fisher ratio ‖Δμ‖²/(tr Σ_P + tr Σ_N) and its 95 % interval, with an unbiased ‖Δμ‖².

    ‖Δμ‖² is the mean over folds of Δμ_fold · Δμ_rest, since the plain ‖Δμ‖² contains the noise of both means. The
    interval is Student's, with FOLDS − 1 degrees of freedom and the jackknife error over folds. NaN if a fold of a set
    is empty, or if all samples of both sets are equal to their means.
    """
    value = _fisher_ratio(positive, negative)
    left_out = np.stack([_fisher_ratio(positive.without(fold), negative.without(fold)) for fold in range(FOLDS)])
    return jackknife(value, left_out)


def _fisher_ratio(positive: Folds, negative: Folds) -> NDArray[np.float64]:
    total = positive.trace + negative.trace
    if not ((positive.counts > 0) & (negative.counts > 0)).all():
        return np.full(total.shape, np.nan)
    products = []
    for fold in range(len(positive.counts)):
        own = positive.means[fold] - negative.means[fold]
        rest = positive.without(fold).mean - negative.without(fold).mean
        products.append(np.vecdot(own, rest))
    return ratio(np.mean(products, axis=0), total)
