"""The HTTP methods that a path accepts."""

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
