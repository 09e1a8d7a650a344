"""Read the runs of a store, without a service."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr
from numpy.typing import NDArray

from theodolite.decoding import decode_runs
from theodolite.export import encode_directions
from theodolite.query.curves import Curve, select_curves
from theodolite.query.group_selection import select_direction, select_group
from theodolite.query.heads import TOKEN_COLUMNS, Head, head_atlas, read_head
from theodolite.query.prompts import read_prompt_path, read_scored_prompts
from theodolite.query.runs import describe_results, run_id_of, select_summaries, summaries
from theodolite.run_reader import LabelLists, RunReader
from theodolite.sections.catalogue import draw_figure, section_items, shown_groups
from theodolite.sections.conclusion import read_conclusion
from theodolite.store.cache import Cache
from theodolite.store.objects import absolute
from theodolite.store.result_reader import read_finished_table
from theodolite.store.runs import Run
from theodolite.store.runs import open_run as open_stored_run

CACHE_BYTES = 48 * 2**20
"""Default size of the cache of `open_run`, in bytes."""


def runs(store: str | Path, model: str | None = None, contrast: str | None = None) -> pd.DataFrame:
    """Return the complete runs of a store as a table, newest first, one row each.

    A run without results, or one that cannot be read, is left out; `theodolite run list` lists these too.

    Args:
        store: a folder, or a file://, s3://, gs:// or az:// URL.
        model: only models whose name contains this text, ignoring case.
        contrast: only runs with this contrast.

    Raises:
        StoreError: the store cannot be reached.
    """
    return decode_runs(select_summaries(summaries(absolute(str(store))), model, contrast))


def open_run(store: str | Path, run_id: str, *, cache_bytes: int = CACHE_BYTES) -> RunReader:
    """Return a run of a store, without a service.

    Args:
        store: a folder, or a file://, s3://, gs:// or az:// URL.
        run_id: the run's id, or a name that only one run has.
        cache_bytes: size of the cache of results.

    Raises:
        RunNotFoundError: the run does not exist; the message lists the existing runs.
        StoreError: the store cannot be reached, or another version wrote the run.
    """
    url = absolute(str(store))
    return _StoredRun(open_stored_run(url, run_id_of(url, run_id), Cache(cache_bytes)))


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

    def _export(self, contrast: str, site: str, layers: Sequence[int], position: int | None, format: str) -> bytes:
        return encode_directions(self._run, contrast, site, layers, position, format)


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
