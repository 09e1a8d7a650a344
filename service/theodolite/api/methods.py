"""The HTTP methods that a path accepts, and the route of a request."""

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope


def methods_at(scope: Scope) -> list[str]:
    """Return the methods that the path of a request accepts, in alphabetical order; empty for an unknown path."""
    found: set[str] = set()
    for route in scope["app"].state.routes:
        match, _ = route.matches(scope)
        if match is not Match.NONE:
            found |= route.methods or set()
    return sorted(found | ({"HEAD"} if "GET" in found else set()) | ({"OPTIONS"} if found else set()))


def route_at(scope: Scope) -> APIRoute:
    """Return the route of the API for the path and the method of a request, which must exist."""
    routes = (route for route in scope["app"].state.routes if isinstance(route, APIRoute))
    return next(route for route in routes if route.matches(scope)[0] is Match.FULL)
