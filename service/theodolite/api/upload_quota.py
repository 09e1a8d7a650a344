"""Limit the bytes that the uploads of a caller, and those of the store, may have."""

from collections.abc import Mapping

from theodolite.api.bodies import BODY_BYTES
from theodolite.api.problems import Problem
from theodolite.settings import Settings
from theodolite.store.upload_owners import names_of, upload_sizes

OF_CALLER, IN_STORE = 16, 256
"""How many uploads of the maximum size a caller may have, and the store."""

LEAST = 2**16
"""The bytes that a smaller upload counts: each takes an object of the store, and time in each listing."""


def check_quota(settings: Settings, owner: str, contents: Mapping[str, bytes]) -> None:
    """Raise Problem 413 if a caller may not store these uploads, given by name; those that exist need no room."""
    if not contents:
        return
    stored, own = upload_sizes(settings.store), names_of(settings.store, owner)
    largest = max(settings.upload_bytes, BODY_BYTES)  # a body of JSON may have prompts too
    given = {name: len(content) for name, content in contents.items()}
    _check("this caller has", {name: stored.get(name, 0) for name in own}, given, OF_CALLER * largest)
    _check("the store has", stored, given, IN_STORE * largest)


def _check(subject: str, stored: Mapping[str, int], given: Mapping[str, int], allowed: int) -> None:
    used = sum(map(_counted, stored.values()))
    needed = sum(_counted(size) for name, size in given.items() if name not in stored)
    if needed and used + needed > allowed:
        detail = f"{subject} uploads of {used} bytes, this one counts {needed}, and {allowed} are allowed"
        advice = "delete uploads (DELETE /v1/uploads/NAME), or raise THEODOLITE_UPLOAD_BYTES"
        raise Problem(413, "upload-quota", f"{detail} (an upload counts at least {LEAST}); {advice}")


def _counted(size: int) -> int:
    return max(size, LEAST)
