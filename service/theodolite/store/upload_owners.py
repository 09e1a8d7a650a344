"""Who uploaded which prompt file, and when.

    upload-owners/OWNER/NAME.json    a record of `theodolite.store.pieces`; the file is uploads/NAME

A file can have several owners, because the same content has the same name. It stays until it has none.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from theodolite.store.objects import Location, delete, get_all, keys, open_location, put, sizes
from theodolite.store.pieces import fields_of, record

LOCAL = "local"
"""The owner of what the command line stores, and a service without bearer tokens."""

UPLOADS = "uploads"

_OWNERS = "upload-owners"


@dataclass(frozen=True)
class OwnedUpload:
    """A prompt file of one owner.

    Attributes:
        name: name of the file, `SHA256.TYPE`.
        owner: id of the bearer token that uploaded it, or `local`.
        size: size of the file in bytes; None if the file is missing.
        uploaded: time of the owner's last upload of the file; None if the record is damaged.
    """

    name: str
    owner: str
    size: int | None
    uploaded: datetime | None


def record_owner(location: Location, name: str, owner: str) -> None:
    """Record that an owner uploads a file now; raises StoreError."""
    key, now = _key(owner, name), datetime.now(UTC).isoformat(timespec="seconds")
    put(location, key, record(key, {"uploaded": now}))


def owned_uploads(store: str, owner: str | None = None) -> list[OwnedUpload]:
    """Return the uploads of an owner, or of all, last uploaded first; those whose record is damaged come last."""
    location = open_location(store)
    files, records = upload_sizes(store), _records(location, owner)
    contents = get_all(location, records)
    owned = [
        OwnedUpload(name, one, files.get(name), _uploaded(key, content))
        for (key, (one, name)), content in zip(records.items(), contents, strict=True)
    ]
    never = datetime.min.replace(tzinfo=UTC)
    return sorted(owned, key=lambda upload: (upload.uploaded or never, upload.name), reverse=True)


def expired_uploads(store: str, days: int) -> list[OwnedUpload]:
    """Return the uploads of all owners that were uploaded more than some days ago."""
    limit = datetime.now(UTC) - timedelta(days=days)
    return [one for one in owned_uploads(store) if one.uploaded is not None and one.uploaded < limit]


def upload_sizes(store: str) -> dict[str, int]:
    """Return the size in bytes of each upload of the store, by name."""
    return {key.removeprefix(f"{UPLOADS}/"): size for key, size in sizes(open_location(store), UPLOADS).items()}


def owners_of(store: str, name: str) -> set[str]:
    """Return the owners of an upload."""
    return {owner for owner, own in _records(open_location(store)).values() if own == name}


def names_of(store: str, owner: str) -> set[str]:
    """Return the names of the uploads of an owner."""
    return {name for _, name in _records(open_location(store), owner).values()}


def remove_upload(store: str, name: str, owner: str) -> None:
    """Remove an upload from those of an owner, and the file if it has no other owner; raises StoreError."""
    location = open_location(store)
    if owners_of(store, name) <= {owner}:
        delete(location, [f"{UPLOADS}/{name}"])  # first, because a file without an owner would never expire
    delete(location, [_key(owner, name)])
    if not owners_of(store, name):  # another owner may have removed it at the same moment
        delete(location, [key for key in [f"{UPLOADS}/{name}"] if key in keys(location, UPLOADS)])


def _key(owner: str, name: str) -> str:
    return f"{_OWNERS}/{owner}/{name}.json"


def _records(location: Location, owner: str | None = None) -> dict[str, tuple[str, str]]:
    """Return the owner and the name of the upload of each record, by its key; of one owner, or of all."""
    parts = {key: key.split("/") for key in keys(location, _OWNERS if owner is None else f"{_OWNERS}/{owner}")}
    return {key: (one[1], one[2].removesuffix(".json")) for key, one in parts.items() if len(one) == 3}


def _uploaded(key: str, content: bytes | None) -> datetime | None:
    """Return the time in a record, or None if it is damaged, or is the record of another upload."""
    fields = fields_of(key, content)
    return None if fields is None else datetime.fromisoformat(fields["uploaded"])
