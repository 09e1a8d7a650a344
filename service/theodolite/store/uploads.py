"""Prompt files that clients upload to the store: `uploads/SHA256.TYPE`, named by the digest of their content."""

import json

from theodolite.errors import PromptError
from theodolite.prompt_values import InlinePrompt
from theodolite.spec import SurveySpec
from theodolite.store.checksums import sha256
from theodolite.store.objects import get, open_location, put, version
from theodolite.store.upload_owners import LOCAL, UPLOADS, record_owner


def store_upload(store: str, content: bytes, kind: str, owner: str = LOCAL) -> str:
    """Store a prompt file and return its source, `upload:NAME`; the same content has the same name.

    Args:
        store: the location of the store.
        content: the bytes of the file.
        kind: the type of the file, one of FILE_TYPES.
        owner: the id of the uploader's bearer token, or `local`; a file can have several owners.

    Raises:
        StoreError: the store cannot be written.
    """
    location, name = open_location(store, create=True), upload_name(content, kind)
    record_owner(location, name, owner)  # first, because a file without an owner would never expire
    put(location, f"{UPLOADS}/{name}", content)  # a stored one is the same, or damaged
    return f"upload:{name}"


def is_uploaded(store: str, name: str) -> bool:
    """Return whether the store has this upload."""
    return version(open_location(store), f"{UPLOADS}/{name}") is not None


def read_upload(store: str, name: str) -> bytes:
    """Return the content of an upload.

    Raises:
        PromptError: the store has no such upload, or its content is damaged.
    """
    content = get(open_location(store), f"{UPLOADS}/{name}")
    if content is None:
        raise PromptError(f"the store has no upload {name}; upload the file again")
    if upload_name(content, name.partition(".")[2]) != name:
        raise PromptError(f"the upload {name} is damaged: its content has another digest; upload the file again")
    return content


def with_uploaded_texts(spec: SurveySpec, store: str | None = None, owner: str = LOCAL) -> SurveySpec:
    """Return the spec with an upload as the source of each prompt set that lists its prompts.

    The records of a survey then have no texts of prompts, which a service may have to hide. Without a store, nothing is
    stored. Raises as `store_upload` does.
    """
    if store is not None:
        for content in texts_of(spec).values():
            store_upload(store, content, "json", owner)
    prompts = {
        name: one.model_copy(update={"source": f"upload:{_name_of(one.texts)}", "texts": []}) if one.texts else one
        for name, one in spec.prompts.items()
    }
    return spec.model_copy(update={"prompts": prompts}) if prompts != spec.prompts else spec


def texts_of(spec: SurveySpec) -> dict[str, bytes]:
    """Return the uploads that the prompt sets with their own prompts become: their contents, by name."""
    return {_name_of(one.texts): _encoded(one.texts) for one in spec.prompts.values() if one.texts}


def upload_name(content: bytes, kind: str) -> str:
    """Return the name of an upload."""
    return f"{sha256(content)}.{kind}"


def _name_of(texts: list[InlinePrompt]) -> str:
    return upload_name(_encoded(texts), "json")


def _encoded(texts: list[InlinePrompt]) -> bytes:
    return json.dumps(texts, ensure_ascii=False).encode()
