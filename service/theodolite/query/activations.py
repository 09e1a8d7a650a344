"""The stored activations of a prompt set as a lazy array: what is used of it is read and verified then."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

from theodolite.errors import ResultsNotFoundError, SpecError
from theodolite.query.group_selection import label_list
from theodolite.sites import Site, site_name
from theodolite.spec import TokenIds
from theodolite.store.commits import read_commit
from theodolite.store.prompts import read_prompts, read_tokens
from theodolite.store.runs import Run
from theodolite.store.shards import open_shard


def read_activations(
    run: Run, prompt_set: str, site: str, layers: Sequence[int], positions: Sequence[int]
) -> xr.DataArray:
    """Return the activations of a set, (sample, position, layer, d_model), float32; no labels select all.

    The features of `head_out` are (head, d_head); `resid_final` has no layer. If Dask is installed, each shard is a
    chunk. The coordinates of a sample are its `text`, its `status`, and `token_id`, (sample, position). In a run with
    `capture.keep`, these are the first prompts of the set.

    Raises:
        SpecError: the run has no such set, site, layer or position.
        ResultsNotFoundError: the run stores no activations of the set.
        RunDamagedError: when values are read: a shard differs from its commit record.
    """
    record = run.record
    (prompt_set,) = _checked("set", [prompt_set], list(record.sets))
    chosen = Site(*_checked("site", [site_name(site)], list(map(str, record.spec.capture.all_sites))))
    bounds, captured = record.bounds(prompt_set), record.sets[prompt_set].positions
    if not bounds.n_kept:
        raise ResultsNotFoundError(f"{run.id} stores no activations of {prompt_set}: capture.keep is 0")
    places = {"position": _checked("position", positions or captured, captured)}
    if chosen is not Site.RESID_FINAL:
        places["layer"] = _checked("layer", layers or record.layers, record.layers)
    stored = _Stored(run, prompt_set, chosen)
    dims = ["sample", "position", *list(places)[1:]]
    dims += ["head", "d_head"] if chosen is Site.HEAD_OUT else ["d_model"]
    prompts = read_prompts(run, prompt_set).iloc[: bounds.n_kept]
    tokens = read_tokens(run, prompt_set)[: bounds.n_kept]
    coordinates = {
        "sample": np.arange(bounds.n_kept),
        "position": captured,
        **({"layer": record.layers} if "layer" in places else {}),
        "text": ("sample", prompts["text"].to_numpy(str)),
        "status": ("sample", prompts["status"].to_numpy(str)),
        "token_id": (("sample", "position"), [[_token(ids, one) for one in captured] for ids in tokens]),
    }
    about = {"run_id": run.id, "set": prompt_set, "site": str(chosen), "n_samples": record.sets[prompt_set].n_samples}
    variable = xr.Variable(dims, indexing.LazilyIndexedArray(stored), about)
    if find_spec("dask"):
        variable = variable.chunk({"sample": bounds.shard_prompts})
    return xr.DataArray(variable, coordinates, name="activations").sel(places)


def _checked(name: str, given: Sequence[Any], known: Sequence[Any]) -> list[Any]:
    """Return labels; raises SpecError for one that does not exist."""
    for one in given:
        if one not in known:
            raise SpecError(f"{name}: there is no {one!r}; the run has {label_list(known)}")
    return list(given)


def _token(ids: TokenIds, position: int) -> int:
    """Return the token at a position from the end; -1 if the prompt is shorter."""
    return ids[position] if -position <= len(ids) else -1


class _Stored(BackendArray):
    """A site of a set as xarray reads it: by index, (sample, position, layer, …), each shard verified."""

    dtype = np.dtype(np.float32)

    def __init__(self, run: Run, prompt_set: str, site: Site) -> None:
        self.run, self.prompt_set, self.site = run, prompt_set, site
        self.bounds, model = run.record.bounds(prompt_set), run.record.model
        self.has_layers = site is not Site.RESID_FINAL
        features = (model.n_heads, model.d_head) if site is Site.HEAD_OUT else (model.d_model,)
        layers = [len(run.record.layers)] if self.has_layers else []
        self.shape = (self.bounds.n_kept, len(run.record.sets[prompt_set].positions), *layers, *features)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        """Return the values at an index of xarray."""
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> NDArray[np.float32]:
        chosen = [np.arange(size)[one] for size, one in zip(self.shape, key, strict=True)]
        samples, *inner = [np.atleast_1d(one) for one in chosen]
        values = np.empty([len(samples), *map(len, inner)], self.dtype)
        shards = samples // self.bounds.shard_prompts
        for index in np.unique(shards):
            rows = np.flatnonzero(shards == index)
            values[rows] = self._of_shard(int(index), samples[rows] - self.bounds.of(int(index))[0], inner)
        return values[tuple(slice(None) if one.ndim else 0 for one in chosen)]

    def _of_shard(self, index: int, rows: NDArray[np.int64], inner: list[NDArray[np.int64]]) -> NDArray[np.float32]:
        """Return some samples of a shard at some positions, layers and features."""
        shard = open_shard(self.run, read_commit(self.run, self.prompt_set, index), self.site)
        if not self.has_layers:
            return shard.layer(0)[np.ix_(rows, *inner)]
        positions, layers, *features = inner
        return np.stack([shard.layer(int(layer))[np.ix_(rows, positions, *features)] for layer in layers], axis=2)
