"""What a run's activations say to its heads: directions around each layer's attention, and what entered the block."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from theodolite.sites import Site, leaving_block
from theodolite.store.commits import Commit
from theodolite.store.manifest import finished_groups
from theodolite.store.runs import Run
from theodolite_jobs.models.anatomy import Anatomy
from theodolite_jobs.passes.samples import SampleSelection, SelectedShard
from theodolite_jobs.passes.selections import quarantined
from theodolite_jobs.results.context import Context
from theodolite_jobs.tasks import run_tasks

SAMPLES = 2048
"""Prompts of a set that shares of variance rest on, at most."""

_SAMPLE_BYTES = 256 * 2**20  # of the stream that are held at once, whatever the run's size

Samples = dict[tuple[int, int], NDArray[np.float32]]
"""By place among sets and positions: (sample, d_model)."""


class Directions:
    """The contrasts' directions in the stream, at the last position that was measured; none without `directions`."""

    def __init__(self, context: Context, anatomy: Anatomy) -> None:
        run = context.run
        self._has_middle, self._n_layers = Site.RESID_MID in anatomy.taps, run.record.model.n_layers
        self.contrasts: list[str] = []
        self.position = -1
        self._found: xr.DataArray | None = None
        self._nowhere = np.empty((0, run.record.model.d_model))
        if "directions" in finished_groups(run):
            self._found = context.group("directions")["direction"].isel(position=-1)
            self.contrasts = self._found["contrast"].values.tolist()
            self.position = int(self._found["position"])
            self._nowhere = np.full((len(self.contrasts), run.record.model.d_model), np.nan)

    def read(self, layer: int) -> NDArray[np.float64]:
        """Return them where a layer's attention reads, (contrast, d_model); NaN where nothing was captured there."""
        return self._first([(Site.RESID_PRE, layer), (Site.RESID_POST, layer - 1)])

    def written(self, layer: int) -> NDArray[np.float64]:
        """Return them where a layer's attention has written; of parallel blocks that is where the MLP has, too."""
        if self._has_middle:
            return self._first([(Site.RESID_MID_SUM, layer), (Site.RESID_MID, layer)])
        return self._first(leaving_block(layer, self._n_layers))

    def _first(self, places: Sequence[tuple[Site, int]]) -> NDArray[np.float64]:
        if self._found is None:
            return self._nowhere
        sites, layers = (set(self._found[name].values.tolist()) for name in ("site", "layer"))
        there = [place for place in places if place[0] in sites and place[1] in layers]
        return np.asarray(self._found.sel(site=str(there[0][0]), layer=there[0][1])) if there else self._nowhere


@dataclass(frozen=True)
class CapturedInputs:
    """The samples of a run that heads are held against.

    Attributes:
        run: the run.
        sets: its sets, without those that keep every token.
        positions: all positions that these sets keep.
        commits: the commit records of each set.
    """

    run: Run
    sets: Sequence[str]
    positions: Sequence[int]
    commits: dict[str, list[Commit]]

    def counts(self) -> NDArray[np.int64]:
        """Return how many prompts of each set are used, (set, position)."""
        counts = np.zeros((len(self.sets), len(self.positions)), dtype=np.int64)
        if not self._has_inputs:
            return counts
        for row, name in enumerate(self.sets):
            facts = self.run.record.sets[name]
            usable = min(SAMPLES, facts.n_samples - len(quarantined(self.commits[name])))
            counts[row, [self.positions.index(position) for position in facts.positions]] = usable
        return counts

    def by_layer(self, n_layers: int) -> Iterator[tuple[list[int], dict[int, Samples]]]:
        """Yield some layers at a time, and what entered those of them that were captured."""
        if not self.sets or not self._has_inputs:
            yield list(range(n_layers)), {}
            return
        row_bytes = int(self.counts().sum()) * self.run.record.model.d_model * 4
        size = max(1, _SAMPLE_BYTES // max(1, row_bytes))
        for start in range(0, n_layers, size):
            layers = list(range(start, min(start + size, n_layers)))
            yield layers, self._read([layer for layer in layers if layer in self.run.record.layers])

    @property
    def _has_inputs(self) -> bool:
        return Site.RESID_PRE in self.run.record.spec.capture.sites

    def _read(self, layers: Sequence[int]) -> dict[int, Samples]:
        found: dict[int, Samples] = {layer: {} for layer in layers}
        for row, name in enumerate(self.sets):
            excluded, n_positions = quarantined(self.commits[name]), len(self.run.record.sets[name].positions)
            shards = [commit.index for commit in self.commits[name] if commit.start < SAMPLES + len(excluded)]
            chosen = SampleSelection(name, excluded, tuple(range(n_positions)))
            arguments = [(self.run, chosen, index, layers) for index in shards]
            samples = np.concatenate(list(run_tasks(_shard_inputs, arguments, lambda _: None)))[:SAMPLES]
            if not len(samples):  # all of them were quarantined
                continue
            for column, position in enumerate(self.run.record.sets[name].positions):
                for index, layer in enumerate(layers):
                    found[layer][row, self.positions.index(position)] = samples[:, column, index]
        return found


def _shard_inputs(run: Run, selection: SampleSelection, shard_index: int, layers: Sequence[int]) -> NDArray[np.float32]:
    """Return what entered some layers of one shard's usable samples, (sample, position, layer, d_model)."""
    shard = SelectedShard(run, selection, shard_index)
    parts = [shard.layer(Site.RESID_PRE, run.record.layers.index(layer)) for layer in layers]
    return np.stack(parts, axis=2)
