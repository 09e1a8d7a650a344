"""Prompt files that clients upload to the store: `uploads/SHA256.TYPE`, named by the digest of their content."""

import hashlib
import json
from collections.abc import Callable

from theodolite.errors import PromptError
from theodolite.spec import SurveySpec
from theodolite.store.objects import get, open_location, put_new, version

_FOLDER = "uploads"


def store_upload(store: str, content: bytes, kind: str) -> str:
    """Store a prompt file and return its source, `upload:NAME`; the same content has the same name.

    Args:
        store: the location of the store.
        content: the bytes of the file.
        kind: the type of the file, one of FILE_TYPES.

    Raises:
        StoreError: the store cannot be written.
    """
    name = _name(content, kind)
    put_new(open_location(store, create=True), f"{_FOLDER}/{name}", content)
    return f"upload:{name}"


def is_uploaded(store: str, name: str) -> bool:
    """Return whether the store has this upload."""
    return version(open_location(store), f"{_FOLDER}/{name}") is not None


def read_upload(store: str, name: str) -> bytes:
    """Return the content of an upload.

    Raises:
        PromptError: the store has no such upload, or its content is damaged.
    """
    content = get(open_location(store), f"{_FOLDER}/{name}")
    if content is None:
        raise PromptError(f"the store has no upload {name}; upload the file again")
    if _name(content, name.rpartition(".")[2]) != name:
        raise PromptError(f"the upload {name} is damaged: its content has another digest; upload the file again")
    return content


def with_uploaded_texts(spec: SurveySpec, upload: Callable[[bytes, str], str] | None = None) -> SurveySpec:
    """Return the spec with an upload as the source of each prompt set that lists its prompts.

    The records of a survey then have no texts of prompts, which a service may have to hide. `upload` stores a file and
    returns its source; without it, nothing is stored.
    """
    upload = upload or (lambda content, kind: f"upload:{_name(content, kind)}")
    prompts = {
        name: one.model_copy(update={"source": upload(_as_file(one.texts), "json"), "texts": []}) if one.texts else one
        for name, one in spec.prompts.items()
    }
    return spec.model_copy(update={"prompts": prompts}) if prompts != spec.prompts else spec


def _as_file(texts: list[str]) -> bytes:
    return json.dumps(texts, ensure_ascii=False).encode()


def _name(content: bytes, kind: str) -> str:
    return f"{hashlib.sha256(content).hexdigest()}.{kind}"
