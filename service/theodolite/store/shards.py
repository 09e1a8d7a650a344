"""Read captured shards one layer at a time: verify the bytes once, and decompress only the requested layers.

A Zarr shard ends with an index of its chunks: offset and length of each (8 bytes each), then a checksum (4 bytes).
Each chunk of these arrays is one layer, compressed by Blosc. Zarr takes about twice as long for a whole shard.
"""

from dataclasses import dataclass

import numpy as np
from numcodecs import blosc
from numpy.typing import NDArray

from theodolite.sites import Site
from theodolite.store.activations import committed_bytes
from theodolite.store.commits import Commit
from theodolite.store.runs import Run

_ENTRY, _CHECKSUM = 16, 4  # bytes of the index


@dataclass(frozen=True)
class StoredShard:
    """The compressed layers of one site of a shard.

    Attributes:
        content: the committed bytes.
        n_layers: number of layers; `resid_final` has one.
        n_samples: samples of the shard; the last shard of a set may have fewer than its chunks.
        sample_shape: (position, d_model).
    """

    content: bytes
    n_layers: int
    n_samples: int
    sample_shape: tuple[int, int]

    def layer(self, index: int) -> NDArray[np.float32]:
        """Return one layer, (sample, position, d_model), as a read-only array."""
        start = len(self.content) - _CHECKSUM - _ENTRY * (self.n_layers - index)
        offset, length = np.frombuffer(self.content, dtype="<u8", count=2, offset=start).tolist()
        unpacked = blosc.decompress(memoryview(self.content)[offset : offset + length])
        values = np.frombuffer(unpacked, dtype="<f4").reshape(-1, *self.sample_shape)
        return values[: self.n_samples]


def open_shard(run: Run, commit: Commit, site: Site) -> StoredShard:
    """Return one site of a shard, after comparing its checksum with the commit record.

    Raises:
        RunDamagedError: the array is missing, or its checksum differs. Zarr would silently read NaN or wrong numbers.
    """
    n_layers = 1 if site is Site.RESID_FINAL else len(run.record.layers)
    sample_shape = len(run.record.sets[commit.prompt_set].positions), run.record.model.d_model
    return StoredShard(committed_bytes(run, commit, site), n_layers, commit.stop - commit.start, sample_shape)


def read_shard(run: Run, commit: Commit, site: Site) -> NDArray[np.float32]:
    """Return one site of a shard, (sample, position, layer, d_model), or without layer for `resid_final`.

    Raises:
        RunDamagedError: see `open_shard`.
    """
    shard = open_shard(run, commit, site)
    if site is Site.RESID_FINAL:
        return shard.layer(0)
    values = np.empty((shard.n_samples, shard.sample_shape[0], shard.n_layers, shard.sample_shape[1]), np.float32)
    for index in range(shard.n_layers):
        values[:, :, index] = shard.layer(index)
    return values
