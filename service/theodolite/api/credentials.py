"""Create, list and revoke the credentials of a service; they let callers read runs or submit survey jobs.

The store has only the hash of each bearer token, so reading the store reveals no token.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from theodolite.errors import StoreError
from theodolite.store.objects import Location, delete, get, keys, open_location, put, put_new

SCOPES = ("read", "submit", "admin")

_FOLDER = "tokens"
_USES = "tokens-used"  # another folder, because every object of the first one must be a credential
_EVER_CREATED = f"{_FOLDER}/made"
_PREFIX = "theodolite"


@dataclass(frozen=True)
class Credential:
    """The stored data of a bearer token.

    Attributes:
        id: 12 hex digits, the middle part of the token; not secret.
        label: purpose of the token.
        scopes: scopes of the token, some of SCOPES.
        sha256: hash of the whole token. The token has 256 random bits, so a slow hash would not be safer.
        created: time of creation, ISO 8601.
        expires: time of expiry, ISO 8601; None means that the token does not expire.
    """

    id: str
    label: str
    scopes: tuple[str, ...]
    sha256: str
    created: str
    expires: str | None

    def is_expired(self) -> bool:
        """Return whether the token has expired."""
        return self.expires is not None and datetime.fromisoformat(self.expires) <= datetime.now(UTC)


def create_credential(
    store: str, scopes: Sequence[str], label: str = "", days: int | None = None
) -> tuple[str, Credential]:
    """Create a bearer token and store its credential; return both. The token cannot be read again.

    Args:
        store: URL of the service's store.
        scopes: some of SCOPES.
        label: purpose of the token.
        days: validity in days; None means that the token does not expire.

    Raises:
        StoreError: the store cannot be written.
    """
    now, short = datetime.now(UTC).replace(microsecond=0), secrets.token_hex(6)
    token = f"{_PREFIX}_{short}_{secrets.token_urlsafe(32)}"
    expires = None if days is None else (now + timedelta(days=days)).isoformat()
    credential = Credential(short, label, tuple(scopes), _hash(token), now.isoformat(), expires)
    location = open_location(store, create=True)
    put_new(location, _EVER_CREATED, b"")
    put_new(location, _key(short), json.dumps(asdict(credential)).encode())
    return token, credential


def list_credentials(store: str) -> list[Credential]:
    """Return all credentials of a store, oldest first."""
    location = open_location(store)
    stored = [_read(location, key) for key in keys(location, _FOLDER) if key != _EVER_CREATED]
    return sorted((credential for credential in stored if credential), key=lambda credential: credential.created)


def had_credentials(store: str) -> bool:
    """Return whether the store ever had a credential; its service then requires a token even if all are revoked."""
    return _EVER_CREATED in keys(open_location(store), _FOLDER)


def revoke_credential(store: str, credential_id: str) -> bool:
    """Remove a credential by its id; return whether it existed."""
    location = open_location(store)
    exists = _key(credential_id) in keys(location, _FOLDER)
    if exists:  # first the credential: `store_use` then removes what it writes after this
        delete(location, [_key(credential_id)])
        delete(location, [_use_key(credential_id)])
    return exists


def store_use(store: str, credential_id: str, when: datetime) -> None:
    """Store when a token was used, by the hour; raises StoreError if the store cannot be written."""
    location = open_location(store)
    put(location, _use_key(credential_id), hour_of(when).encode())
    if get(location, _key(credential_id)) is None:  # revoked in the meantime
        delete(location, [_use_key(credential_id)])


def last_uses(store: str) -> dict[str, str]:
    """Return the hour of the last stored use of each token, ISO 8601, by its id; unused tokens are missing."""
    location = open_location(store)
    contents = {key: get(location, key) for key in keys(location, _USES)}
    return {key.removeprefix(f"{_USES}/"): hour for key, content in contents.items() if (hour := _hour(content))}


def hour_of(when: datetime) -> str:
    """Return a time in UTC, ISO 8601, without its minutes and seconds."""
    return when.astimezone(UTC).replace(minute=0, second=0, microsecond=0).isoformat()


def find_credential(credentials: Sequence[Credential], token: str) -> Credential | None:
    """Return the credential of a token, or None; every credential is compared, in constant time."""
    given, match = _hash(token), None
    for credential in credentials:
        if hmac.compare_digest(credential.sha256, given):
            match = credential
    return match


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _key(credential_id: str) -> str:
    return f"{_FOLDER}/{credential_id}.json"


def _use_key(credential_id: str) -> str:
    return f"{_USES}/{credential_id}"


def _hour(content: bytes | None) -> str | None:
    """Return a stored hour, or None if it cannot be read: a list of tokens must not fail because of it."""
    try:
        return None if content is None else hour_of(datetime.fromisoformat(content.decode()))
    except ValueError:
        return None


def _read(location: Location, key: str) -> Credential | None:
    content = get(location, key)
    if content is None:  # revoked since the listing
        return None
    try:
        data = json.loads(content)
        credential = Credential(**{**data, "scopes": tuple(data["scopes"])})
        credential.is_expired()  # raises for a date without a time zone
        bytes.fromhex(credential.sha256)
        return credential
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{key} is not a credential: {error}; remove it") from error
