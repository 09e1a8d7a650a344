"""Check that a replica, or a worker of Dask, has the same store as the driver.

A store may be a folder, and each node has a folder of its own at the same path unless the path is shared. The driver
puts a small object into its store before it starts replicas or tasks. A process that does not find the object refuses
to work.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from socket import gethostname

from theodolite.errors import ClusterRefusedError, StoreError
from theodolite.store.objects import SHARING, absolute, delete, get, open_location, put


@dataclass(frozen=True)
class StoreMarker:
    """An object that the driver put into its store."""

    store: str  # absolute path or URL
    key: str  # key of the object


@contextmanager
def marked_store(store: str) -> Iterator[StoreMarker]:
    """Put a marker into the store until the context ends; raises StoreError if the store cannot be written."""
    marker = StoreMarker(absolute(store), f".driver-{uuid.uuid4().hex[:12]}")
    put(open_location(marker.store, create=True), marker.key, gethostname().encode())
    try:
        yield marker
    finally:
        with suppress(StoreError):  # if the store itself failed, the first error says why
            delete(open_location(marker.store), [marker.key])


def check_marker(marker: StoreMarker) -> None:
    """Raise ClusterRefusedError if this process does not find the driver's marker in the store."""
    if get(open_location(marker.store), marker.key) is None:
        raise ClusterRefusedError(
            f"the store {marker.store} on node {gethostname()} is not the driver's store: {SHARING}"
        )
