"""Route that returns the stored objects of a run, from which clients read them as from a store."""

import re
from collections.abc import Callable
from functools import partial
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Header, Path, Request
from fastapi.responses import Response

from theodolite.api.access import Caller, Reader
from theodolite.api.encoding import BINARY, answer_file
from theodolite.api.problems import Problem
from theodolite.api.responses import FILE, UNCHANGED, problems_of
from theodolite.api.run_lookup import RunId, any_run
from theodolite.errors import ResultsNotFoundError
from theodolite.settings import Settings
from theodolite.sites import Site
from theodolite.store.activations import committed_bytes
from theodolite.store.checksums import sha256
from theodolite.store.commits import array_key, read_commit
from theodolite.store.layout import COMPLETE, RUN_RECORD
from theodolite.store.manifest import captured_object, is_captured, listed_checksums
from theodolite.store.objects import get, get_range
from theodolite.store.records import Commit
from theodolite.store.result_reader import verified_object
from theodolite.store.runs import Run

router = APIRouter(prefix="/v1/runs", tags=["runs"])

_SCOPE = "activations"

_RESPONSES = {
    200: {"description": "The object as it is stored; its ETag is its SHA-256.", "content": {BINARY: FILE}},
    206: {"description": "The requested bytes of an array of activations.", "content": {BINARY: FILE}},
    **UNCHANGED,
    **problems_of(403, 404, 409, 413),
}


@router.get("/{run_id}/objects/{key:path}", response_class=Response, responses=_RESPONSES)
def run_object(
    request: Request,
    caller: Reader,
    run_id: RunId,
    key: Annotated[str, Path(max_length=300, description="Key of the object in the run.", examples=[COMPLETE])],
    range: Annotated[
        str | None, Header(description="Bytes of an array of activations, bytes=FIRST-LAST; other objects come whole.")
    ] = None,
) -> Response:
    """Return a stored object: run.json, COMPLETE, an object that COMPLETE lists, or activations of a shard.

    What the capture wrote (prompts, tokens, commit records and activations) also needs the scope activations.
    """
    run, name = any_run(request, run_id), quote(key.rpartition("/")[2])
    record = get(run.location, key) if key in (RUN_RECORD, COMPLETE) else None
    if record is not None:
        return answer_file(request, sha256(record), name, BINARY, lambda: record)
    checksum = listed_checksums(run).get(key)
    if not is_captured(key) and checksum is not None:
        return answer_file(request, checksum, name, BINARY, lambda: verified_object(run, key, checksum))
    commit = None if checksum is not None else _commit_of(run, key)
    if checksum is None and commit is None:  # so no other key reaches the store
        raise ResultsNotFoundError(f"{run_id} has no object {key!r} of its results; COMPLETE lists those that it has")
    most = _most_bytes(caller, request.app.state.settings)
    if commit is None:
        return answer_file(request, str(checksum), name, BINARY, _bounded(partial(captured_object, run, key), most))
    site = key.split("/")[2]

    def whole() -> bytes:
        _check_size(sum(size for size, _ in commit.layers.get(site, ())), most)  # before a large shard is read
        return _bounded(partial(committed_bytes, run, commit, site), most)()

    chosen = re.fullmatch(r"bytes=(\d{1,15})-(\d{1,15})", range or "")
    if chosen is None or (start := int(chosen[1])) > (last := int(chosen[2])):
        return answer_file(request, commit.checksums[site], name, BINARY, whole)
    _check_size(last + 1 - start, most)
    content = get_range(run.location, key, start, last + 1 - start)
    if not content:
        raise ResultsNotFoundError(f"{run_id} has no such bytes of {key!r}")
    headers = {"Content-Range": f"bytes {start}-{start + len(content) - 1}/*", "Content-Encoding": "identity"}
    return Response(content, 206, headers, BINARY)


def _commit_of(run: Run, key: str) -> Commit | None:
    """Return the commit record of the shard whose activations are at a key, or None if they are at no shard's key."""
    found = re.fullmatch(r"[^/]+/([^/]+)/([^/]+)/c/(\d{1,9})[/0]+", key)
    if found is None or found[1] not in run.record.sets or found[2] not in map(str, run.record.spec.capture.all_sites):
        return None
    if int(found[3]) >= run.record.bounds(found[1]).n_stored:
        return None
    commit = read_commit(run, found[1], int(found[3]))
    return commit if array_key(commit, Site(found[2])) == key else None


def _most_bytes(caller: Caller, settings: Settings) -> int:
    """Return the most bytes of a response with captured objects; raises Problem 403 if the caller may read none."""
    if _SCOPE not in caller.scopes:
        scopes = " and ".join(caller.scopes)
        raise Problem(403, "scope", f"the token has the scope {scopes}, but activations need the scope {_SCOPE}")
    if not settings.prompts_shown:
        raise Problem(
            403, "hidden", "this service shows no prompts (THEODOLITE_PROMPTS_SHOWN), and so sends no activations"
        )
    if not settings.activation_bytes:
        raise Problem(403, "hidden", "this service sends no activations (THEODOLITE_ACTIVATION_BYTES is 0)")
    return settings.activation_bytes


def _bounded(read: Callable[[], bytes], most: int) -> Callable[[], bytes]:
    def content() -> bytes:
        found = read()
        _check_size(len(found), most)
        return found

    return content


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise Problem(
            413,
            "too-large",
            f"the response would have {size:,} bytes of activations; this service sends at most {most:,} at once "
            "(THEODOLITE_ACTIVATION_BYTES)",
        )
