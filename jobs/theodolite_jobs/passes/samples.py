"""Readers of selected samples of one shard, which check that values are finite."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from theodolite.errors import RunDamagedError
from theodolite.sites import Site
from theodolite.store.commits import read_commit
from theodolite.store.runs import Run
from theodolite.store.shards import StoredShard, open_shard


@dataclass(frozen=True)
class SampleSelection:
    """A selection of a prompt set's samples and positions.

    Attributes:
        prompt_set: name of the set.
        excluded: samples to leave out: quarantined ones, and partners of quarantined ones.
        positions: indices into the set's own positions.
    """

    prompt_set: str
    excluded: frozenset[int]
    positions: tuple[int, ...]


@runtime_checkable
class Samples(Protocol):
    """Samples at some positions, read layer by layer; `samples` are their indices in the set."""

    samples: NDArray[np.int64]
    n_positions: int

    def layer(self, site: Site, index: int = 0) -> NDArray[np.float32]:
        """Return the activations at one site and an index into the run's layers, (sample, position, d_model)."""


class SelectedShard:
    """The selected samples of one shard, read layer by layer and checked to be finite."""

    def __init__(self, run: Run, selection: SampleSelection, shard_index: int) -> None:
        """Read the shard's commit record and select its samples."""
        self.run = run
        self.selection = selection
        self.commit = read_commit(run, selection.prompt_set, shard_index)
        within = range(self.commit.start, self.commit.stop)
        self.samples = np.array([sample for sample in within if sample not in selection.excluded], dtype=np.int64)
        self.n_positions = len(selection.positions)
        self._opened: dict[Site, StoredShard] = {}

    def layer(self, site: Site, index: int = 0) -> NDArray[np.float32]:
        """Return the activations at one site and an index into the run's layers, (sample, position, d_model).

        Raises:
            RunDamagedError: the shard differs from its commit record, or contains a number that is not finite.
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


def refuse_non_finite(
    values: NDArray[np.float32],
    run: Run,
    where: str,
    site: Site,
    layer: int,
    samples: Sequence[int] | NDArray[np.int64],
) -> None:
    """Raise RunDamagedError if samples, (sample, …), contain a number that is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):  # one pass without a copy; a NaN or an infinity makes the sum not finite
            return
    finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    if finite.all():  # only the sum overflowed
        return
    at_layer = "" if site is Site.RESID_FINAL else f" at layer {run.record.layers[layer]}"
    sample = samples[int(np.argmin(finite))]
    raise RunDamagedError(
        f"{run.id}: {where}, {site}: the activation of sample {sample}{at_layer} is not finite, so statistics "
        f"cannot be computed; run `theodolite run verify {run.id}`"
    )
