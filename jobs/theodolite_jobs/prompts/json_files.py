"""Read JSON into rows: a list, or one value in each line."""

import json
import re
from typing import Any

from theodolite_jobs.prompts.rows import Row, Rows, as_rows, numbered, refuse_twice
from theodolite_jobs.prompts.text_files import lines_of

_LIST_OF_OBJECTS = re.compile(r"\s*(array\(|\{[^\[]*)?\[\s*\{")

_MESSAGE_KEYS = (("role", "content"), ("from", "value"))
"""The keys of messages, and those that ShareGPT gives them."""


def read_json(text: str) -> Rows:
    """Return the strings or objects of a list; raises ValueError for another text."""
    try:
        values = _decode(text)
    except json.JSONDecodeError as error:
        hint = "; one value in each line needs the suffix .jsonl" if error.msg == "Extra data" else ""
        raise ValueError(f"it is not valid JSON: {error}{hint}") from error
    if not isinstance(values, list):
        raise ValueError(f"it is of type {type(values).__name__}; it must be a list of strings or of objects")
    return numbered(values)


def read_json_lines(text: str) -> Rows:
    """Return the string or object of each line; blank lines have none. Raises ValueError for another text."""
    values: dict[str, Any] = {}
    for number, line in enumerate(lines_of(text), 1):
        place = f"line {number}"
        if line.lstrip().startswith("[") and not is_spelled_conversation(line):
            raise ValueError(
                f"{place} begins a list, and must be a string, an object or a list of messages; a list of prompts "
                "needs the suffix .json"
            )
        if line.strip():
            try:
                values[place] = _decode(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{place} is not valid JSON: {error.msg} at column {error.colno}") from error
            except ValueError as error:
                # Python's advice for a number with too many digits is about code.
                raise ValueError(f"{place}: {str(error).partition('; use sys')[0]}") from error
    return as_rows(values)


def is_spelled_conversation(text: str) -> bool:
    """Return whether a text spells a list of messages, or an object with one, as JSON, Python or NumPy writes it."""
    if not (_LIST_OF_OBJECTS.match(text) and text.rstrip().endswith(("]", "}", ")"))):
        return False
    return any(all(re.search(rf"""['"]{key}['"]\s*:""", text) for key in keys) for keys in _MESSAGE_KEYS)


def _decode(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_as_object)
    except RecursionError as error:
        raise ValueError("it has lists or objects inside each other, hundreds deep; flatten it") from error


def _as_object(pairs: list[tuple[str, Any]]) -> Row:
    refuse_twice("an object", [name for name, _ in pairs])
    return dict(pairs)
