"""Write local files atomically, so that a reader never sees an incomplete file."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write or replace a file atomically; raises OSError."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
