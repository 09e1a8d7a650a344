"""What the computations of one analysis share: each part is read or computed once, when it is first needed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import xarray as xr
from numpy.typing import NDArray

from theodolite.errors import ModelError
from theodolite.groups import GROUPS
from theodolite.spec import SurveySpec
from theodolite.store.commits import Commit
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run
from theodolite_jobs.passes.collect import Collected, collect
from theodolite_jobs.passes.norm_layers import NormLayer, norm_layers
from theodolite_jobs.passes.selections import Contrasts, all_commits, captured_digest, measured_sets
from theodolite_jobs.tasks import Progress, scheduler

if TYPE_CHECKING:
    from theodolite_jobs.models.weights import Weights

Arrays = dict[str, NDArray[Any]]
"""The variables of a result group, by name."""


@dataclass(frozen=True)
class Result:
    """A result group as it was computed, before it is stored.

    Attributes:
        arrays: an array for each variable of the group that is not stored by layer.
        coordinates: the labels of each dimension.
        attributes: what the group says of itself, beside its digest and version.
        labels: further labels of a dimension, by name: the dimension, and the labels.
        tables: Parquet tables, encoded, by name.
    """

    arrays: Mapping[str, NDArray[Any]]
    coordinates: Mapping[str, Sequence[Any]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, tuple[str, Sequence[Any]]] = field(default_factory=dict)
    tables: Mapping[str, bytes] = field(default_factory=dict)


def _no_model(*_: Any) -> Any:
    raise ModelError("this analysis has no model")


@dataclass
class Context:
    """One analysis of a run.

    Attributes:
        run: a run whose shards are all committed.
        spec: which analyses are requested, and their options.
        contrasts: the contrasts of the spec, and those that the run has results for already.
        open_weights: opens the model's weights; raises ModelError where that is not possible.
        open_tokenizer: loads the tokenizer that belongs to these weights.
        dask_address: a `dask.distributed` scheduler; None uses threads of this process.
        progress: is told how many tasks are done.
        stale: digest of each group that is being computed, by name.
        results: the groups that this analysis has computed so far.
    """

    run: Run
    spec: SurveySpec
    contrasts: Contrasts
    open_weights: "Callable[[], Weights]" = _no_model
    open_tokenizer: "Callable[[Weights], Any]" = _no_model
    dask_address: str | None = None
    progress: Progress = lambda *_: None
    stale: Mapping[str, str] = field(default_factory=dict)
    results: dict[str, xr.Dataset] = field(default_factory=dict)

    @cached_property
    def commits(self) -> dict[str, list[Commit]]:
        """The commit records of all shards, by set; raises StoreError where some are missing."""
        return all_commits(self.run)

    @cached_property
    def captured(self) -> str:
        """A digest of everything that was captured."""
        return captured_digest(self.commits)

    @property
    def weights(self) -> "Weights":
        """The model's weights; raises ModelError where they cannot be read, each time with the first reason."""
        found = self._weights
        if isinstance(found, ModelError):
            raise found
        return found

    @cached_property
    def _weights(self) -> "Weights | ModelError":
        try:
            return self.open_weights()
        except ModelError as error:
            return error

    @cached_property
    def norms(self) -> list[NormLayer]:
        """The model's norm layers in the order of the stream; raises ModelError where one cannot be read."""
        return norm_layers(self.run, self.weights)

    @cached_property
    def collected(self) -> Collected:
        """What the passes over the activations collect for the groups that are stale."""
        norms = self.norms if "sphere" in self.stale else []
        return collect(self.run, self.commits, self.contrasts, self.stale, norms, self.progress)

    @cached_property
    def coordinates(self) -> dict[str, Sequence[Any]]:
        """Labels of the dimensions that groups of activations have in common."""
        sets, positions = measured_sets(self.run)
        return {
            "set": sets,
            "contrast": list(self.contrasts),
            "site": [str(site) for site in self.run.record.spec.capture.sites],
            "position": positions,
            "layer": self.run.record.layers,
            "layer_other": self.run.record.layers,
            "d_model": range(self.run.record.model.d_model),
        }

    def rests_on_captured(self, group: str, contrasts: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Return what the digest of a group of activations covers: its rules, what was captured, contrasts, options."""
        rules = {"group": group, "version": GROUPS[group].version}
        return {**rules, "captured": self.captured, "contrasts": contrasts, **options}

    def group(self, name: str) -> xr.Dataset:
        """Return a result group: the one just computed, or the stored one."""
        return self.results[name] if name in self.results else read_group(self.run, name)

    def tasks(self) -> AbstractContextManager[None]:
        """Run tasks on Dask for as long as this lasts."""
        return scheduler(self.dask_address)
