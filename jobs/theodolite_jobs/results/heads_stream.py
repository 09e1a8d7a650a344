"""Captured activations for comparison with heads: directions around each layer's attention, and block inputs."""

from collections.abc import Iterator, Sequence

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from theodolite.sites import Site, leaving_block
from theodolite.store.manifest import finished_groups
from theodolite.store.runs import Run
from theodolite_jobs.models.anatomy import Anatomy
from theodolite_jobs.passes.samples import SampleSelection, SelectedShard
from theodolite_jobs.passes.selections import measured_sets, quarantined
from theodolite_jobs.results.context import Context
from theodolite_jobs.tasks import run_tasks

SAMPLES = 2048
"""Maximum number of prompts of a set for shares of variance."""

_SAMPLE_BYTES = 256 * 2**20  # of samples in memory at once

Samples = dict[tuple[int, int], NDArray[np.float32]]
"""Samples, (sample, d_model), by indices of set and position."""


class Directions:
    """The contrasts' directions at the last measured position; empty if the run lacks the group `directions`."""

    def __init__(self, context: Context, anatomy: Anatomy) -> None:
        self._has_middle, self._model = Site.RESID_MID in anatomy.taps, context.run.record.model
        self.contrasts: list[str] = []
        self.position = -1
        self._stored: xr.DataArray | None = None
        if "directions" in finished_groups(context.run):
            self._stored = context.group("directions")["direction"].isel(position=-1)
            self.contrasts = self._stored["contrast"].values.tolist()
            self.position = int(self._stored["position"])

    def read(self, layer: int) -> NDArray[np.float64]:
        """Return the directions at a layer's attention input, (contrast, d_model); NaN if its site was not captured."""
        return self._first([(Site.RESID_PRE, layer), (Site.RESID_POST, layer - 1)])

    def written(self, layer: int) -> NDArray[np.float64]:
        """Return the directions after the sum with attention's output, and with the MLP's in parallel blocks."""
        if self._has_middle:
            return self._first([(Site.RESID_MID_SUM, layer), (Site.RESID_MID, layer)])
        return self._first(leaving_block(layer, self._model.n_layers))

    def _first(self, candidates: Sequence[tuple[Site, int]]) -> NDArray[np.float64]:
        for site, layer in candidates:
            if self._stored is not None and str(site) in self._stored["site"] and layer in self._stored["layer"]:
                return np.asarray(self._stored.sel(site=str(site), layer=layer))
        return np.full((len(self.contrasts), self._model.d_model), np.nan)


class CapturedInputs:
    """The captured block inputs of a run, of each set with statistics."""

    def __init__(self, context: Context) -> None:
        self.run, self.commits = context.run, context.commits
        self.sets, self.positions = measured_sets(context.run)
        self._has_inputs = Site.RESID_PRE in context.run.record.spec.capture.sites

    def counts(self) -> NDArray[np.int64]:
        """Return the number of prompts used of each set, (set, position)."""
        counts = np.zeros((len(self.sets), len(self.positions)), dtype=np.int64)
        for row, name in enumerate(self.sets if self._has_inputs else ()):
            kept = range(self.run.record.bounds(name).n_kept)
            usable = min(SAMPLES, len(kept) - sum(sample in kept for sample in quarantined(self.commits[name])))
            own = self.run.record.sets[name].positions
            counts[row, [self.positions.index(position) for position in own]] = usable
        return counts

    def by_layer(self, n_layers: int) -> Iterator[tuple[list[int], dict[int, Samples]]]:
        """Yield the layers in batches, each with the inputs of its captured layers."""
        if not self.sets or not self._has_inputs:
            yield list(range(n_layers)), {}
            return
        row_bytes = int(self.counts().sum()) * self.run.record.model.d_model * 4
        size = max(1, _SAMPLE_BYTES // max(1, row_bytes))
        for start in range(0, n_layers, size):
            layers = list(range(start, min(start + size, n_layers)))
            yield layers, self._read([layer for layer in layers if layer in self.run.record.layers])

    def _read(self, layers: Sequence[int]) -> dict[int, Samples]:
        inputs: dict[int, Samples] = {layer: {} for layer in layers}
        for row, name in enumerate(self.sets):
            excluded, n_positions = quarantined(self.commits[name]), len(self.run.record.sets[name].positions)
            stop = min(SAMPLES + len(excluded), self.run.record.bounds(name).n_kept)
            shards = [commit.index for commit in self.commits[name] if commit.start < stop]
            selection = SampleSelection(name, excluded, tuple(range(n_positions)))
            arguments = [(self.run, selection, index, layers) for index in shards]
            samples = np.concatenate(list(run_tasks(_shard_inputs, arguments)))[:SAMPLES]
            if not len(samples):  # all samples are quarantined
                continue
            for column, position in enumerate(self.run.record.sets[name].positions):
                for index, layer in enumerate(layers):
                    inputs[layer][row, self.positions.index(position)] = samples[:, column, index]
        return inputs


def _shard_inputs(run: Run, selection: SampleSelection, shard_index: int, layers: Sequence[int]) -> NDArray[np.float32]:
    """Return the inputs of some layers for one shard's selected samples, (sample, position, layer, d_model)."""
    shard = SelectedShard(run, selection, shard_index)
    parts = [shard.layer(Site.RESID_PRE, run.record.layers.index(layer)) for layer in layers]
    return np.stack(parts, axis=2)
