"""The samples of a contrast at one position with the permutations of their labels, for all permutation tests."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from theodolite.sites import Site
from theodolite.spec_parts import Label
from theodolite.store.runs import Run
from theodolite_jobs.passes.point_clouds import PointCloud, read_cloud
from theodolite_jobs.passes.samples import SampleSelection
from theodolite_jobs.passes.selections import contrast_selection
from theodolite_jobs.results.context import Context
from theodolite_jobs.statistics.folds import FOLDS
from theodolite_jobs.statistics.gram_matrices import centred
from theodolite_jobs.statistics.held_out import difference_weights
from theodolite_jobs.statistics.norms import Norm, standardised
from theodolite_jobs.statistics.permutations import auroc, permuted_labels
from theodolite_jobs.statistics.refits import Scored

SAMPLES = 512
"""Maximum number of prompts of each set; more would make the tests slow and their nulls hardly narrower."""


@dataclass(frozen=True)
class PermutedContrast:
    """The first usable samples of both sets at one position, and their labels in each draw.

    Attributes:
        positive: samples of the positive set.
        negative: samples of the negative set.
        paired: whether the labels are exchanged inside pairs.
        labels: which samples count as positive, (draw, sample); row 0 has the real labels.
        folds: fold of each sample, (sample,).
    """

    positive: PointCloud
    negative: PointCloud
    paired: bool
    labels: NDArray[np.bool_]
    folds: NDArray[np.int64]

    def read(self, run: Run, site: Site, layer: int, norm: Norm | None = None) -> NDArray[np.float64]:
        """Return the samples of both sets minus their mean at a site and an index into the run's layers.

        With a norm, each sample is first standardised as the norm does before its scale and bias. The shards must have
        been checked. Equal samples give exact zeros.
        """
        samples = self.samples(run, site, layer)
        return centred(samples if norm is None else standardised(samples, norm))

    def samples(self, run: Run, site: Site, layer: int) -> NDArray[np.float64]:
        """Return the samples of both sets as they were captured; arguments as in `read`."""
        clouds = [read_cloud(run, cloud, site, layer) for cloud in (self.positive, self.negative)]
        return np.concatenate(clouds).astype(np.float64)

    def sides(self, scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return scores of all samples, (sample, …), as those of P and those of N."""
        positive, negative = np.split(scores, [len(self.positive.samples)])
        return positive, negative

    def scored(
        self,
        scores: NDArray[np.float64],
        refitted: NDArray[np.float64] | None = None,
        statistic: Callable[..., NDArray[np.float64]] = auroc,
    ) -> Scored:
        """Return scores with the real labels, (sample,), with a statistic of them after each refit.

        Args:
            scores: the scores.
            refitted: what `refits.refitted` returned; None if no direction was fitted.
            statistic: a function of `permutations`.
        """
        n = len(self.folds) // 2 if self.paired else len(self.folds)
        labels = np.broadcast_to(self.labels[0], (n, len(self.folds)))
        after = np.zeros(n) if refitted is None else statistic(refitted, labels)
        return Scored(*self.sides(scores), after, self.paired)

    def differences(self, run: Run, site: Site, layer: int, norm: Norm | None = None) -> NDArray[np.float64]:
        """Return the difference of the two sets' means in each draw, (draw, d_model); arguments as in `read`."""
        return np.asarray(difference_weights(self.labels) @ self.read(run, site, layer, norm))


def permuted_contrast(context: Context, label: str, position: Label) -> PermutedContrast | None:
    """Return a contrast with its permuted labels and check its shards; None if a set has no sample at the position.

    Raises:
        RunDamagedError: a shard differs from its commit record.
    """
    run, positions = context.run, context.coordinates["position"]
    selection = contrast_selection(run, context.contrasts[label], context.commits)
    if positions.index(position) not in selection.positions:
        return None
    positive, negative = (_cloud(run, side, position) for side in (selection.positive, selection.negative))
    if not (positive.samples and negative.samples):
        return None
    context.check_shards([positive, negative])
    folds = [np.array(side.samples) % FOLDS for side in (positive, negative)]
    labels = permuted_labels(*folds, paired=selection.paired)
    return PermutedContrast(positive, negative, selection.paired, labels, np.concatenate(folds))


def _cloud(run: Run, side: SampleSelection, position: Label) -> PointCloud:
    kept = range(run.record.bounds(side.prompt_set).n_kept)
    usable = [sample for sample in kept if sample not in side.excluded][:SAMPLES]
    return PointCloud(side.prompt_set, run.record.sets[side.prompt_set].positions.index(position), usable)
