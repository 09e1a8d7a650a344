"""Tokens of the service: who may read, and who may submit jobs. What is stored cannot be turned back into a token."""

import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from theodolite.errors import StoreError
from theodolite.store.objects import Location, delete, get, keys, open_location, put_new

SCOPES = ("read", "submit")

_FOLDER = "tokens"
_MADE = f"{_FOLDER}/made"
_PREFIX = "theodolite"


@dataclass(frozen=True)
class TokenRecord:
    """What is known of a token.

    Attributes:
        id: 12 hex digits, the token's middle part; no secret.
        label: what it is for.
        scopes: what it may do.
        sha256: of the whole token. It holds 256 random bits, so a slow hash would protect nothing more.
        created: when, ISO 8601.
        expires: from when on it counts no more; None is never.
    """

    id: str
    label: str
    scopes: tuple[str, ...]
    sha256: str
    created: str
    expires: str | None

    def is_expired(self) -> bool:
        """Return whether it counts no more."""
        return self.expires is not None and datetime.fromisoformat(self.expires) <= datetime.now(UTC)


def create_token(
    store: str, scopes: Sequence[str], label: str = "", days: int | None = None
) -> tuple[str, TokenRecord]:
    """Make a token, and return it, which happens once, and what is stored of it.

    Args:
        store: the store that the service answers from.
        scopes: some of SCOPES.
        label: what it is for.
        days: how long it counts; None is for ever.

    Raises:
        StoreError: the store cannot be written.
    """
    now, short = datetime.now(UTC).replace(microsecond=0), secrets.token_hex(6)
    token = f"{_PREFIX}_{short}_{secrets.token_urlsafe(32)}"
    expires = None if days is None else (now + timedelta(days=days)).isoformat()
    record = TokenRecord(short, label, tuple(scopes), _hash(token), now.isoformat(), expires)
    location = open_location(store, create=True)
    put_new(location, _MADE, b"")
    put_new(location, _key(short), json.dumps(asdict(record)).encode())
    return token, record


def list_tokens(store: str) -> list[TokenRecord]:
    """Return all tokens of a store, oldest first."""
    location = open_location(store)
    found = [_read(location, key) for key in keys(location, _FOLDER) if key != _MADE]
    return sorted((record for record in found if record), key=lambda record: record.created)


def had_tokens(store: str) -> bool:
    """Return whether a token was ever made: such a store is never open again, not even when the last one is revoked."""
    return _MADE in keys(open_location(store), _FOLDER)


def revoke_token(store: str, token_id: str) -> bool:
    """Remove a token by its id; return whether there was one."""
    location = open_location(store)
    there = _key(token_id) in keys(location, _FOLDER)
    delete(location, [_key(token_id)] if there else [])
    return there


def find_token(records: Sequence[TokenRecord], token: str) -> TokenRecord | None:
    """Return the record of a token, or None; every record is compared, in constant time."""
    given, found = _hash(token), None
    for record in records:
        if hmac.compare_digest(record.sha256, given):
            found = record
    return found


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _key(token_id: str) -> str:
    return f"{_FOLDER}/{token_id}.json"


def _read(location: Location, key: str) -> TokenRecord | None:
    content = get(location, key)
    if content is None:  # revoked just now
        return None
    try:
        data = json.loads(content)
        record = TokenRecord(**{**data, "scopes": tuple(data["scopes"])})
        record.is_expired()  # a date that cannot be compared raises here
        bytes.fromhex(record.sha256)
        return record
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{key} is not a token's record: {error}; remove it") from error
