"""Route that returns the stored objects of a run's results, from which clients read them as from a store."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from theodolite.api.access import Reader
from theodolite.api.encoding import BINARY, answer_file
from theodolite.api.responses import FILE, UNCHANGED, problems_of
from theodolite.api.run_lookup import RunId, any_run
from theodolite.errors import ResultsNotFoundError
from theodolite.store.checksums import sha256
from theodolite.store.layout import COMPLETE, RUN_RECORD
from theodolite.store.manifest import is_captured, listed_checksums
from theodolite.store.objects import get
from theodolite.store.result_reader import verified_object

router = APIRouter(prefix="/v1/runs", tags=["runs"])

_RESPONSES = {
    200: {"description": "The object as it is stored; its ETag is its SHA-256.", "content": {BINARY: FILE}},
    **UNCHANGED,
    **problems_of(404, 409),
}


@router.get("/{run_id}/objects/{key:path}", response_class=Response, responses=_RESPONSES)
def run_object(
    request: Request,
    _caller: Reader,
    run_id: RunId,
    key: Annotated[str, Path(max_length=300, description="Key of the object in the run.", examples=[COMPLETE])],
) -> Response:
    """Return a stored object: run.json, COMPLETE, or an object of the results, whose keys COMPLETE lists.

    It returns no object of the capture, such as the texts of the prompts.
    """
    run, name = any_run(request, run_id), quote(key.rpartition("/")[2])
    record = get(run.location, key) if key in (RUN_RECORD, COMPLETE) else None
    if record is not None:
        return answer_file(request, sha256(record), name, BINARY, lambda: record)
    checksum = None if is_captured(key) else listed_checksums(run).get(key)
    if checksum is None:  # so no key that COMPLETE does not list reaches the store
        raise ResultsNotFoundError(f"{run_id} has no object {key!r} of its results; COMPLETE lists those that it has")
    return answer_file(request, checksum, name, BINARY, lambda: verified_object(run, key, checksum))
