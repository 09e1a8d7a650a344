"""The stored activations of a prompt set as a lazy array: what is used of it is read and verified then."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
from theodolite.spec_parts import Label, counted, same_labels
from theodolite.store.commits import read_commit
from theodolite.store.manifest import listed_checksums
from theodolite.store.prompts import read_prompts, read_spans, read_tokens
from theodolite.store.records import Commit, record_key
from theodolite.store.runs import Run
from theodolite.store.shards import read_layers, vector_shape

READERS = 4
"""Threads that read shards."""

_CHUNK_BYTES = 2**25
"""Size of a chunk for Dask, of whole shards: a task of a single layer of a shard would take longer than its bytes."""

_COMMIT_BYTES = 16 * 2**10  # of memory that a commit record takes


def read_activations(
    run: Run, prompt_set: str, site: str, layers: Sequence[int], positions: Sequence[Label]
) -> xr.DataArray:
    """Return the activations of a set, (sample, position, layer, d_model), float32; no labels select all.

    The features of `head_out` are (head, d_head); `resid_final` has no layer. If Dask is installed, a chunk has
    one or more shards. The coordinates of a sample are its `text`, its `status`, and `token_id`, (sample, position). In
    a run with `capture.keep`, these are the first prompts of the set.

    Raises:
        SpecError: the run has no such set, site, layer or position.
        ResultsNotFoundError: the run stores no activations of the set.
        RunDamagedError: when values are read: a shard differs from its commit record.
    """
    record, chosen, places = run.record, *chosen_places(run, prompt_set, site, layers, positions)
    bounds, captured = record.bounds(prompt_set), record.sets[prompt_set].positions
    stored = _Stored(run, prompt_set, chosen)
    dims = ["sample", "position", *list(places)[1:]]
    dims += ["head", "d_head"] if chosen is Site.HEAD_OUT else ["d_model"]
    prompts = read_prompts(run, prompt_set).iloc[: bounds.n_kept]
    coordinates = {
        "sample": np.arange(bounds.n_kept),
        **places,
        "text": ("sample", prompts["text"].to_numpy(str)),
        "status": ("sample", prompts["status"].to_numpy(str)),
        "token_id": (("sample", "position"), tokens_at(run, prompt_set, places["position"])[: bounds.n_kept]),
    }
    about = {"run_id": run.id, "set": prompt_set, "site": str(chosen), "n_samples": record.sets[prompt_set].n_samples}
    variable = xr.Variable(dims, indexing.LazilyIndexedArray(stored), about)
    for dim, known in (("position", captured), ("layer", record.layers)):
        if dim in places:
            variable = variable.isel({dim: as_slice(np.array([known.index(one) for one in places[dim]]))})
    if find_spec("dask"):  # after the selection, so that no other layer is read
        shard_bytes = bounds.shard_prompts * variable[:1].nbytes
        variable = variable.chunk({"sample": bounds.shard_prompts * max(1, _CHUNK_BYTES // shard_bytes)})
    return xr.DataArray(variable, coordinates, name="activations")


def chosen_places(
    run: Run, prompt_set: str, site: str, layers: Sequence[int], positions: Sequence[Label]
) -> tuple[Site, dict[str, list[Any]]]:
    """Return a site, and the `position` and `layer` labels of its stored activations; raises as `read_activations`."""
    record = run.record
    _checked("set", [prompt_set], list(record.sets))
    chosen = Site(*_checked("site", [site_name(site)], list(map(str, record.spec.capture.all_sites))))
    captured = record.sets[prompt_set].positions
    if not record.bounds(prompt_set).n_kept:
        raise ResultsNotFoundError(f"{run.id} stores no activations of {prompt_set}: capture.keep is 0")
    places = {"position": _checked("position", same_labels(positions, captured) or captured, captured)}
    if chosen is not Site.RESID_FINAL:
        places["layer"] = _checked("layer", layers or record.layers, record.layers)
    return chosen, places


def usable_positions(run: Run, prompt_set: str, positions: Sequence[Label]) -> NDArray[np.bool_]:
    """Return whether each prompt with stored activations has usable ones at each position, (sample, position)."""
    prompts = read_prompts(run, prompt_set).iloc[: run.record.bounds(prompt_set).n_kept]
    reach = [-(counted(one) or 0) for one in positions]  # all prompts have the named ones
    reached = prompts["n_tokens"].to_numpy()[:, None] >= np.array(reach)
    usable: NDArray[np.bool_] = reached & (prompts["status"] == "ok").to_numpy()[:, None]
    return usable


def _checked(name: str, given: Sequence[Any], known: Sequence[Any]) -> list[Any]:
    """Return labels; raises SpecError for one that does not exist."""
    for one in given:
        if one not in known:
            raise SpecError(f"{name}: there is no {one!r}; the run has {label_list(known)}")
    return list(given)


def tokens_at(run: Run, prompt_set: str, positions: Sequence[Label]) -> list[list[int]]:
    """Return the token at each position of each prompt; -1 if the prompt is shorter, or for the mean of several."""
    captured = run.record.sets[prompt_set].positions
    chosen = [captured.index(one) for one in positions]

    def token(ids: TokenIds, start: int, stop: int) -> int:
        return ids[start] if start >= 0 and stop == start + 1 else -1

    tokens = read_tokens(run, prompt_set)
    spans = read_spans(run, prompt_set, tokens)
    return [[token(ids, *own[one]) for one in chosen] for ids, own in zip(tokens, spans, strict=True)]


class _Stored(BackendArray):
    """A site of a set as xarray reads it: by index, (sample, position, layer, …), each shard verified."""

    dtype = np.dtype(np.float32)

    def __init__(self, run: Run, prompt_set: str, site: Site) -> None:
        self.run, self.prompt_set, self.site = run, prompt_set, site
        self.bounds = run.record.bounds(prompt_set)
        self.has_layers = site is not Site.RESID_FINAL
        layers = [len(run.record.layers)] if self.has_layers else []
        self.shape = (self.bounds.n_kept, len(run.record.sets[prompt_set].positions), *layers, *vector_shape(run, site))

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        """Return the values at an index of xarray."""
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> NDArray[np.float32]:
        chosen = [np.arange(size)[one] for size, one in zip(self.shape, key, strict=True)]
        samples, positions, *inner = [np.atleast_1d(one) for one in chosen]
        layers = inner.pop(0) if self.has_layers else np.zeros(1, int)
        values = np.empty([len(samples), len(positions), len(layers), *map(len, inner)], self.dtype)
        within = [as_slice(one) for one in (positions, *inner)]
        shards = samples // self.bounds.shard_prompts

        def copy_shard(index: int) -> None:
            rows, commit = np.flatnonzero(shards == index), commit_of(self.run, self.prompt_set, index)
            own = as_slice(samples[rows] - self.bounds.of(index)[0])
            for place, layer in enumerate(read_layers(self.run, commit, self.site, layers.tolist())):
                part = layer[own]
                for axis, one in enumerate(within, start=1):
                    part = part[(*[slice(None)] * axis, one)]
                values[as_slice(rows), :, place] = part

        with ThreadPoolExecutor(READERS) as pool:  # a bucket and a service have a long latency
            for _ in pool.map(copy_shard, np.unique(shards).tolist()):
                pass
        values = values if self.has_layers else values[:, :, 0]
        return values[tuple(slice(None) if one.ndim else 0 for one in chosen)]


def commit_of(run: Run, prompt_set: str, index: int) -> Commit:
    """Return the commit record of a shard, through the run's cache; raises RunDamagedError."""
    key = record_key(prompt_set, index)
    read, checksum = partial(read_commit, run, prompt_set, index), listed_checksums(run).get(key)
    return run.cached((key, checksum), read, lambda _: _COMMIT_BYTES) if checksum else read()


def as_slice(indices: NDArray[np.int64]) -> Any:
    """Return consecutive indices as a slice, which NumPy copies at once, and others as they are."""
    if len(indices) and (np.diff(indices) == 1).all():
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices
