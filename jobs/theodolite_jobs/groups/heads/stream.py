"""Captured activations for comparison with heads: directions around each layer's attention, and block inputs."""

from collections.abc import Iterator, Sequence

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from theodolite.sites import Site, leaving_block
from theodolite.spec_parts import Label
from theodolite.store.manifest import finished_groups
from theodolite.store.runs import Run
from theodolite_jobs.groups.heads.layer import Stream
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.passes.samples import SampleSelection, SelectedShard
from theodolite_jobs.passes.selections import first_captured, measured_sets, quarantined
from theodolite_jobs.results.circuits import input_norm
from theodolite_jobs.results.context import Context
from theodolite_jobs.results.permuted_labels import PermutedContrast, permuted_contrast
from theodolite_jobs.statistics.norms import Norm, unit
from theodolite_jobs.statistics.permutations import DRAWS
from theodolite_jobs.tasks import run_tasks

SAMPLES = 2048
"""Maximum number of prompts of a set for shares of variance."""

Candidates = Sequence[tuple[Site, int]]
"""Places with the same activations, in the order of preference."""

_SAMPLE_BYTES = 256 * 2**20  # of samples in memory at once

Samples = dict[tuple[int, int], NDArray[np.float32]]
"""Samples, (sample, d_model), by indices of set and position."""


class Directions:
    """The contrasts' directions at the last measured position; empty if the run lacks the analysis `directions`.

    Attention reads each sample through its norm. So the directions at attention's input are differences of the means of
    standardised samples, those of the permutation tests. The directions at its output are those of `directions`.
    """

    def __init__(self, context: Context, weights: Weights) -> None:
        self._run, self._weights = context.run, weights
        self.contrasts: list[str] = []
        self.position: Label = -1
        self._stored: xr.DataArray | None = None
        self._permuted: list[PermutedContrast | None] = []
        if "directions" in finished_groups(context.run):
            self._stored = context.group("directions")["direction"].sel(space="raw", drop=True).isel(position=-1)
            self.contrasts = self._stored["contrast"].values.tolist()
            self.position = self._stored["position"].item()
            self._permuted = [permuted_contrast(context, label, self.position) for label in self.contrasts]

    @property
    def n_prompts(self) -> dict[str, list[int]]:
        """The numbers of prompts of both sets behind the directions at attention's input, by contrast."""
        known = zip(self.contrasts, self._permuted, strict=True)
        return {
            label: [len(permuted.positive.samples), len(permuted.negative.samples)] if permuted else [0, 0]
            for label, permuted in known
        }

    def around(self, layer: int) -> Stream:
        """Return the directions around a layer's attention, without samples; NaN where their site was not captured.

        With contrasts it has the directions under permuted labels too.
        """
        written = self._place(self._written(layer))
        read_draws = self._read_draws(layer)
        if not self.contrasts:
            return Stream(read_draws[:, 0], self._stored_at(written))
        source = self._weights.anatomy.keys_of.get(layer)
        source_draws = None if source is None else self._read_draws(source)
        return Stream(
            read_draws[:, 0],
            self._stored_at(written),
            read_draws=read_draws,
            written_draws=self._draws_at(written),
            source_read=None if source_draws is None else source_draws[:, 0],
            source_draws=source_draws,
        )

    def _read_draws(self, layer: int) -> NDArray[np.float64]:
        """Return the directions at attention's input, (contrast, draw, d_model), first with the real labels."""
        return self._draws_at(self._place(self._read(layer)), input_norm(self._weights, layer))

    def _read(self, layer: int) -> Candidates:
        """Return the places of attention's input."""
        return [(Site.RESID_PRE, layer), (Site.RESID_POST, layer - 1)]

    def _written(self, layer: int) -> Candidates:
        """Return the places after the sum with attention's output, and with the MLP's in parallel blocks."""
        if Site.RESID_MID in self._weights.anatomy.taps:
            return [(Site.RESID_MID_SUM, layer), (Site.RESID_MID, layer)]
        return leaving_block(layer, self._run.record.model.n_layers)

    def _place(self, candidates: Candidates) -> tuple[Site, int] | None:
        """Return the first place whose directions are stored, as the site and an index into the run's layers."""
        measured = [(site, layer) for site, layer in candidates if site is not Site.RESID_FINAL]
        return first_captured(self._run, measured)

    def _stored_at(self, place: tuple[Site, int] | None) -> NDArray[np.float64]:
        if self._stored is None or place is None:
            return np.full((len(self.contrasts), self._run.record.model.d_model), np.nan)
        return np.asarray(self._stored.sel(site=str(place[0])).isel(layer=place[1]))

    def _draws_at(self, place: tuple[Site, int] | None, norm: Norm | None = None) -> NDArray[np.float64]:
        """Return the unit differences of means, (contrast, draw, d_model), first with the real labels."""
        draws = np.full((len(self.contrasts), 1 + DRAWS, self._run.record.model.d_model), np.nan)
        for row, permuted in enumerate(self._permuted):
            if permuted is not None and place is not None:
                draws[row] = unit(permuted.differences(self._run, *place, norm))
        return draws


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
