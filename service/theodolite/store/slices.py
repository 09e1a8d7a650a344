"""Read one layer of a set's activations with two range requests for each shard."""

from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from theodolite.errors import RunDamagedError
from theodolite.sites import Site
from theodolite.store.layout import ACTIVATIONS
from theodolite.store.objects import join, open_zarr_store
from theodolite.store.runs import Run


def read_slice(run: Run, prompt_set: str, site: Site, layer_index: int, stop: int) -> NDArray[np.float32]:
    """Return the first `stop` samples at one site and layer, (sample, position, d_model).

    The function verifies no checksums, since those of the commit records are for whole shards: verify the shards first.

    Args:
        run: the run.
        prompt_set: the set's name.
        site: the site; `resid_final` has no layer.
        layer_index: index into the run's layers.
        stop: one past the last sample.

    Raises:
        RunDamagedError: a chunk cannot be read.
    """
    selection: Any = slice(0, stop) if site is Site.RESID_FINAL else (slice(0, stop), slice(None), layer_index)
    try:
        store = open_zarr_store(join(run.url, ACTIVATIONS), read_only=True)
        array = zarr.open_array(store, path=f"{prompt_set}/{site}", mode="r")
        return np.asarray(array[selection], dtype=np.float32)
    # Codecs and stores raise different exceptions for broken or missing bytes.
    except Exception as error:
        raise RunDamagedError(
            f"{run.id}: {prompt_set}, {site}: layer {layer_index} cannot be read: {error}; "
            f"run `theodolite verify {run.id}`"
        ) from error
