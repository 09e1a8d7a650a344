"""The rows of a source of prompts. Each row has a place for messages: `line 3` or `row 3`.

Lines count from 1, as in an editor; rows and prompts count from 0, as in Python. A row of several lines has the place
of its first line.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]
Rows = dict[str, Row]  # by place, in the order of the source


def numbered(values: Iterable[Any]) -> Rows:
    """Return strings or objects as rows, with their numbers as places; raises ValueError for other types."""
    return {f"row {index}": as_row(f"row {index}", value) for index, value in enumerate(values)}


def as_row(place: str, value: Any) -> Row:
    """Return an object, or a string or a list as the only cell of a row; raises ValueError for other types."""
    if not isinstance(value, str | list | dict):
        raise ValueError(
            f"{place} is of type {type(value).__name__}; it must be a string, an object or a list of messages"
        )
    return value if isinstance(value, dict) else {"prompt": value}


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
