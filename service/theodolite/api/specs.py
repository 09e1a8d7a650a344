"""Define the routes of specs: their schema, and how a survey of them would run."""

import json
from functools import cache
from typing import Annotated, Any

import anyio.to_thread
import orjson
from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool

from theodolite.api.access import Reader, Submitter
from theodolite.api.encoding import JSON, to_json
from theodolite.api.job_schemas import CheckedSpec, Estimate, EstimateState, ParsedText, Sentence, SpecText
from theodolite.api.json_bodies import body_of, described_body, json_object
from theodolite.api.openapi import SPEC_SCHEMA
from theodolite.api.problems import Problem
from theodolite.api.responses import problems_of
from theodolite.api.run_lookup import RunId, complete_run
from theodolite.api.spec_policy import check_submission
from theodolite.api.upload_quota import check_quota
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.spec_file import parse_spec, parse_text
from theodolite.store.uploads import texts_of, upload_name, with_uploaded_texts
from theodolite.submission.estimates import estimate_survey, spec_content
from theodolite.submission.sentences import sentence_spec

router = APIRouter(prefix="/v1/spec", tags=["jobs"])
schema_router = APIRouter(prefix="/v1", tags=["jobs"])
run_router = APIRouter(prefix="/v1/runs", tags=["jobs"])

_MAX_ESTIMATES, _MAX_OWN_ESTIMATES = 4, 2
"""Maximum numbers of estimates that the cluster computes at the same time, in all and of one caller.

Each takes about a gigabyte of the cluster's head.
"""

_YAML_CHARACTERS = 100_000
"""Maximum length of YAML; reading it takes up to a second."""

_PARSES, _ESTIMATES = anyio.CapacityLimiter(1), anyio.CapacityLimiter(1)
"""Long texts and a slow cluster must not occupy the threads of other responses, so each has a thread of its own."""

_EXAMPLE = {
    "model": {"id": "smollm2-135m-instruct"},
    "prompts": {
        "harmful": {"source": "builtin:harmful"},
        "harmless": {"source": "builtin:harmless"},
    },
    "contrasts": {"refusal": {"positive": "harmful", "negative": "harmless", "paired": True}},
    "analyses": ["curves", "separation", "permutations"],
}
SPEC_BODY = described_body(SPEC_SCHEMA, "A survey's spec as JSON.", example=_EXAMPLE)


async def spec_of_body(request: Request) -> SurveySpec:
    """Return the spec in a request's body; raises SpecError, and Problem as `json_object` does."""
    return await run_in_threadpool(_spec_of, await request.body())


def _spec_of(body: bytes) -> SurveySpec:
    return parse_spec(json_object(body))


SpecBody = Annotated[SurveySpec, Depends(spec_of_body)]


@schema_router.get("/spec.schema.json")
async def spec_schema() -> dict[str, Any]:
    """Return the JSON Schema of specs, with a description of every field."""
    return _schema()


@cache
def _schema() -> dict[str, Any]:
    return SurveySpec.model_json_schema()


@router.post("/check", responses={200: {"model": CheckedSpec}}, openapi_extra=SPEC_BODY)
def check_spec(request: Request, _caller: Reader, spec: SpecBody) -> dict[str, Any]:
    """Validate a spec without submitting it; the `detail` of 422, 403 and 413 describes the error in it."""
    return _checked(request, spec)


@router.post(
    "/parse",
    responses={200: {"model": ParsedText}},
    openapi_extra=described_body(SpecText.model_json_schema(), "The text of a spec."),
)
async def parse_spec_text(_caller: Reader, given: Annotated[SpecText, Depends(body_of(SpecText))]) -> Response:
    """Return the mapping in a text of YAML or JSON. It need not be a valid spec."""
    return await anyio.to_thread.run_sync(_mapping_in, given.text, limiter=_PARSES)


def _mapping_in(text: str) -> Response:
    spec = parse_text(text, yaml_characters=_YAML_CHARACTERS)
    try:
        json.dumps(spec, allow_nan=False)
        return Response(orjson.dumps({"spec": spec}, option=orjson.OPT_PASSTHROUGH_DATETIME), media_type=JSON)
    except (TypeError, ValueError) as error:
        detail = f"the text has a value that a spec cannot have: {error}; put names, texts and dates in quotes"
        raise Problem(422, "not-json", detail) from error


@router.post("/estimate", responses={200: {"model": Estimate}, 202: {"model": EstimateState}}, openapi_extra=SPEC_BODY)
async def estimate_spec(request: Request, caller: Submitter, spec: SpecBody) -> Response:
    """Estimate the tokens, memory, bytes and time of a survey on the cluster, which takes up to half a minute.

    202 means that the cluster computes the estimate: send the same request again after the seconds in Retry-After.
    """
    settings: Settings = request.app.state.settings
    found = await anyio.to_thread.run_sync(_estimate, settings, spec, caller.id, limiter=_ESTIMATES)
    if found is None:
        return Response(to_json({"state": "running"}), 202, {"Retry-After": "2"}, JSON)
    return Response(to_json(found), media_type=JSON)


def _estimate(settings: Settings, spec: SurveySpec, owner: str) -> dict[str, Any] | None:
    check_submission(spec, settings)
    content = spec_content(spec)
    check_quota(settings, owner, {**texts_of(spec), upload_name(content, "json"): content})
    return estimate_survey(settings, spec, owner, _check_room)


def _check_room(running: int, own: int) -> None:
    if running >= _MAX_ESTIMATES or own >= _MAX_OWN_ESTIMATES:
        detail = f"the cluster computes {running} estimates, {own} of them of this caller"
        allowed = f"allowed: {_MAX_ESTIMATES}, and {_MAX_OWN_ESTIMATES} of one caller"
        raise Problem(429, "estimate-limit", f"{detail}; {allowed}; try again later", {"Retry-After": "10"})


@run_router.post(
    "/{run_id}/sentence-spec",
    responses={200: {"model": CheckedSpec}, **problems_of(404, 409)},
    openapi_extra=described_body(Sentence.model_json_schema(), "The sentence of a small survey."),
)
def spec_of_sentence(
    request: Request, _caller: Reader, run_id: RunId, given: Annotated[Sentence, Depends(body_of(Sentence))]
) -> dict[str, Any]:
    """Return the spec of a survey of a sentence's trajectory in the run's model; `POST /v1/jobs` submits it."""
    run = complete_run(request, run_id)
    return _checked(request, sentence_spec(run.record, given.sentence))


def _checked(request: Request, spec: SurveySpec) -> dict[str, Any]:
    check_submission(spec, request.app.state.settings)
    job_id = with_uploaded_texts(spec).digest()
    has_cluster = request.app.state.settings.jobs_url is not None
    content = spec.model_dump(mode="json", exclude_none=True)
    return {"valid": True, "id": job_id, "has_cluster": has_cluster, "spec": content}
