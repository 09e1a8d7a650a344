"""How a replica finds out that the store it would write to is the driver's store.

A store may be a folder, and each node has a folder of its own at the same path unless the path is shared. The driver
puts a small object into its store before it starts replicas. A replica that does not find the object refuses to work.
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
    """An object that the driver put into its store.

    Attributes:
        store: the store, as every node must reach it.
        key: the object.
    """

    store: str
    key: str


@contextmanager
def marked_store(store: str) -> Iterator[StoreMarker]:
    """Put a marker into a store for as long as the context lasts; raises StoreError where it cannot be written."""
    marker = StoreMarker(absolute(store), f".driver-{uuid.uuid4().hex[:12]}")
    put(open_location(marker.store, create=True), marker.key, gethostname().encode())
    try:
        yield marker
    finally:
        with suppress(StoreError):  # the store may be what failed, and that error says more
            delete(open_location(marker.store), [marker.key])


def check_marker(marker: StoreMarker) -> None:
    """Raise ClusterRefusedError unless this process reads the driver's marker in its own store."""
    if get(open_location(marker.store), marker.key) is None:
        raise ClusterRefusedError(f"the store {marker.store} on node {gethostname()} is not the driver's: {SHARING}")
