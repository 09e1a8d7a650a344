"""Objects by URL: a local folder, S3, GCS or Azure; the few verbs the rest of the store is built from."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, from_url
from zarr.storage import ObjectStore

from theodolite.errors import StoreError

Location = Any
"""An obstore store rooted at one URL."""


def join(url: str, *parts: str) -> str:
    """Return a place below a URL or a path."""
    return "/".join([url.rstrip("/"), *parts])


def open_location(url: str) -> Location:
    """Return the objects below a URL or a path; a local folder need not exist yet.

    Raises:
        StoreError: the URL cannot be understood.
    """
    try:
        if "://" in url and not url.startswith("file://"):
            return from_url(url)
        return LocalStore(prefix=Path(url.removeprefix("file://")).expanduser().absolute())
    except (BaseError, OSError, ValueError) as error:
        raise StoreError(f"cannot open the store {url}: {_first_line(error)}") from error


def open_zarr_store(url: str, read_only: bool = False) -> ObjectStore[Any]:
    """Return the objects below a URL as Zarr sees them."""
    return ObjectStore(open_location(url), read_only=read_only)


def check_writable(url: str) -> None:
    """Raise StoreError unless an object can be written to the store and removed again."""
    probe = f".probe-{uuid.uuid4().hex[:8]}"
    location = open_location(url)
    with store_errors(f"cannot write to the store {url}"):
        obstore.put(location, probe, b"")
        obstore.delete(location, probe)


def put(location: Location, key: str, content: bytes) -> None:
    """Write an object, replacing what was there."""
    with store_errors(f"cannot write {key}"):
        obstore.put(location, key, content)


def put_new(location: Location, key: str, content: bytes) -> bool:
    """Create an object; return False, and change nothing, where it exists already."""
    with store_errors(f"cannot write {key}"):
        try:
            obstore.put(location, key, content, mode="create")
        except AlreadyExistsError:
            return False
        return True


def get(location: Location, key: str) -> bytes | None:
    """Return an object's content, or None where there is none."""
    with store_errors(f"cannot read {key}"):
        try:
            return bytes(obstore.get(location, key).bytes())
        except FileNotFoundError:
            return None


def keys(location: Location, prefix: str = "") -> list[str]:
    """Return the keys of all objects below a prefix, sorted."""
    with store_errors(f"cannot list {prefix or 'the store'}"):
        return sorted(item["path"] for page in obstore.list(location, prefix or None) for item in page)


def folders(location: Location, prefix: str) -> list[str]:
    """Return the names of the folders right below a prefix, sorted; none where it does not exist."""
    with store_errors(f"cannot list {prefix}"):
        try:
            found = obstore.list_with_delimiter(location, prefix)["common_prefixes"]
        except FileNotFoundError:
            return []
        return sorted(path.rsplit("/", 1)[-1] for path in found)


def move(location: Location, source: str, target: str) -> None:
    """Move an object; nothing happens where the source is gone already, so that a move can be repeated."""
    with store_errors(f"cannot move {source}"):
        try:
            obstore.rename(location, source, target)
        except FileNotFoundError:
            return


def delete(location: Location, targets: list[str]) -> None:
    """Remove objects."""
    if targets:
        with store_errors("cannot delete"):
            obstore.delete(location, targets)


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Turn the errors of the object store's library into StoreError."""
    try:
        yield
    except (BaseError, OSError) as error:
        raise StoreError(f"{what}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
