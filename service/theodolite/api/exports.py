"""Route that exports a contrast's directions as a file."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from theodolite.api.access import Reader
from theodolite.api.encoding import BINARY, JSON, answer_file
from theodolite.api.responses import FILE, UNCHANGED, problems_of
from theodolite.api.run_lookup import RunId, complete_run, digest_over
from theodolite.export import FORMATS, encode_directions, file_name
from theodolite.query.exports import GROUPS_READ
from theodolite.spec_parts import LABEL

router = APIRouter(prefix="/v1/runs", tags=["runs"])

Format = Literal[FORMATS]  # type: ignore[valid-type]  # the type checker cannot evaluate FORMATS

_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The file: unit vectors with their metadata; npy has no metadata, and json only the metadata.",
        "content": {BINARY: FILE, JSON: {"schema": {"type": "object"}}},
    },
    **UNCHANGED,
    **problems_of(404, 409),
}


@router.get("/{run_id}/export/{contrast}", response_class=Response, responses=_RESPONSES)
def export(
    request: Request,
    _caller: Reader,
    run_id: RunId,
    contrast: Annotated[
        str, Path(max_length=600, description="Contrast, or several with commas between them.", examples=["refusal"])
    ],
    site: Annotated[str, Query(max_length=48, description="Site in the block.")] = "resid_pre",
    layer: Annotated[
        list[Annotated[int, Query(ge=0, le=10_000)]] | None,
        Query(description="0-based block; repeat it for several; by default all that the format can store."),
    ] = None,
    position: Annotated[
        str | None,
        Query(pattern=LABEL, description="Token position from the end, or its name; by default the last measured one."),
    ] = None,
    format: Annotated[
        Format, Query(description="gguf: a control vector of llama.cpp; vllm-lens: a SteeringVector; json: metadata.")
    ] = "safetensors",
) -> Response:
    """Return a contrast's directions as a file for other tools, with the same bytes as `theodolite run export`."""
    run = complete_run(request, run_id)
    layers = layer or ()

    def content() -> bytes:
        return encode_directions(run, contrast, site, layers, position, format)

    digest = f"{digest_over(run, GROUPS_READ)}-{format}"
    name = file_name(run_id, contrast, site, layers, format)
    return answer_file(request, digest, name, JSON if name.endswith(".json") else BINARY, content)
