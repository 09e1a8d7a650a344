"""Read captured shards one layer at a time.

`open_shard` verifies a shard's bytes once, and `StoredShard` decompresses only the requested layers. `read_layers`
reads and verifies only the bytes of the requested layers. `read_slice` reads one layer of many shards, unverified, with
two range requests for each shard.

A Zarr shard ends with an index of its chunks: offset and length of each (8 bytes each), then a checksum (4 bytes).
Each chunk of these arrays is one layer, compressed by Blosc. Zarr takes about twice as long for a whole shard.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import google_crc32c
import numpy as np
import zarr
from numcodecs import blosc
from numpy.typing import NDArray

from theodolite.errors import RunDamagedError, StoreError
from theodolite.sites import Site
from theodolite.store.activations import committed_bytes
from theodolite.store.commits import array_key
from theodolite.store.layout import ACTIVATIONS
from theodolite.store.objects import get_range, join, open_zarr_store
from theodolite.store.records import Commit
from theodolite.store.runs import Run

_ENTRY, _CHECKSUM = 16, 4  # bytes of the index


@dataclass(frozen=True)
class StoredShard:
    """The compressed layers of one site of a shard."""

    name: str  # of the shard and the site, in messages
    content: bytes  # the committed bytes
    n_layers: int  # `resid_final` has one
    n_samples: int  # the last shard of a set may have fewer than its chunks
    sample_shape: tuple[int, ...]  # (position, d_model), or (position, head, d_head)

    def layer(self, index: int) -> NDArray[np.float32]:
        """Return one layer, (sample, *sample_shape), as a read-only array.

        Raises:
            RunDamagedError: the shard's layers or their shape differ from those of run.json.
        """
        start = len(self.content) - _CHECKSUM - _ENTRY * (self.n_layers - index)
        try:
            offset, length = np.frombuffer(self.content, dtype="<u8", count=2, offset=start).tolist()
        except ValueError as error:
            raise self._wrong_shape() from error
        return self.decompressed(memoryview(self.content)[offset : offset + length])

    def decompressed(self, chunk: bytes | memoryview) -> NDArray[np.float32]:
        """Return the layer in a chunk of the shard; raises as `layer` does."""
        try:
            values = np.frombuffer(blosc.decompress(chunk), dtype="<f4").reshape(-1, *self.sample_shape)
        except (ValueError, RuntimeError) as error:
            raise self._wrong_shape() from error
        return values[: self.n_samples]

    def _wrong_shape(self) -> RunDamagedError:
        return RunDamagedError(f"{self.name}: its layers or their shape differ from those of run.json")


def open_shard(run: Run, commit: Commit, site: Site) -> StoredShard:
    """Return one site of a shard, after comparing its checksum with the commit record.

    Raises:
        RunDamagedError: the array is missing, or its checksum differs. Zarr would silently read NaN or wrong numbers.
    """
    return _shard(run, commit, site, committed_bytes(run, commit, site))


def _shard(run: Run, commit: Commit, site: Site, content: bytes) -> StoredShard:
    n_layers = 1 if site is Site.RESID_FINAL else len(run.record.layers)
    sample_shape = len(run.record.sets[commit.prompt_set].positions), *vector_shape(run, site)
    name = f"{run.id}: shard {commit.name}, {site}"
    return StoredShard(name, content, n_layers, commit.stop - commit.start, sample_shape)


def read_layers(run: Run, commit: Commit, site: Site, layers: Sequence[int]) -> list[NDArray[np.float32]]:
    """Return layers of a shard, by index, each (sample, *sample_shape) and read-only; see `StoredShard`.

    Only their bytes are read, and compared with the CRC-32C of the commit record. A shard whose record has none is read
    whole, as is one with other bytes, whose error is that of `open_shard`.
    """
    known = commit.layers.get(site)
    if known is not None and len(known) > max(layers):
        shard, key, found = _shard(run, commit, site, b""), array_key(commit, site), []
        starts = [0, *accumulate(size for size, _ in known)]
        with suppress(StoreError):  # for example of an object that is too short
            for layer in layers:
                size, checksum = known[layer]
                chunk = get_range(run.location, key, starts[layer], size) or b""
                if google_crc32c.value(chunk) != checksum:
                    break
                found.append(shard.decompressed(chunk))
            else:
                return found
    opened = open_shard(run, commit, site)
    return [opened.layer(layer) for layer in layers]


def read_shard(run: Run, commit: Commit, site: Site) -> NDArray[np.float32]:
    """Return one site of a shard, (sample, position, layer, d_model), or without layer for `resid_final`.

    The features of `head_out` are (head, d_head) instead of d_model. Raises RunDamagedError as `open_shard` does.
    """
    shard = open_shard(run, commit, site)
    if site is Site.RESID_FINAL:
        return shard.layer(0)
    n_samples, (n_positions, *features) = commit.stop - commit.start, shard.sample_shape
    values = np.empty((n_samples, n_positions, shard.n_layers, *features), np.float32)
    for index in range(shard.n_layers):
        values[:, :, index] = shard.layer(index)
    return values


def read_slice(run: Run, prompt_set: str, site: Site, layer_index: int, stop: int) -> NDArray[np.float32]:
    """Return the first `stop` samples at one site and layer, (sample, position, d_model).

    The features of `head_out` are (head, d_head).

    `layer_index` is an index into the run's layers; `resid_final` has no layer. The function verifies no checksums,
    since those of the commit records are for whole shards: verify the shards first.

    Raises:
        RunDamagedError: a chunk cannot be read.
    """
    selection: Any = slice(0, stop) if site is Site.RESID_FINAL else (slice(0, stop), slice(None), layer_index)
    try:
        store = open_zarr_store(join(run.url, ACTIVATIONS), read_only=True)
        array = zarr.open_array(store, path=f"{prompt_set}/{site}", mode="r", zarr_format=3)
        if array.shape != _shape(run, prompt_set, site):
            raise ValueError("its shape is not that of run.json")
        return np.asarray(array[selection], dtype=np.float32)
    # Codecs and stores raise different exceptions for broken or missing bytes.
    except Exception as error:
        raise RunDamagedError(
            f"{run.id}: {prompt_set}, {site}: layer {layer_index} cannot be read: {error}; "
            f"run `theodolite run verify {run.id} --repair`"
        ) from error


def _shape(run: Run, prompt_set: str, site: Site) -> tuple[int, ...]:
    """Return the shape of a site's array, (sample, position, layer, d_model), or without layer for `resid_final`."""
    positions = run.record.sets[prompt_set].positions
    layers = () if site is Site.RESID_FINAL else (len(run.record.layers),)
    return (run.record.bounds(prompt_set).n_kept, len(positions), *layers, *vector_shape(run, site))


def vector_shape(run: Run, site: Site) -> tuple[int, ...]:
    """Return the shape of one vector at a site: (d_model,), or (head, d_head)."""
    model = run.record.model
    return (model.n_heads, model.d_head) if site is Site.HEAD_OUT else (model.d_model,)
