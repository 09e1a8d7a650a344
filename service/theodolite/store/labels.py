"""The labels that people give a run after its survey: a name, tags and remarks.

    labels/RUN/name.json       each label is an object of its own, so that writers of different labels lose nothing
    labels/RUN/tags.json
    labels/RUN/remarks.json

They lie beside the runs: the objects of a run, their checksums and its id never change.
"""

import logging
import unicodedata
from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from theodolite.errors import RunNotFoundError, SpecError
from theodolite.store.layout import RUN_RECORD
from theodolite.store.objects import Location, delete, get_all, keys, open_location, put, version
from theodolite.store.pieces import fields_of, record
from theodolite.store.runs import Run

_FOLDER = "labels"

_BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the order in which a text is shown, so that it reads as another one."""

_log = logging.getLogger(__name__)


def _text(text: str) -> str:
    for one in text:
        if (unicodedata.category(one) in ("Cc", "Cs") and one not in "\n\t") or one in _BIDIRECTIONAL:
            raise ValueError(f"contains the control character U+{ord(one):04X}; remove it")
    return text.strip()


def _line(text: str) -> str:
    if "\t" in text or len(text.splitlines()) > 1:
        raise ValueError("contains a tab or a line break; write it on one line")
    return _text(text)


def _tag(text: str) -> str:
    if "," in text:
        raise ValueError("contains a comma; give several tags as a list")
    if not text.strip():
        raise ValueError("is empty; leave it out")
    return _line(text)


def _once(tags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tags))


_Name = Annotated[str, Field(max_length=200), AfterValidator(_line)]
_Tag = Annotated[str, Field(max_length=50), AfterValidator(_tag)]


class Labels(BaseModel):
    """The labels of one run; an empty name is None, and a tag that is given twice counts once."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={
            "example": {"name": "refusal, first try", "tags": ["paper"], "remarks": "Compare with the base model."}
        },
    )

    name: Annotated[_Name | None, AfterValidator(lambda name: name or None)] = Field(
        None, description="Name of the run; null is the name in its spec."
    )
    tags: Annotated[tuple[_Tag, ...], Field(max_length=20, fail_fast=True), AfterValidator(_once)] = Field(
        (), description="Tags, without commas and line breaks."
    )
    remarks: Annotated[str, Field(max_length=10_000), AfterValidator(_text)] = Field(
        "", description="Remarks about the run; they may have several lines."
    )


def read_labels(run: Run) -> Labels:
    """Return the labels of a run; a label that the run lacks, or that cannot be read, has its default."""
    return _read(open_location(run.store), _folder(run.id)).get(run.id, Labels())


def all_labels(store: str) -> dict[str, Labels]:
    """Return the labels of each run of a store that has some, by the run's id; labels are read as by `read_labels`."""
    return _read(open_location(store), _FOLDER)


def parse_labels(given: Mapping[str, Any], names: Mapping[str, str] = {}) -> Labels:
    """Return given labels; raises SpecError for an invalid one, by the name that the caller has for it, or its own."""
    try:
        return Labels.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = names.get(str(problem["loc"][0])) or ".".join(map(str, problem["loc"]))
        message = problem["msg"].removeprefix("Value error, ")
        raise SpecError(f"{name}: given {str(problem['input'])[:60]!r}; {message[0].lower()}{message[1:]}") from error


def change_labels(run: Run, changes: Labels) -> Labels:
    """Write the labels that are set in `changes`, and return all labels of the run; its other labels stay.

    Raises:
        RunNotFoundError: the run was deleted in the meantime.
        StoreError: the store cannot be written.
    """
    location = open_location(run.store)
    for label in changes.model_fields_set:
        key = f"{_folder(run.id)}/{label}.json"
        put(location, key, record(key, changes.model_dump(mode="json", include={label})))
    if version(run.location, RUN_RECORD) is None:  # its deletion may have listed the labels before they were written
        delete_labels(run)
        raise RunNotFoundError(f"the run {run.id!r} was deleted in the meantime, so it has no labels")
    return read_labels(run)


def delete_labels(run: Run) -> None:
    """Delete the labels of a run."""
    location = open_location(run.store)
    delete(location, keys(location, _folder(run.id)))


def _folder(run_id: str) -> str:
    return f"{_FOLDER}/{run_id}"


def _read(location: Location, prefix: str) -> dict[str, Labels]:
    """Return the labels below a prefix, by the id of their run."""
    stored, values = keys(location, prefix), defaultdict[str, dict[str, Any]](dict)
    for key, content in zip(stored, get_all(location, stored), strict=True):
        if content is not None:  # None: deleted since the listing
            values[key.split("/")[1]] |= _parse(key, content)
    return {run_id: Labels(**labels) for run_id, labels in values.items()}


def _parse(key: str, content: bytes) -> dict[str, Any]:
    """Return the stored label by its name, or nothing if it is damaged: a list of runs must not fail because of it."""
    try:
        return Labels.model_validate(fields_of(key, content)).model_dump(exclude_unset=True)
    except ValidationError:
        _log.warning("%s is damaged and ignored; set this label of the run again", key)
        return {}
