"""Read the bodies of requests within limits: their media type, their size, and the time in which they arrive."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.types import Message, Receive

from theodolite.api.problems import Problem

UPLOADS = "/v1/uploads"
"""The path of uploads of prompt files, the only bodies that are not JSON."""

UPLOAD_TYPE = "application/octet-stream"

BODY_BYTES = 2**20
"""Maximum size of a JSON body. A spec has a few kilobytes, but its sentences may be long."""

BODY_SECONDS = 10.0
"""Time in which a JSON body must arrive."""

UPLOAD_SECONDS = 60.0
"""Time in which an upload must arrive."""


DISCARD_BYTES, DISCARD_SECONDS = 2**18, 1.0
"""How much of the body of a refused request is discarded before the connection is closed, and for how long."""


@dataclass(frozen=True)
class BodyRule:
    """The limits of a body, and the advice for one that is too long."""

    media_type: str
    max_bytes: int
    seconds: float
    advice: str


def body_rule(path: str, upload_bytes: int) -> BodyRule:
    """Return the limits of the bodies at a path; `upload_bytes` is the maximum size of an upload."""
    if path == UPLOADS:
        advice = "split the file, or raise THEODOLITE_UPLOAD_BYTES"
        return BodyRule(UPLOAD_TYPE, upload_bytes, UPLOAD_SECONDS, advice)
    return BodyRule("application/json", BODY_BYTES, BODY_SECONDS, "shorten the spec")


def check_declared_length(headers: Mapping[str, str], rule: BodyRule) -> None:
    """Raise Problem 413 if the head of a request declares a body that is too long."""
    declared = headers.get("content-length", "0")
    if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > rule.max_bytes):
        raise _too_long(rule)


def check_type(headers: Mapping[str, str], rule: BodyRule) -> None:
    """Raise Problem 415 if a body has another media type."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != rule.media_type:
        raise Problem(415, "wrong-media-type", f"Content-Type: given {kind!r}; allowed: {rule.media_type}")


async def read_body(receive: Receive, rule: BodyRule) -> bytes:
    """Return the body; raise Problem 413 if it is too long, 408 if it arrives too slowly, and 400 if it has no end."""
    body = bytearray()
    try:
        async with asyncio.timeout(rule.seconds):
            while len(body) <= rule.max_bytes:
                message: Any = await receive()
                if message["type"] == "http.disconnect":
                    raise Problem(400, "body-incomplete", "the connection was closed before the end of the body")
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        detail = f"the body did not arrive within {rule.seconds:.0f} seconds; send the request again"
        raise Problem(408, "body-too-slow", detail) from None
    if len(body) > rule.max_bytes:
        raise _too_long(rule)
    return bytes(body)


async def discard_body(receive: Receive) -> None:
    """Discard a part of a body, without keeping it in memory.

    A close with unread bytes resets the connection, so that a client that still sends may lose the response.
    """
    discarded = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while discarded < DISCARD_BYTES and (message := await receive()).get("more_body", False):
                discarded += len(message["body"])


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first returns the body that was read, and then the messages of the server."""
    pending = [body]

    async def replayed() -> Message:
        return {"type": "http.request", "body": pending.pop(), "more_body": False} if pending else await receive()

    return replayed


def _too_long(rule: BodyRule) -> Problem:
    detail = f"the body is longer than the limit of {rule.max_bytes} bytes; {rule.advice}"
    return Problem(413, "body-too-long", detail)
