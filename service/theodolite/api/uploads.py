"""Define the routes of uploads: store a prompt file, so that a spec can name it, list those of a caller, delete one."""

from datetime import timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from theodolite.api.access import Submitter
from theodolite.api.bodies import UPLOAD_TYPE, UPLOADS
from theodolite.api.encoding import JSON, to_json
from theodolite.api.job_schemas import Upload, UploadList
from theodolite.api.paging import Cursor, Limit, next_cursor, start_of
from theodolite.api.problems import Problem
from theodolite.api.responses import problems_of
from theodolite.api.upload_quota import check_quota
from theodolite.settings import Settings
from theodolite.spec_parts import FILE_TYPES, UPLOAD
from theodolite.store.upload_owners import OwnedUpload, owned_uploads, owners_of, remove_upload
from theodolite.store.uploads import store_upload, upload_name
from theodolite.submission.surveys import unfinished_jobs, uploads_in

router = APIRouter(tags=["jobs"])

FileType = Annotated[
    Literal[FILE_TYPES],  # type: ignore[valid-type]  # the type checker cannot evaluate FILE_TYPES
    Query(alias="type", description="The type of the file, which is the end of its name."),
]
UploadName = Annotated[str, Path(pattern=f"^{UPLOAD.pattern}$", description="The source without `upload:`.")]
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The content of the prompt file.",
        "content": {UPLOAD_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post(UPLOADS, status_code=201, responses={201: {"model": Upload}}, openapi_extra=_BODY)
async def upload_prompts(request: Request, caller: Submitter, kind: FileType) -> Response:
    """Store a prompt file, and return the `source` of a prompt set that reads it. The same file has the same source.

    The service does not read the prompts; the survey job refuses a file that it cannot read.
    """
    content = await request.body()
    if not content:
        raise Problem(422, "empty-upload", "the body is empty; send the content of a prompt file")
    source = await run_in_threadpool(_store, request.app.state.settings, content, kind, caller.id)
    return Response(to_json({"source": source, "bytes": len(content)}), 201, media_type=JSON)


def _store(settings: Settings, content: bytes, kind: str, owner: str) -> str:
    check_quota(settings, owner, {upload_name(content, kind): content})
    return store_upload(settings.store, content, kind, owner)


@router.get(UPLOADS, responses={200: {"model": UploadList}, **problems_of(409)})
def list_uploads(request: Request, caller: Submitter, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Return the uploads of this token, last uploaded first."""
    settings: Settings = request.app.state.settings
    owned, start = owned_uploads(settings.store, caller.id), start_of(cursor)
    items = [_content(one, settings.upload_days) for one in owned[start : start + limit]]
    return Response(to_json({"items": items, "next": next_cursor(start + limit, len(owned))}), media_type=JSON)


def _content(upload: OwnedUpload, days: int) -> dict[str, Any]:
    expires = upload.uploaded and upload.uploaded + timedelta(days=days)
    times = {"uploaded": upload.uploaded, "expires": expires}
    return {
        "source": f"upload:{upload.name}",
        "bytes": upload.size,
        **{name: when and when.isoformat() for name, when in times.items()},
    }


@router.delete(f"{UPLOADS}/{{upload}}", status_code=204, response_class=Response, responses=problems_of(404, 409))
def delete_upload(request: Request, caller: Submitter, upload: UploadName) -> None:
    """Delete an upload of this token. If other tokens have uploaded the same file, it stays theirs."""
    settings: Settings = request.app.state.settings
    owners = owners_of(settings.store, upload)
    if caller.id not in owners:
        detail = f"this token has no upload {upload[:12]}…; GET {UPLOADS} lists its uploads"
        raise Problem(404, "upload-not-found", detail)
    is_last = owners == {caller.id}
    reading = is_last and unfinished_jobs(settings, request.app.state.cache, lambda job: upload in uploads_in(job.spec))
    if reading:
        detail = f"survey job {reading[0].id[:12]}… reads upload {upload[:12]}…, and has not ended; stop it, or wait"
        raise Problem(409, "upload-in-use", detail)
    remove_upload(settings.store, upload, caller.id)
