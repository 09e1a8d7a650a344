"""Read, write, list, move and delete objects by URL: in a local folder, S3, GCS or Azure."""

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryFile
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError
from obstore.store import LocalStore, MemoryStore
from zarr.storage import ObjectStore

from theodolite.errors import LinkedObjectError, StoreError
from theodolite.store.buckets import explanation, is_missing_bucket, open_bucket

Location = Any
"""An obstore store rooted at one URL. To read known objects, its methods `get`, `get_range` and `head` suffice."""

_READ_THREADS = 16

_STAGED = re.compile(r".+#\d+")

_SCHEMES = ("file", "s3", "gs", "az")

SHARING = "share this folder with every node at the same path, or use a bucket (s3://, gs://, az://)"
"""The advice for a node that does not see the objects that another node wrote."""


class _MissingFolder(MemoryStore):
    """A local folder that does not exist: it reads as empty, and each write raises StoreError."""

    url: str


def join(url: str, *parts: str) -> str:
    """Return the URL or path of something below a URL or a path."""
    return "/".join([url.rstrip("/"), *parts])


def absolute(url: str) -> str:
    """Return a URL unchanged, and a path as an absolute path: other processes have other working folders."""
    return url if "://" in url else str(_folder(url))


def _folder(path: str) -> Path:
    """Return a path as an absolute one; raises StoreError if it starts with the home of an unknown user."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise StoreError(
            f"cannot open the store {path}: there is no such home folder; give an absolute path"
        ) from error


def local_folder(url: str) -> Path | None:
    """Return the folder of a path or a file:// URL, or None for a bucket; raises StoreError for another URL.

    A mistyped URL would otherwise be the path of a folder.
    """
    scheme, colon, rest = url.partition(":")
    if not colon or (scheme not in _SCHEMES and not rest.startswith("//")):
        return _folder(url)
    if not (
        rest.startswith("///")
        if scheme == "file"
        else re.fullmatch(r"//[^/?#]+(/[^?#]*)?", rest) and scheme in _SCHEMES
    ):
        raise StoreError(
            f"cannot open the store {url}; allowed: a folder, file:///FOLDER, s3://BUCKET/PATH, gs://BUCKET/PATH or "
            "az://CONTAINER/PATH"
        )
    return Path(rest[2:]) if scheme == "file" else None


def free_bytes(url: str) -> int | None:
    """Return the free space of a local store in bytes, or None for a bucket; raises StoreError if it is unknown."""
    folder = local_folder(url)
    with store_errors(f"cannot find the free space of {url}"):
        return None if folder is None else shutil.disk_usage(folder).free


def open_location(url: str, create: bool = False, **bucket_options: Any) -> Location:
    """Return the objects below a folder, or below a file://, s3://, gs:// or az:// URL.

    A local folder that does not exist is created if `create`. Otherwise it reads as empty, and each write to it raises
    StoreError, as do an invalid URL and a folder that cannot be created. `bucket_options` are obstore's for a bucket.
    """
    with store_errors(f"cannot open the store {url}"):
        folder = local_folder(url)
        if folder is None:
            return open_bucket(url, **bucket_options)
        if not create and not folder.exists():
            missing = _MissingFolder()
            missing.url = url
            return missing
        # An empty folder would look like a member of a Zarr group, so it is removed together with its last object.
        return LocalStore(prefix=folder, mkdir=True, automatic_cleanup=True)


def open_zarr_store(url: str, read_only: bool = False) -> ObjectStore[Any]:
    """Return the objects below a URL as a Zarr store."""
    location = open_location(url, create=not read_only)
    # Zarr accepts only obstore's own classes.
    return ObjectStore(MemoryStore() if isinstance(location, _MissingFolder) else location, read_only=read_only)


def put(location: Location, key: str, content: bytes) -> None:
    """Write an object; an existing one is replaced. Raises StoreError if a part of its key is a link."""
    with _writing(location, key):
        obstore.put(location, key, content)


_CONFLICT_PAUSES = (0.1, 0.5, 2.0, 5.0)  # seconds before an attempt to create an object again


def put_new(location: Location, key: str, content: bytes) -> bool:
    """Create an object and return True; if it exists already with other content, change nothing and return False.

    A bucket can create the object and lose its answer. The repeated request then meets the object of the first one, so
    the content decides: where the creator matters, it must be unique, for example by a random suffix.

    Amazon S3 also answers with a conflict (409) if another request for the same key is in flight. Such a conflict
    leaves no object if the other request fails, so the creation is then repeated.
    """
    with _writing(location, key):
        pauses = iter(_CONFLICT_PAUSES)
        while True:
            try:
                obstore.put(location, key, content, mode="create")
            except AlreadyExistsError:
                found, pause = get(location, key), next(pauses, None)
                if found is not None:
                    return found == content
                if pause is None:
                    raise
                time.sleep(pause)
                continue
            except BaseError:
                if get(location, key) != content:
                    raise
            return True


def get(location: Location, key: str) -> bytes | None:
    """Return an object's content, or None if it does not exist. Raises StoreError if a part of its key is a link."""
    with _reading(location, key):
        return bytes(location.get(key).bytes())
    return None


def get_range(location: Location, key: str, start: int, size: int) -> bytes | None:
    """Return a part of an object, or None if the object does not exist; raises as `get` does.

    It is shorter than `size` if the object ends before; StoreError is raised if the object ends before `start`.
    """
    with _reading(location, key):
        return bytes(location.get_range(key, start=start, length=size))
    return None


def get_all(location: Location, keys_of_objects: Iterable[str]) -> list[bytes | None]:
    """Return the contents of objects, each as `get` does; a bucket has a long latency, so several are read at once."""
    if isinstance(location, LocalStore):  # a disk answers before a thread would have started
        return [get(location, key) for key in keys_of_objects]
    with ThreadPoolExecutor(_READ_THREADS) as pool:
        return list(pool.map(partial(get, location), keys_of_objects))


def version(location: Location, key: str) -> str | None:
    """Return a string that changes whenever an object is written, or None if it does not exist."""
    with _reading(location, key):
        head = location.head(key)
        return str(head["e_tag"] or (head["last_modified"], head["size"]))
    return None


def written(location: Location, key: str) -> datetime | None:
    """Return the time at which an object was written, by the clock of the store; None if it does not exist."""
    with _reading(location, key):
        return obstore.head(location, key)["last_modified"]
    return None


def keys(location: Location, prefix: str = "") -> list[str]:
    """Return the keys of all objects below a prefix, sorted."""
    with store_errors(f"cannot list {prefix or 'the store'}"):
        if isinstance(location, LocalStore):
            return sorted(key for key, _ in _files(location, prefix))
        return sorted(item["path"] for item in _listed(location, prefix))


def sizes(location: Location, prefix: str = "") -> dict[str, int]:
    """Return the size in bytes of each object below a prefix, by its key."""
    with store_errors(f"cannot list {prefix or 'the store'}"):
        if isinstance(location, LocalStore):
            found = {}
            for key, entry in _files(location, prefix):
                with suppress(FileNotFoundError):  # removed since it was listed
                    found[key] = entry.stat(follow_symlinks=False).st_size
            return found
        return {item["path"]: item["size"] for item in _listed(location, prefix)}


def _listed(location: Location, prefix: str) -> list[Any]:
    """Return a listing; it is repeated if its answer cannot be read, which the library does for other requests only."""
    for attempts_left in (2, 1, 0):
        try:
            return [item for page in obstore.list(location, prefix or None) for item in page]
        except GenericError as error:
            if not attempts_left or "max_retries" in str(error).splitlines()[0]:  # the library has repeated it
                raise
    raise AssertionError


def links(location: Location, prefix: str = "") -> list[str]:
    """Return the keys of the links below a prefix of a folder, sorted; a bucket has none."""
    if not isinstance(location, LocalStore):
        return []
    with store_errors(f"cannot list {prefix or 'the store'}"):
        return sorted(key for key, entry in _entries(location, prefix, is_deep=True) if entry.is_symlink())


def unlink(location: Location, keys_of_links: Iterable[str]) -> None:
    """Remove links of a folder, and nothing behind them."""
    for key in keys_of_links:
        with store_errors(f"cannot remove the link {key}"):
            (_root(location) / key).unlink(missing_ok=True)


def _files(location: LocalStore, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the objects of a folder: no links, and nothing behind them, which the library would follow."""
    for key, entry in _entries(location, prefix, is_deep=True):
        if entry.is_file(follow_symlinks=False) and not _STAGED.fullmatch(entry.name):
            yield key, entry


def _entries(location: LocalStore, prefix: str, *, is_deep: bool) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield what lies below a prefix of a folder, with its key; of links, only themselves; raises as `refuse_link`."""
    refuse_link(location, prefix)
    root = _root(location)
    stack = ["".join(f"{part}/" for part in prefix.split("/") if part)]
    while stack:
        folder = stack.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    yield f"{folder}{entry.name}", entry
                    if is_deep and entry.is_dir(follow_symlinks=False):
                        stack.append(f"{folder}{entry.name}/")
        except (FileNotFoundError, NotADirectoryError):  # also a folder that was removed since it was listed
            continue


def refuse_link(location: Location, key: str) -> None:
    """Raise LinkedObjectError if an object, or a folder above it, is a link; the store's own folder may be one."""
    if not isinstance(location, LocalStore):
        return
    path, name = str(location.prefix), ""
    for part in key.split("/"):
        path, name = f"{path}/{part}", f"{name}/{part}".lstrip("/")
        if os.path.islink(path):
            raise LinkedObjectError(
                f"{name} is a link, and no link is followed in a store; link the store's own folder"
            )


def _root(location: LocalStore) -> Path:
    return Path(str(location.prefix))


def folders(location: Location, prefix: str) -> list[str]:
    """Return the names of the folders directly below a prefix, sorted; empty if the prefix does not exist."""
    with store_errors(f"cannot list {prefix}"), _missing_objects():
        if isinstance(location, LocalStore):
            found = _entries(location, prefix, is_deep=False)
            return sorted(entry.name for _, entry in found if entry.is_dir(follow_symlinks=False))
        paths = obstore.list_with_delimiter(location, prefix)["common_prefixes"]
        return sorted(path.rsplit("/", 1)[-1] for path in paths)
    return []


def move(location: Location, source: str, target: str) -> None:
    """Move an object; a missing source is ignored, so that a move can be repeated."""
    refuse_link(location, source)
    with _writing(location, target, f"cannot move {source}"), _missing_objects():
        obstore.rename(location, source, target)


def delete(location: Location, targets: list[str]) -> None:
    """Delete objects; missing ones are ignored."""
    if not targets:
        return
    for target in targets:
        refuse_link(location, target)
    with _writing(location, targets[0], "cannot delete"):
        try:
            obstore.delete(location, targets)
        except FileNotFoundError:
            # In a folder, the deletion stops at the first missing object; a bucket ignores missing objects.
            for target in targets:
                with suppress(FileNotFoundError):
                    obstore.delete(location, target)


def sweep_staged(url: str, seconds: float) -> None:
    """Remove the temporary files that writers of a local folder left, if they are older than so many seconds.

    The library writes KEY#1 and renames it to KEY; a process that was killed in between leaves KEY#1, which no listing
    shows. In a bucket nothing is left. The age is a difference of times of the folder's file system, because hosts that
    share the folder may have other clocks.
    """
    folder = local_folder(url)
    if folder is None:
        return
    with store_errors(f"cannot remove temporary files of {url}"):
        staged = [file for file in folder.rglob("*#*") if _STAGED.fullmatch(file.name)]
        if not staged:
            return
        with TemporaryFile(dir=folder) as now:
            latest = os.fstat(now.fileno()).st_mtime - seconds
        for file in staged:
            with suppress(FileNotFoundError):
                if file.stat().st_mtime <= latest:
                    file.unlink()


def remove_empty_folders(url: str) -> None:
    """Remove a local folder and the folders in it that contain no file; moved objects leave such folders behind."""
    folder = local_folder(url)
    for path, _, _ in os.walk(folder, topdown=False) if folder else ():
        with suppress(OSError):  # it contains a file
            os.rmdir(path)


@contextmanager
def _writing(location: Location, key: str, problem: str = "") -> Iterator[None]:
    """Convert errors as `store_errors` does, and refuse a folder that does not exist: other nodes would not read it."""
    if isinstance(location, _MissingFolder):
        raise StoreError(f"cannot write {key}: there is no folder {location.url} on node {gethostname()}; {SHARING}")
    refuse_link(location, key)
    with store_errors(problem or f"cannot write {key}"):
        yield


@contextmanager
def _reading(location: Location, key: str) -> Iterator[None]:
    """Convert errors as `store_errors` does, ignore a missing object, and refuse a link."""
    refuse_link(location, key)
    with store_errors(f"cannot read {key}"), _missing_objects():
        yield


@contextmanager
def _missing_objects() -> Iterator[None]:
    """Ignore a missing object, but not a missing bucket."""
    try:
        yield
    except FileNotFoundError as error:
        if is_missing_bucket(error):
            raise


@contextmanager
def store_errors(problem: str) -> Iterator[None]:
    """Convert the errors of obstore to StoreError, whose message starts with `problem`."""
    try:
        yield
    except (BaseError, NotImplementedError, OSError, ValueError) as error:
        raise StoreError(f"{problem}: {explanation(error)}") from error
