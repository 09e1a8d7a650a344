"""Refuse files outside a model's folder that its settings name: transformers would read them, or run their code."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from theodolite.errors import ModelError, short
from theodolite_jobs.models.config_sizes import walk

_IN_CODE_MAP = re.compile(r"(^|\.)auto_map(\.|$)")
_OWN_CODE = re.compile(r"(?!.*--)[\w-]+\.\w+")  # `OWNER/NAME--MODULE.CLASS` is the code of another repository


def check_code(settings: Mapping[str, Any], file: Path) -> None:
    """Raise ModelError if `auto_map` names code that is not in the model's own folder.

    Nobody allowed the code of another repository, and no revision pins it.
    """
    for key, value, _ in walk(settings):
        if isinstance(value, str) and _IN_CODE_MAP.search(key) and not _OWN_CODE.fullmatch(value):
            raise ModelError(
                f"{file}: auto_map names {short(value)}; allowed: MODULE.CLASS, the code in the model's own folder; "
                "copy the code and the model into one folder, and name it there"
            )


def check_tokenizer_files(settings: Mapping[str, Any], file: Path) -> None:
    """Raise ModelError if `fast_tokenizer_files` names a file that is not in the model's own folder."""
    names = settings.get("fast_tokenizer_files") or []
    for name in names if isinstance(names, list) else [names]:
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelError(
                f"{file}: fast_tokenizer_files names {short(name)}, which is not a file of its folder; move the file "
                "there, or remove the entry"
            )
