"""Define the route that stores a prompt file, so that a spec can name it."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from theodolite.api.access import Submitter
from theodolite.api.bodies import UPLOAD_TYPE, UPLOADS
from theodolite.api.encoding import JSON, to_json
from theodolite.api.job_schemas import Upload
from theodolite.api.problems import Problem
from theodolite.spec_parts import FILE_TYPES
from theodolite.store.uploads import store_upload

router = APIRouter(tags=["jobs"])

FileType = Annotated[
    Literal[FILE_TYPES],  # type: ignore[valid-type]  # the type checker cannot evaluate FILE_TYPES
    Query(alias="type", description="The type of the file, which is the end of its name."),
]
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The content of the prompt file.",
        "content": {UPLOAD_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post(UPLOADS, status_code=201, responses={201: {"model": Upload}}, openapi_extra=_BODY)
async def upload_prompts(request: Request, _caller: Submitter, kind: FileType) -> Response:
    """Store a prompt file, and return the `source` of a prompt set that reads it. The same file has the same source.

    The service does not read the prompts; the survey job refuses a file that it cannot read.
    """
    content = await request.body()
    if not content:
        raise Problem(422, "empty-upload", "the body is empty; send the content of a prompt file")
    source = await run_in_threadpool(store_upload, request.app.state.settings.store, content, kind)
    return Response(to_json({"source": source, "bytes": len(content)}), 201, media_type=JSON)
