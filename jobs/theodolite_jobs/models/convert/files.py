"""Shared helpers of model conversions: write a folder atomically, and read JSON files."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from theodolite.errors import ModelError

SMALL_FILES = ["*.py", "*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt"]
"""Configuration, tokenizer, and the code they may need (it runs only if it is allowed); no weights."""


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder, and rename it to `folder` if the block ends without an error; else delete it.

    So `folder` is always complete if it exists. Two processes may convert at the same time.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        yield staging
        try:
            os.replace(staging, folder)
        except OSError:
            # Another process may have finished first; its conversion is the same.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or {} if the file does not exist; raises ModelError."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {file} as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"cannot read {file}: its content is not a JSON object")
    return content
