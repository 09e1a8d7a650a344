"""Refuse query parameters that a route does not have."""

from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from theodolite.api.problems import Problem


async def refuse_unknown_parameters(request: Request) -> None:  # a coroutine needs no thread that computes
    """Raise Problem 422 if a query parameter does not exist; a misspelled one would otherwise be ignored."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    known = list(_names(route.dependant))
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        allowed = ", ".join(known) or "none"
        raise Problem(422, "unknown-parameter", f"{unknown[0]}: there is no such parameter; allowed: {allowed}")


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for dependency in dependant.dependencies:
        yield from _names(dependency)
