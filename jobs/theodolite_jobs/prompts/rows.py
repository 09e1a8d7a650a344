"""The rows of a source of prompts. Each row has a place for messages: `line 3` or `row 3`.

Lines count from 1, as in an editor; rows and prompts count from 0, as in Python. A row of several lines has the place
of its first line.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

MOST_DECODED_BYTES = 2**28
"""The largest decoded size of a compressed file: a small file can decode to more bytes than memory has."""

MOST_DECODED_ROWS = 2**22
"""The largest number of rows of a compressed file with fewer bytes: a row without text takes 400 bytes in memory."""

Row = dict[str, Any]
Rows = dict[str, Row]  # by place, in the order of the source


def numbered(values: Iterable[Any]) -> Rows:
    """Return values as rows, with their numbers as places; raises ValueError as `as_rows`."""
    return as_rows({f"row {index}": value for index, value in enumerate(values)})


def as_rows(values: Mapping[str, Any]) -> Rows:
    """Return objects by place; a string or a list becomes an object with the key `prompt`.

    Raises:
        ValueError: a value is of another type, or some are objects without this key and others are not.
    """
    bare, without_key = None, None
    for place, value in values.items():
        if not isinstance(value, str | list | dict):
            raise ValueError(
                f"{place} is of type {type(value).__name__}; it must be a string, an object or a list of messages"
            )
        if not isinstance(value, dict):
            bare = bare or place
        elif "prompt" not in value:
            without_key = without_key or place
        if bare and without_key:
            raise ValueError(
                f"{without_key} is an object without the key prompt, and {bare} is a text or a list; write all rows in "
                "one way"
            )
    return {place: value if isinstance(value, dict) else {"prompt": value} for place, value in values.items()}


def named(columns: Iterable[str]) -> str:
    """Return the columns' names for a message, without names that may be prompts.

    The columns of a file without a header are named by its first prompt, and messages end up in logs.
    """
    return ", ".join(
        (name if name == name.strip() else repr(name)) if is_name(name) else f"(a name of {len(name)} characters)"
        for name in columns
    )


def is_name(text: str) -> bool:
    """Return whether a text looks like the name of a column, and not like a prompt."""
    return re.fullmatch(r"\w[\w.-]{0,39}", text.strip()) is not None


def refuse_twice(where: str, names: Iterable[str]) -> None:
    """Raise ValueError for two columns of one name: a row would contain only the second."""
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise ValueError(f"{where} has the column {named(twice[:1])} twice; rename or remove one of them")
