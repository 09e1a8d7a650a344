"""Objects by URL: a local folder, S3, GCS or Azure; the few verbs the rest of the store is built from."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import gethostname
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, MemoryStore, from_url
from zarr.storage import ObjectStore

from theodolite.errors import StoreError, first_line

Location = Any
"""An obstore store rooted at one URL."""

SHARING = "share this folder with every node at the same path, or use a bucket (s3://, gs://, az://)"
"""What to do where a node does not see the objects that another one wrote."""


class _MissingFolder(MemoryStore):
    """A local folder that does not exist: reading finds nothing, and writing is refused."""

    url: str


def join(url: str, *parts: str) -> str:
    """Return a place below a URL or a path."""
    return "/".join([url.rstrip("/"), *parts])


def absolute(url: str) -> str:
    """Return a store's place as other processes, which have other working folders, understand it."""
    return url if "://" in url else str(Path(url).expanduser().absolute())


def open_location(url: str, create: bool = False) -> Location:
    """Return the objects below a URL or a path.

    Args:
        url: a folder, or a file://, s3://, gs:// or az:// URL.
        create: make a local folder that is not there; otherwise nothing is read from it, and each write to it raises
            StoreError.

    Raises:
        StoreError: the URL cannot be understood, or the folder cannot be made.
    """
    try:
        if "://" in url and not url.startswith("file://"):
            return from_url(url)
        folder = Path(url.removeprefix("file://")).expanduser().absolute()
        if not create and not folder.exists():
            missing = _MissingFolder()
            missing.url = url
            return missing
        # Empty folders would look like members of a Zarr group, so they go with their last object.
        return LocalStore(prefix=folder, mkdir=True, automatic_cleanup=True)
    except (BaseError, OSError, ValueError) as error:
        raise StoreError(f"cannot open the store {url}: {first_line(error)}") from error


def open_zarr_store(url: str, read_only: bool = False) -> ObjectStore[Any]:
    """Return the objects below a URL as Zarr sees them."""
    location = open_location(url, create=not read_only)
    # Zarr takes obstore's own classes only.
    return ObjectStore(MemoryStore() if isinstance(location, _MissingFolder) else location, read_only=read_only)


def check_writable(url: str) -> None:
    """Raise StoreError unless an object can be written to the store and removed again."""
    probe = f".probe-{uuid.uuid4().hex[:8]}"
    location = open_location(url, create=True)
    with store_errors(f"cannot write to the store {url}"):
        obstore.put(location, probe, b"")
        obstore.delete(location, probe)


def put(location: Location, key: str, content: bytes) -> None:
    """Write an object, replacing what was there."""
    _refuse_missing(location, key)
    with store_errors(f"cannot write {key}"):
        obstore.put(location, key, content)


def put_new(location: Location, key: str, content: bytes) -> bool:
    """Create an object; return False, and change nothing, where it exists already."""
    _refuse_missing(location, key)
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


def version(location: Location, key: str) -> str | None:
    """Return what tells one writing of an object from the next without reading it, or None where there is none."""
    with store_errors(f"cannot read {key}"):
        try:
            found = obstore.head(location, key)
        except FileNotFoundError:
            return None
        return str(found["e_tag"] or (found["last_modified"], found["size"]))


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
    _refuse_missing(location, target)
    with store_errors(f"cannot move {source}"):
        try:
            obstore.rename(location, source, target)
        except FileNotFoundError:
            return


def delete(location: Location, targets: list[str]) -> None:
    """Remove objects, those that are gone already too."""
    if targets:
        _refuse_missing(location, targets[0])
        with store_errors("cannot delete"):
            _delete(location, targets)


def _delete(location: Location, targets: list[str]) -> None:
    try:
        obstore.delete(location, targets)
    except FileNotFoundError:
        # A folder's deletion stops at the first that is gone already, a bucket's does not care.
        for target in targets:
            with suppress(FileNotFoundError):
                obstore.delete(location, target)


def _refuse_missing(location: Location, key: str) -> None:
    """Raise StoreError for a folder that does not exist here: what is written must be where others read it."""
    if isinstance(location, _MissingFolder):
        raise StoreError(f"cannot write {key}: there is no folder {location.url} on node {gethostname()}; {SHARING}")


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Turn the errors of the object store's library into StoreError."""
    try:
        yield
    except (BaseError, OSError) as error:
        raise StoreError(f"{what}: {first_line(error)}") from error
