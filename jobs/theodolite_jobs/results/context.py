"""The shared state of one computation of results; each part is read or computed once, at its first use."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from theodolite.errors import ModelError
from theodolite.groups import GROUPS
from theodolite.spec import SurveySpec
from theodolite.spec_parts import Label
from theodolite.store.records import Commit
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run
from theodolite_jobs.passes.collect import Arrays, Collected, collect
from theodolite_jobs.passes.norm_layers import NormLayer, norm_layers
from theodolite_jobs.passes.point_clouds import PointCloud, check_shards, first_usable, shards_of
from theodolite_jobs.passes.selections import Contrasts, all_commits, captured_digest, measured_sets
from theodolite_jobs.store_marker import check_marker, marked_store
from theodolite_jobs.tasks import Progress, call_on_each_worker, scheduler

if TYPE_CHECKING:
    from theodolite_jobs.effects.work import EffectsWork
    from theodolite_jobs.models.weights import Weights


@dataclass(frozen=True)
class Result:
    """The results of an analysis before they are stored.

    Attributes:
        arrays: the group's variables that are not stored layer by layer, by name.
        coordinates: labels of each dimension.
        attributes: attributes of the group besides its digest and version.
        labels: additional labels of a dimension, by name, as the dimension and its labels.
        tables: encoded Parquet tables, by name.
        layers: checksums of the objects that are stored layer by layer, by key.
    """

    arrays: Arrays
    coordinates: Mapping[str, Sequence[Any]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, tuple[str, Sequence[Any]]] = field(default_factory=dict)
    tables: Mapping[str, bytes] = field(default_factory=dict)
    layers: Mapping[str, str] = field(default_factory=dict)


def missing_arrays(group: str, coordinates: Mapping[str, Sequence[Any]]) -> Arrays:
    """Return all variables of a group before any is measured: NaN, or 0 for numbers of prompts and dimensions."""
    return {
        variable.name: np.full(GROUPS[group].shape(variable, coordinates), 0 if variable.dtype == "int64" else np.nan)
        for variable in GROUPS[group].variables
    }


def _no_model(*_: Any) -> Any:
    raise ModelError("the results need the model, and this computation has none")


@dataclass
class Context:
    """One computation of the results of a run.

    Attributes:
        run: a run with all shards committed.
        spec: the requested analyses and their options.
        contrasts: the contrasts of the spec, and those for which the run already has results.
        open_weights: opens the model's weights; raises ModelError if it cannot.
        open_tokenizer: loads the tokenizer of these weights.
        measure_effects: measures on replicas what is not measured yet, and stores it.
        dask_address: address of a `dask.distributed` scheduler; None uses threads of this process.
        progress: called with the number of finished tasks.
        stale: digest of each group that is being computed, by name.
        results: the groups that are already computed.
    """

    run: Run
    spec: SurveySpec
    contrasts: Contrasts
    open_weights: "Callable[[], Weights]" = _no_model
    open_tokenizer: "Callable[[Weights], Any]" = _no_model
    measure_effects: "Callable[[EffectsWork], None]" = _no_model
    dask_address: str | None = None
    progress: Progress = lambda *_: None
    stale: Mapping[str, str] = field(default_factory=dict)
    results: dict[str, xr.Dataset] = field(default_factory=dict)
    _checked: set[str] = field(default_factory=set)
    _have_store: bool = False  # the workers of Dask

    @cached_property
    def commits(self) -> dict[str, list[Commit]]:
        """The commit records of all shards, by set; raises StoreError if some are missing."""
        return all_commits(self.run)

    @cached_property
    def captured(self) -> str:
        """The digest of the captured activations."""
        return captured_digest(self.commits)

    @property
    def weights(self) -> "Weights":
        """The model's weights; raises the ModelError of the first attempt if they cannot be read."""
        if isinstance(self._weights, ModelError):
            raise self._weights
        return self._weights

    @cached_property
    def _weights(self) -> "Weights | ModelError":
        try:
            return self.open_weights()
        except ModelError as error:
            return error

    @cached_property
    def norms(self) -> list[NormLayer]:
        """The model's norm layers in the order of the stream; raises ModelError if one cannot be read."""
        return norm_layers(self.run, self.weights)

    @cached_property
    def collected(self) -> Collected:
        """The outputs of the passes over the activations for the stale groups."""
        norms = self.norms if "sphere" in self.stale else []
        return collect(self.run, self.commits, self.contrasts, self.stale, norms, self.progress)

    @cached_property
    def coordinates(self) -> dict[str, Sequence[Any]]:
        """Labels of the dimensions that the groups of activations share."""
        sets, positions = measured_sets(self.run)
        return {
            "set": sets,
            "contrast": list(self.contrasts),
            "contrast_other": list(self.contrasts),
            "site": [str(site) for site in self.run.record.spec.capture.stream_sites],
            "position": positions,
            "layer": self.run.record.layers,
            "layer_other": self.run.record.layers,
            "d_model": range(self.run.record.model.d_model),
        }

    def digest_inputs(self, group: str, contrasts: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Return the contents of the digest of a group of activations: version, captured digest, contrasts, options."""
        rules = {"group": group, "version": GROUPS[group].version}
        return {**rules, "captured": self.captured, "contrasts": contrasts, **options}

    def group(self, name: str) -> xr.Dataset:
        """Return the results of an analysis that were just computed, or else the stored ones."""
        return self.results[name] if name in self.results else read_group(self.run, name)

    def clouds(self, limit: int) -> dict[tuple[str, Label], PointCloud]:
        """Return the first usable samples of each set at each of its positions, at most `limit`."""
        return {
            (name, position): first_usable(self.run, name, position, self.commits[name], limit)
            for name in self.coordinates["set"]
            for position in self.run.record.sets[name].positions
        }

    def check_shards(self, clouds: Iterable[PointCloud]) -> None:
        """Compare the shards of point clouds with their commit records, each once in a computation.

        Raises:
            RunDamagedError: a shard differs from its record.
        """
        unchecked = [commit for commit in shards_of(clouds, self.commits) if commit.name not in self._checked]
        if unchecked:
            check_shards(self.run, unchecked, self.progress)
        self._checked |= {commit.name for commit in unchecked}

    @contextmanager
    def tasks(self) -> Iterator[None]:
        """Run tasks on Dask until the context ends; raises ClusterRefusedError if a worker has another store."""
        with scheduler(self.dask_address):
            if self.dask_address and not self._have_store:
                with marked_store(self.run.store) as marker:
                    call_on_each_worker(check_marker, marker)
                self._have_store = True
            yield
