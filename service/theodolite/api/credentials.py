"""Create, list and revoke the credentials of a service; they let callers read runs or submit survey jobs.

The store has only the hash of each bearer token, so reading the store reveals no token.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, Field, TypeAdapter

from theodolite.store.objects import Location, delete, get, keys, open_location, put, put_new, sizes
from theodolite.store.pieces import fields_of, record

SCOPES = ("read", "submit", "admin", "activations")

_FOLDER = "tokens"
_USES = "tokens-used"  # another folder, because every object of the first one must be a credential
_EVER_CREATED = f"{_FOLDER}/made"
_PREFIX = "theodolite"
_LARGEST = 16 * 2**10  # bytes of a credential


def _with_zone(when: str) -> str:
    if datetime.fromisoformat(when).tzinfo is None:
        raise ValueError("a time without its zone")
    return when


_Time = Annotated[str, AfterValidator(_with_zone)]


@dataclass(frozen=True)
class Credential:
    """The stored data of a bearer token.

    Attributes:
        id: 12 hex digits, the middle part of the token; not secret.
        label: purpose of the token.
        scopes: scopes of the token, some of SCOPES.
        token_sha256: hash of the whole token. The token has 256 random bits, so a slow hash would not be safer.
        created: time of creation, ISO 8601.
        expires: time of expiry, ISO 8601; None means that the token does not expire.
    """

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    label: str
    scopes: tuple[Annotated[str, Field(pattern=rf"^({'|'.join(SCOPES)})$")], ...]
    token_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    created: _Time
    expires: _Time | None

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
    put_new(location, _key(short), record(_key(short), asdict(credential)))
    return token, credential


def list_credentials(store: str) -> list[Credential]:
    """Return all credentials of a store, oldest first, without damaged ones."""
    stored = _stored(open_location(store)).values()
    return sorted((credential for credential in stored if credential), key=lambda credential: credential.created)


def damaged_credentials(store: str) -> list[str]:
    """Return the keys of the objects among the credentials that are none, or not the one that their key names."""
    return sorted(key for key, credential in _stored(open_location(store)).items() if credential is None)


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
        if hmac.compare_digest(credential.token_sha256, given):
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


def _stored(location: Location) -> dict[str, Credential | None]:
    """Return the credential of each object, by its key; None for a damaged one, whose token is then unknown.

    A copy under another key is damaged too: else it would survive the revocation of its id.
    """
    found: dict[str, Credential | None] = {}
    for key, size in sizes(location, _FOLDER).items():
        if key == _EVER_CREATED:
            continue
        content = get(location, key) if size <= _LARGEST else b""
        if content is None:  # revoked since the listing
            continue
        try:
            found[key] = _CREDENTIAL.validate_python(fields_of(key, content))
        except ValueError:
            found[key] = None
    return found


_CREDENTIAL = TypeAdapter(Credential)
