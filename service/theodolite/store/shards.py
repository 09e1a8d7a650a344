"""One shard's verified bytes, unpacked a layer at a time: a pass over them holds no more than the layers it looks at.

A Zarr shard ends with an index of where each chunk lies (offset and length, eight bytes each, then a checksum of four);
here each chunk is one layer, packed by Blosc. Unpacking a whole shard through Zarr takes about twice as long.
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
    """The packed layers of one site of a shard.

    Attributes:
        content: the bytes that were committed.
        n_layers: how many layers there are; `resid_final` has one.
        n_samples: samples of the shard, which may be fewer than a chunk has room for.
        sample_shape: (position, d_model).
    """

    content: bytes
    n_layers: int
    n_samples: int
    sample_shape: tuple[int, int]

    def layer(self, index: int) -> NDArray[np.float32]:
        """Return one layer, (sample, position, d_model); read only."""
        start = len(self.content) - _CHECKSUM - _ENTRY * (self.n_layers - index)
        offset, length = np.frombuffer(self.content, dtype="<u8", count=2, offset=start).tolist()
        unpacked = blosc.decompress(memoryview(self.content)[offset : offset + length])
        values = np.frombuffer(unpacked, dtype="<f4").reshape(-1, *self.sample_shape)
        return values[: self.n_samples]


def open_shard(run: Run, commit: Commit, site: Site) -> StoredShard:
    """Fetch one site of a shard and compare it with its commit record.

    Raises:
        RunDamagedError: it is missing, or its bytes are not those that were committed. Zarr alone would read NaN or
            other numbers, silently.
    """
    n_layers = 1 if site is Site.RESID_FINAL else len(run.record.layers)
    sample_shape = len(run.record.sets[commit.prompt_set].positions), run.record.model.d_model
    return StoredShard(committed_bytes(run, commit, site), n_layers, commit.stop - commit.start, sample_shape)


def read_shard(run: Run, commit: Commit, site: Site) -> NDArray[np.float32]:
    """Return one site of a shard whole, (sample, position, layer, d_model) or without layer for `resid_final`.

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
