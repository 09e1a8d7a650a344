"""Writing local files so that a reader never sees half of one."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, and replace the one that is there; raises OSError."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
