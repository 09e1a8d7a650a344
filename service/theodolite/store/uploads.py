"""Prompt files that clients upload to the store: `uploads/SHA256.TYPE`, named by the digest of their content."""

import json

from theodolite.errors import PromptError
from theodolite.prompt_values import InlinePrompt
from theodolite.spec import SurveySpec
from theodolite.store.checksums import sha256
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
    if _name(content, name.partition(".")[2]) != name:
        raise PromptError(f"the upload {name} is damaged: its content has another digest; upload the file again")
    return content


def with_uploaded_texts(spec: SurveySpec, store: str | None = None) -> SurveySpec:
    """Return the spec with an upload as the source of each prompt set that lists its prompts.

    The records of a survey then have no texts of prompts, which a service may have to hide. Without a store, nothing is
    stored. Raises as `store_upload` does.
    """
    prompts = {
        name: one.model_copy(update={"source": _uploaded(one.texts, store), "texts": []}) if one.texts else one
        for name, one in spec.prompts.items()
    }
    return spec.model_copy(update={"prompts": prompts}) if prompts != spec.prompts else spec


def _uploaded(texts: list[InlinePrompt], store: str | None) -> str:
    """Return the source of prompts, after storing them if there is a store."""
    content = json.dumps(texts, ensure_ascii=False).encode()
    return f"upload:{_name(content, 'json')}" if store is None else store_upload(store, content, "json")


def _name(content: bytes, kind: str) -> str:
    return f"{sha256(content)}.{kind}"
