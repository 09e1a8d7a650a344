"""Change records that carry their own checksum."""

from pathlib import Path
from typing import Any

from theodolite.store.checksums import seal, unseal


def reseal(file: Path, **changes: Any) -> dict[str, Any]:
    """Change fields of a record, seal it again, and return the former fields."""
    fields = unseal(file.read_bytes())
    file.write_bytes(seal({**fields, **changes}))
    return fields
