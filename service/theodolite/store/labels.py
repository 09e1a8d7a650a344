"""The labels that people give a run after its survey: another name, tags, and remarks.

They lie beside the runs, in `labels/RUN.json`: the objects of a run, their checksums and its id never change.
"""

import json
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from theodolite.store.objects import delete, get, get_all, keys, open_location, put

_FOLDER = "labels"
_ENDING = ".json"


def _printable(text: str) -> str:
    if not text.replace("\n", "").isprintable():
        raise ValueError("contains a control character")
    return text.strip()


def _once(tags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tags))


_Line = Annotated[str, Field(max_length=200, pattern=r"^[^\n]*$"), AfterValidator(_printable)]
_Tag = Annotated[str, Field(min_length=1, max_length=50, pattern=r"^[^\n,]*\S[^\n,]*$"), AfterValidator(_printable)]


class Labels(BaseModel):
    """The labels of one run.

    Attributes:
        name: replaces the name in the run's spec; None keeps that one.
        tags: short texts without commas, each once.
        remarks: a text of several lines.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: _Line | None = None
    tags: Annotated[tuple[_Tag, ...], Field(max_length=20), AfterValidator(_once)] = ()
    remarks: Annotated[str, Field(max_length=10_000), AfterValidator(_printable)] = ""


def read_labels(store: str, run_id: str) -> Labels:
    """Return the labels of a run; empty ones if it has none, or if they cannot be read."""
    return _parse(get(open_location(store), _key(run_id)))


def all_labels(store: str) -> dict[str, Labels]:
    """Return the labels of each run of a store that has some, by the run's id."""
    location = open_location(store)
    stored = [key for key in keys(location, _FOLDER) if key.endswith(_ENDING)]
    contents = zip(stored, get_all(location, stored), strict=True)
    return {key.removeprefix(f"{_FOLDER}/").removesuffix(_ENDING): _parse(content) for key, content in contents}


def write_labels(store: str, run_id: str, labels: Labels) -> None:
    """Replace the labels of a run; empty labels are removed."""
    location = open_location(store)
    if labels == Labels():
        delete_labels(store, run_id)
    else:
        put(location, _key(run_id), labels.model_dump_json().encode())


def delete_labels(store: str, run_id: str) -> None:
    """Remove the labels of a run, if it has some."""
    location = open_location(store)
    if _key(run_id) in keys(location, _FOLDER):
        delete(location, [_key(run_id)])


def _key(run_id: str) -> str:
    return f"{_FOLDER}/{run_id}{_ENDING}"


def _parse(content: bytes | None) -> Labels:
    """Return stored labels; a list of runs must not fail because of damaged ones."""
    if content is None:
        return Labels()
    try:
        return Labels.model_validate(json.loads(content))
    except (ValueError, ValidationError):
        return Labels()
