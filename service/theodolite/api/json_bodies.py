"""Read the bodies of requests as JSON, in a thread: a body with thousands of errors would delay all other responses."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ValidationError

from theodolite.api.encoding import JSON
from theodolite.api.problems import Problem, invalid_request
from theodolite.spec_file import first_problems, parse_json

Model = TypeVar("Model", bound=BaseModel)


def body_of(model: type[Model]) -> Callable[[Request], Awaitable[Model]]:
    """Return the dependency that reads a body as a model; it raises Problem 422 for an invalid one."""

    async def read(request: Request) -> Model:
        return await run_in_threadpool(_read, model, await request.body())

    return read


def described_body(schema: dict[str, Any], description: str, **content: Any) -> dict[str, Any]:
    """Return OpenAPI's description of a body of JSON, with its schema and, for example, an `example`."""
    return {
        "requestBody": {
            "required": True,
            "description": description,
            "content": {JSON: {"schema": schema, **content}},
        }
    }


def json_object(body: bytes) -> dict[str, Any]:
    """Return the object in a body; raises Problem 422 if it is not a JSON object, has NaN, or has a key twice."""
    try:
        data = parse_json(body)
    except ValueError as error:
        raise Problem(422, "invalid-json", f"the body cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise Problem(422, "invalid-json", "the body is not a JSON object; /openapi.json describes it")
    return data


def _read(model: type[Model], body: bytes) -> Model:
    try:
        return model.model_validate(json_object(body))
    except ValidationError as error:
        raise invalid_request(first_problems(error), error.error_count()) from error
