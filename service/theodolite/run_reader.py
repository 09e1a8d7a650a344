"""Read one finished run in a notebook, with the same methods and return types for a service and for a store.

The reader of a store, in this module, calls `theodolite.query` and `theodolite.sections`. The reader of a service, in
`theodolite.client`, decodes the responses of the API.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr
from numpy.typing import NDArray

from theodolite.decoding import curves_dataset
from theodolite.errors import SpecError
from theodolite.groups import READ_WHOLE
from theodolite.query.curves import Curve, curve_frame, select_curves
from theodolite.query.group_selection import GROUP_LABELS, select_direction, select_group
from theodolite.query.heads import TOKEN_COLUMNS, Head, head_atlas, read_head
from theodolite.query.prompts import Order, read_prompt_path, read_scored_prompts
from theodolite.query.runs import describe_results
from theodolite.sections.catalogue import draw_figure, section_items, shown_groups
from theodolite.sections.conclusion import read_conclusion
from theodolite.store.cache import Cache
from theodolite.store.objects import absolute
from theodolite.store.result_reader import read_finished_table
from theodolite.store.runs import Run
from theodolite.store.runs import open_run as open_stored_run

__all__ = ["GROUPS", "Head", "Labels", "RunReader", "html_table", "open_run"]

GROUPS = READ_WHOLE
"""Result groups that `RunReader.group` returns; `curves`, `directions` and `heads` have their own methods."""

CACHE_BYTES = 48 * 2**20
"""Default size of the cache of `open_run`, in bytes."""

Labels = str | int | Sequence[str] | Sequence[int] | None
"""One label, several, or None for all; one label drops its dimension, as xarray's `sel` does."""

LabelLists = Mapping[str, Sequence[Any]]
"""The requested labels by dimension; all labels of a dimension that is not in the mapping."""


class RunReader(ABC):
    """The results of one run, from a store or from a service.

    Callers own the returned objects: changing them changes no cache.
    """

    def __init__(self, run_id: str, url: str) -> None:
        self.id, self.url = run_id, url

    def __repr__(self) -> str:
        return f"RunReader({self.id!r}, {self.url!r})"

    def _repr_html_(self) -> str:
        about = self.describe()
        model = about["model"]
        rows = {
            "model": f"{model['name']}: {model['n_layers']} layers, d_model {model['d_model']}, {model['dtype']}",
            "prompts": ", ".join(f"{facts['n_samples']} {name}" for name, facts in about["sets"].items()),
            "contrasts": ", ".join(about["contrasts"]),
            "results": ", ".join(about["results"]),
            "state": about["state"],
            "from": self.url,
        }
        return html_table(self.id, rows)

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the run's full description: spec, model, sets, parity certificate, results."""

    def curves(
        self,
        statistic: str = "cosine_of_means_debiased",
        *,
        set: Labels = None,
        contrast: Labels = None,
        site: Labels = None,
        position: Labels = None,
    ) -> xr.Dataset:
        """Return one statistic along depth: `value`, and `low` and `high` if it has a 95 % interval.

        The dimensions are (set or contrast, site, position, layer); one label instead of a list drops its dimension.
        Further coordinates are `depth` in half-blocks (0-pre is 0, 0-mid is 1) and the numbers of prompts.

        Raises:
            SpecError: there is no such statistic or label; the message lists the existing ones.
            ResultsNotFoundError: the run lacks the analysis.
        """
        given = {"set": set, "contrast": contrast, "site": site, "position": position}
        dataset = curves_dataset(self._curves([statistic], _label_lists(given)))
        return _without_single(dataset, given)

    def curves_frame(
        self,
        statistic: str | Sequence[str] = (),
        *,
        set: Labels = None,
        contrast: Labels = None,
        site: Labels = None,
        position: Labels = None,
    ) -> pd.DataFrame:
        """Return several statistics as one flat table, one row for each point; no names select the group `curves`.

        Raises as `curves` does.
        """
        given = {"set": set, "contrast": contrast, "site": site, "position": position}
        frame = curve_frame(self._curves(_listed(statistic), _label_lists(given)))
        return frame.astype({"value": float, "low": float, "high": float})

    @abstractmethod
    def direction(self, contrast: str, site: str, layer: int, position: int | None = None) -> NDArray[np.float64]:
        """Return the unit vector from the mean of a contrast's negative set to that of its positive set, (d_model).

        Args:
            contrast: name of the contrast.
            site: site in the block, such as `resid_pre`.
            layer: 0-based index of the block.
            position: token position from the end; None selects the last measured one.

        Raises:
            SpecError: there is no such contrast, site, layer or position, or the two means are equal at it.
        """

    @abstractmethod
    def heads(self, circuit: str = "qk", offset: int = 0) -> xr.Dataset:
        """Return each head's singular value, ranks and alignment with the contrasts' directions, (layer, head).

        Args:
            circuit: qk is W_Q R W_Kᵀ, vo is W_V W_O.
            offset: query position minus key position.

        Raises:
            SpecError: the run has no decomposition of the circuit at this offset.
            ResultsNotFoundError: the run lacks the analysis `heads`.
        """

    @abstractmethod
    def head(self, layer: int, head: int, circuit: str = "qk", offset: int = 0) -> Head:
        """Return one head's spectrum, ranks, and the tokens of its leading vectors; raises as `heads` does."""

    def group(self, name: str, statistic: str | Sequence[str] = (), **labels: Labels) -> xr.Dataset:
        """Return a result group, or some of its variables at some labels.

        Args:
            name: one of `GROUPS`.
            statistic: names of variables; none selects all.
            labels: the requested labels, by `set`, `contrast`, `site`, `position`, `layer` and `norm`.

        Raises:
            SpecError: there is no such group, variable or label, or the selection is too large.
            ResultsNotFoundError: the run lacks the analysis.
        """
        if name not in GROUPS:
            raise SpecError(
                f"group: given {name!r}; allowed: {', '.join(GROUPS)}; for others use `curves`, `direction` and `heads`"
            )
        unknown = [dim for dim in labels if dim not in GROUP_LABELS]
        if unknown:
            raise SpecError(f"{unknown[0]}: a group cannot be narrowed by this; allowed: {', '.join(GROUP_LABELS)}")
        return _without_single(self._group(name, _listed(statistic), _label_lists(labels)), labels)

    @abstractmethod
    def table(self, name: str) -> pd.DataFrame:
        """Return a whole flat table; raises TableNotFoundError, whose message lists the existing tables."""

    def prompts(
        self,
        set: str,
        *,
        contrast: str | None = None,
        site: str | None = None,
        layer: int | None = None,
        position: int | None = None,
        order: Order = "sample",
    ) -> pd.DataFrame:
        """Return the prompts of a set with their held-out scores along the direction of a contrast, one row each.

        The columns are `sample`, `text`, `n_tokens`, `status`, `error`, `score` and `margin`; the table's `attrs` have
        the `place` of the scores, or None. A negative margin is a wrong classification.

        Args:
            set: name of the prompt set.
            contrast: a contrast of the set; None selects the first one.
            site: site in the block; None selects that of the largest AUROC.
            layer: 0-based index of the block; None selects that of the largest AUROC.
            position: token position from the end; None selects the last measured one.
            order: `sample`, `margin` (worst classified first) or `-margin` (best classified first).

        Raises:
            SpecError: there is no such set, contrast, site, layer or position.
        """
        chosen = {"contrast": contrast, "site": site, "layer": layer, "position": position, "order": order}
        rows, place = self._prompts(set, chosen)
        columns = ["sample", "text", "n_tokens", "status", "error", "score", "margin"]
        table = pd.DataFrame(rows, columns=columns).astype({"score": float, "margin": float})
        table.attrs = {"place": place}
        return table

    def prompt(
        self, set: str, sample: int, *, contrast: str | None = None, position: int | None = None
    ) -> pd.DataFrame:
        """Return the held-out score and margin of one prompt at each depth, with quantiles of both sets' scores.

        Raises:
            SpecError: there is no such set, prompt, contrast or position, or the prompt has no score.
            TableNotFoundError: the run has no scores of this set.
        """
        return pd.DataFrame(self._prompt(set, sample, {"contrast": contrast, "position": position}))

    @abstractmethod
    def figure(self, name: str) -> go.Figure:
        """Return a figure by its name, which `section` lists; raises FigureNotFoundError."""

    @abstractmethod
    def conclusion(self) -> dict[str, Any]:
        """Return what the run asked, found, rests on, and does not say: `asked`, `found`, `rests_on`, `limits`.

        Each is a list of sentences; `found` has dictionaries with `text`, `group` and `figure`.
        """

    @abstractmethod
    def sections(self) -> list[str]:
        """Return the names of the result groups that have sections, in the order of the report and the page."""

    @abstractmethod
    def section(self, name: str) -> list[dict[str, Any]]:
        """Return the sections of one result group: sentences, names of figures, tables.

        Raises ResultsNotFoundError if no result group of this name has sections.
        """

    @abstractmethod
    def _curves(self, statistics: Sequence[str], labels: LabelLists) -> list[Curve]:
        """Return statistics as curves; no names select all statistics of the group `curves`."""

    @abstractmethod
    def _prompts(self, set: str, choices: Mapping[str, Any]) -> tuple[list[dict[Any, Any]], dict[str, Any] | None]:
        """Return the prompts of a set with their scores, one dictionary each, and the place of the scores."""

    @abstractmethod
    def _prompt(self, set: str, sample: int, choices: Mapping[str, Any]) -> list[dict[Any, Any]]:
        """Return one prompt's score at each depth, one dictionary each."""

    @abstractmethod
    def _group(self, name: str, statistics: Sequence[str], labels: LabelLists) -> xr.Dataset:
        """Return a result group, or a part of it, with every dimension."""


class _StoredRun(RunReader):
    """A run in a store, read without a service."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.id, run.store)
        self._opened = run

    @property
    def _run(self) -> Run:
        return self._opened.refreshed()

    def describe(self) -> dict[str, Any]:
        return deepcopy(describe_results(self._run))

    def direction(self, contrast: str, site: str, layer: int, position: int | None = None) -> NDArray[np.float64]:
        return np.array(select_direction(self._run, contrast, site, layer, position).values, np.float64)

    def heads(self, circuit: str = "qk", offset: int = 0) -> xr.Dataset:
        return _owned(head_atlas(self._run, circuit, offset))

    def head(self, layer: int, head: int, circuit: str = "qk", offset: int = 0) -> Head:
        stored = read_head(self._run, layer, head, circuit, offset)
        # Infer the column types, as for a service's response; Parquet has its own types.
        return replace(stored, tokens=pd.DataFrame(stored.tokens.to_dict("records"), columns=TOKEN_COLUMNS))

    def table(self, name: str) -> pd.DataFrame:
        return read_finished_table(self._run, name)

    def figure(self, name: str) -> go.Figure:
        return go.Figure(draw_figure(self._run, name))  # the caller owns the copy

    def conclusion(self) -> dict[str, Any]:
        return asdict(read_conclusion(self._run))

    def sections(self) -> list[str]:
        return shown_groups(self._run)

    def section(self, name: str) -> list[dict[str, Any]]:
        return section_items(self._run, name)

    def _curves(self, statistics: Sequence[str], labels: LabelLists) -> list[Curve]:
        return select_curves(self._run, statistics, labels)

    def _prompts(self, set: str, choices: Mapping[str, Any]) -> tuple[list[dict[Any, Any]], dict[str, Any] | None]:
        found = read_scored_prompts(self._run, set, **choices)
        return found.rows.to_dict("records"), vars(found.place) if found.place else None

    def _prompt(self, set: str, sample: int, choices: Mapping[str, Any]) -> list[dict[Any, Any]]:
        return read_prompt_path(self._run, set, sample, **choices)[0].to_dict("records")

    def _group(self, name: str, statistics: Sequence[str], labels: LabelLists) -> xr.Dataset:
        return _owned(select_group(self._run, name, statistics, labels))


def open_run(store: str | Path, run_id: str, *, cache_bytes: int = CACHE_BYTES) -> RunReader:
    """Return a run of a store, without a service.

    Args:
        store: a folder, or a file://, s3://, gs:// or az:// URL.
        run_id: the run's id.
        cache_bytes: size of the cache of results.

    Raises:
        RunNotFoundError: the run does not exist; the message lists the existing runs.
        StoreError: the store cannot be reached, or a newer version wrote the run.
    """
    return _StoredRun(open_stored_run(absolute(str(store)), run_id, Cache(cache_bytes)))


def html_table(title: str, rows: Mapping[str, Any]) -> str:
    """Return a small HTML table for a notebook; names and values are escaped."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{escape(title)}</caption><tbody>{cells}</tbody></table>"


def _listed(given: Labels) -> list[Any]:
    """Return labels as a list without duplicates."""
    return [] if given is None else [given] if isinstance(given, str | int) else list(dict.fromkeys(given))


def _label_lists(given: Mapping[str, Labels]) -> LabelLists:
    return {dim: _listed(labels) for dim, labels in given.items() if labels is not None}


def _without_single(dataset: xr.Dataset, given: Mapping[str, Labels]) -> xr.Dataset:
    single = [dim for dim, labels in given.items() if isinstance(labels, str | int) and dim in dataset.dims]
    return dataset.isel(dict.fromkeys(single, 0))


def _owned(dataset: xr.Dataset) -> xr.Dataset:
    """Return a copy that shares no memory with the cache, in the same types as a decoded response of a service."""
    dataset = dataset.drop_vars([name for name, variable in dataset.data_vars.items() if not variable.size])
    variables = {
        name: xr.Variable(variable.dims, _owned_values(variable.values), dict(variable.attrs))
        for name, variable in dataset.variables.items()
    }
    coords = {name: variables.pop(name) for name in dataset.coords}
    return xr.Dataset(variables, coords, deepcopy(dataset.attrs))


def _owned_values(values: NDArray[Any]) -> NDArray[Any]:
    if not values.size:
        return values.astype(np.float64)  # an empty list in JSON has no type
    return np.array(values.tolist()) if values.dtype.kind in "OT" else values.copy()
