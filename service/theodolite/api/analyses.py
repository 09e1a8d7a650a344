"""Route that describes the registry of analyses."""

from dataclasses import asdict
from functools import cache
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from theodolite.api.access import Reader
from theodolite.api.encoding import answer
from theodolite.api.responses import described
from theodolite.api.schemas import AnalysisList
from theodolite.digests import digest_of
from theodolite.groups import GROUPS, Group, Variable
from theodolite.query.curves import STATISTICS
from theodolite.query.profiles import PROFILES, Profile
from theodolite.version import __version__

router = APIRouter(prefix="/v1/analyses", tags=["analyses"])


@router.get("", responses=described(AnalysisList))
def list_analyses(request: Request, _caller: Reader) -> Response:
    """Return every analysis: title, required inputs, tables and variables."""
    return answer(request, digest_of(["analyses", __version__]), registry_content)


@cache
def registry_content() -> dict[str, Any]:
    """Return the registry in JSON's types, in the order of the report."""
    return {"items": [_group(group) for group in GROUPS.values()]}


def _group(group: Group) -> dict[str, Any]:
    names = ("name", "title", "chapter", "is_requestable", "options")
    variables = [_variable(group, variable) for variable in group.variables]
    profiles = [_profile(name, profile) for name, profile in PROFILES.items() if profile.group == group.name]
    labels = {dim: list(of_dim) for dim, of_dim in group.labels.items()}
    lists = {
        "needs": sorted(group.needs),
        "variables": variables,
        "tables": [asdict(table) for table in group.tables],
        "labels": labels,
        "profiles": profiles,
    }
    return {name: getattr(group, name) for name in names} | lists


def _profile(name: str, profile: Profile) -> dict[str, Any]:
    return {"name": name} | {key: getattr(profile, key) for key in ("variable", "dims", "description")}


def _variable(group: Group, variable: Variable) -> dict[str, Any]:
    item = {name: getattr(variable, name) for name in ("name", "dims", "units", "description", "dtype")}
    named = [name for name, one in STATISTICS.items() if (one.group, one.variable) == (group.name, variable)]
    return item | {"curves": named}
