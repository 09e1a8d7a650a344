"""What conversions of a model share: a folder that is whole or not there, and reading the files that describe it."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from theodolite.errors import ModelError


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give an empty folder to write to, and call it `folder` when the block ends without an error.

    After an error nothing is left, so a folder of this name is always whole. Two processes may convert at the same
    time.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        yield staging
        _move(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def read_json(file: Path) -> dict[str, Any]:
    """Return what a JSON file holds, nothing if it is not there; raises ModelError."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {file} as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"cannot read {file}: it holds no JSON object")
    return content


def _move(staging: Path, folder: Path) -> None:
    try:
        os.replace(staging, folder)
    except OSError:
        # Another process was first; its conversion is the same.
        if not folder.is_dir():
            raise
