"""Check that a store can be written, and that it creates an object only once."""

import uuid
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache

import obstore
from obstore.exceptions import AlreadyExistsError

from theodolite.errors import StoreError
from theodolite.store.objects import delete, open_location, store_errors

_RETRY_SECONDS = 5
"""Time in which a request is repeated: an unreachable bucket is refused soon. A survey itself waits longer."""


@lru_cache(maxsize=64)
def check_writable(url: str) -> None:
    """Write an object to the store, try to create it again, and remove it; do nothing if this process did it before.

    Two replicas may capture the same shard. The first one creates the commit record, and the second one finds it. Some
    servers ignore the header `If-None-Match: *` of such a request, so the second record would replace the first.

    Raises:
        StoreError: the store cannot be written, or it creates an object that exists already.
    """
    probe = f".probe-{uuid.uuid4().hex}"  # two processes may check the same store
    retries = {"max_retries": 10, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)}
    location = open_location(url, create=True, retry_config=retries)
    with store_errors(f"cannot write to the store {url}"):
        obstore.put(location, probe, b"")
    only_once = f"cannot write to the store {url}, whose commits need that an object is created only once"
    try:
        with store_errors(only_once), suppress(AlreadyExistsError):
            obstore.put(location, probe, b"", mode="create")
            raise StoreError(
                f"{only_once}: its server ignores the header `If-None-Match: *`; use a server with conditional writes, "
                "or a folder"
            )
    finally:
        delete(location, [probe])
