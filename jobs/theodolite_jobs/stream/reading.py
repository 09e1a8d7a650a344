"""Reading the samples that take part: of one shard whole, or of one layer over all shards; never what is not finite."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from theodolite.errors import RunDamagedError
from theodolite.sites import Site
from theodolite.store.activations import read_shard
from theodolite.store.commits import read_commit
from theodolite.store.runs import Run
from theodolite.store.slices import read_slice


@dataclass(frozen=True)
class Selection:
    """Which samples of a set take part, and which of its positions.

    Attributes:
        prompt_set: the set's name.
        excluded: samples left out: quarantined, or partners of quarantined ones.
        positions: indices into the set's own positions.
    """

    prompt_set: str
    excluded: frozenset[int]
    positions: tuple[int, ...]


def selected_samples(run: Run, selection: Selection, shard_index: int) -> NDArray[np.int64]:
    """Return the indices, in their set, of a shard's samples that take part."""
    commit = read_commit(run.location, selection.prompt_set, shard_index)
    return np.array([sample for sample in range(commit.start, commit.stop) if sample not in selection.excluded], int)


def read_selected(run: Run, selection: Selection, shard_index: int, site: Site) -> NDArray[np.float32]:
    """Return one site of a shard, (sample, position, layer, d_model); `resid_final` has one layer.

    Raises:
        RunDamagedError: the shard is not what was committed, or a number in it is not finite.
    """
    commit = read_commit(run.location, selection.prompt_set, shard_index)
    samples = selected_samples(run, selection, shard_index)
    values = read_shard(run, commit, site)
    values = values[samples - commit.start][:, list(selection.positions)]
    if site is Site.RESID_FINAL:
        values = values[:, :, None]
    _refuse_non_finite(values, run, site, f"shard {commit.name}, {site}", samples)
    return values


def read_layer_samples(
    run: Run, selection: Selection, samples: Sequence[int], site: Site, layer: int
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
    _refuse_non_finite(values[:, None, None], run, site, f"set {selection.prompt_set}, {site}", samples)
    return values


def _refuse_non_finite(
    values: NDArray[np.float32], run: Run, site: Site, where: str, samples: Sequence[int] | NDArray[np.int64]
) -> None:
    """Raise RunDamagedError where (sample, position, layer, d_model) holds a number that must not be averaged."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(values)):  # one pass without a copy: a NaN or an infinity stays in a sum
            return
    finite = np.isfinite(values).all(axis=-1)
    if finite.all():  # the sum alone ran over
        return
    row, _, layer = (int(index) for index in np.argwhere(~finite)[0])
    place = "" if site is Site.RESID_FINAL else f" at layer {run.record.layers[layer]}"
    raise RunDamagedError(
        f"{run.id}: {where}: the activation of sample {samples[row]}{place} is not finite, and nothing is averaged "
        f"over that; run `theodolite verify {run.id}`"
    )
