"""Reading the samples that take part: of one shard whole, or of one layer over all shards; never what is not finite."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from theodolite.errors import RunDamagedError
from theodolite.sites import Site
from theodolite.store.commits import read_commit
from theodolite.store.runs import Run
from theodolite.store.shards import StoredShard, open_shard
from theodolite.store.slices import read_slice


@dataclass(frozen=True)
class SampleSelection:
    """Which samples of a set take part, and which of its positions.

    Attributes:
        prompt_set: the set's name.
        excluded: samples left out: quarantined, or partners of quarantined ones.
        positions: indices into the set's own positions.
    """

    prompt_set: str
    excluded: frozenset[int]
    positions: tuple[int, ...]


class SelectedShard:
    """The samples of one shard that take part, a layer at a time; never one that is not finite."""

    def __init__(self, run: Run, selection: SampleSelection, shard_index: int) -> None:
        """Find out which samples they are."""
        self.run = run
        self.selection = selection
        self.commit = read_commit(run.location, selection.prompt_set, shard_index)
        within = range(self.commit.start, self.commit.stop)
        self.samples = np.array([sample for sample in within if sample not in selection.excluded], dtype=np.int64)
        self._opened: dict[Site, StoredShard] = {}

    def layer(self, site: Site, index: int = 0) -> NDArray[np.float32]:
        """Return one site at an index into the run's layers, (sample, position, d_model).

        Raises:
            RunDamagedError: the shard is not what was committed, or a number in it is not finite.
        """
        if site not in self._opened:
            self._opened[site] = open_shard(self.run, self.commit, site)
        values = self._opened[site].layer(index)
        if len(self.samples) < len(values):
            values = values[self.samples - self.commit.start]
        if len(self.selection.positions) < values.shape[1]:
            values = values[:, list(self.selection.positions)]
        refuse_non_finite(values, self.run, f"shard {self.commit.name}", site, index, self.samples)
        return values


def read_layer_samples(
    run: Run, selection: SampleSelection, samples: Sequence[int], site: Site, layer: int
) -> NDArray[np.float32]:
    """Return some samples of a set at one site, layer and position, (sample, d_model).

    Only that layer is read, in two requests of each shard. The shards must have been verified.

    Args:
        run: the run.
        selection: the set, and one of its positions.
        samples: their indices in the set, ascending.
        site: the site; `resid_final` has no layer.
        layer: index into the run's layers.
    """
    (position,) = selection.positions
    values = read_slice(run, selection.prompt_set, site, layer, samples[-1] + 1)[list(samples), position]
    refuse_non_finite(values, run, f"set {selection.prompt_set}", site, layer, samples)
    return values


def refuse_non_finite(
    values: NDArray[np.float32],
    run: Run,
    where: str,
    site: Site,
    layer: int,
    samples: Sequence[int] | NDArray[np.int64],
) -> None:
    """Raise RunDamagedError where samples, (sample, …), hold a number that must not be averaged."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):  # one pass without a copy: a NaN or an infinity stays in a sum
            return
    finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    if finite.all():  # the sum alone ran over
        return
    place = "" if site is Site.RESID_FINAL else f" at layer {run.record.layers[layer]}"
    sample = samples[int(np.argmin(finite))]
    raise RunDamagedError(
        f"{run.id}: {where}, {site}: the activation of sample {sample}{place} is not finite, and "
        f"nothing is averaged over that; run `theodolite verify {run.id}`"
    )
