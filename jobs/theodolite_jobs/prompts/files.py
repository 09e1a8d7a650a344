"""Read a file of prompts into rows. Each row has a place for messages: `line 3` or `row 3`.

Lines count from 1, as in an editor; rows and prompts count from 0, as in Python. A row of several lines has the place
of its first line.
"""

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from theodolite.errors import PromptError, one_line

Row = dict[str, Any]
Rows = dict[str, Row]  # by place, in the order of the file


def read_file(name: str, path: Path) -> Rows:
    """Return the rows of a file of the set `name`.

    Raises:
        PromptError: the file does not exist, or it cannot be read without losing or changing a row.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise PromptError(f"prompts.{name}.source: {path} has no supported suffix; allowed: {', '.join(_READERS)}")
    if not path.is_file():
        raise PromptError(
            f"prompts.{name}.source: {path.absolute()} does not exist or is not a file; relative paths start "
            "from the spec's folder"
        )
    try:
        return reader(path)
    # Each reader raises its own exception types for a file whose content does not match its suffix.
    except Exception as error:
        raise PromptError(f"prompts.{name}.source: {path} cannot be read: {one_line(error)}") from error


def numbered(values: Iterable[Any]) -> Rows:
    """Return strings or objects as rows, with their numbers as places; raises ValueError for other types."""
    return {f"row {index}": _as_row(f"row {index}", value) for index, value in enumerate(values)}


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


def is_spelled_conversation(text: str) -> bool:
    """Return whether a text is the JSON of a list of objects with a role and a content."""
    if not text.lstrip().startswith("["):
        return False
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, list) and any(isinstance(one, dict) and {"role", "content"} <= one.keys() for one in value)


def _as_row(place: str, value: Any) -> Row:
    if not isinstance(value, str | list | dict):
        raise ValueError(f"{place} is of type {type(value).__name__}; it must be a string or an object")
    return value if isinstance(value, dict) else {"prompt": value}


def _read_text(path: Path) -> str:
    content = path.read_bytes()
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError("it is UTF-16 and not UTF-8; save it as UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = f"the byte {error.object[error.start]:#04x}"
        raise ValueError(f"line {line} is not UTF-8, because of {byte}; save it as UTF-8") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"line {line} has a NUL character; remove it, or save the file as UTF-8 if it is UTF-16")
    return text


def _read_csv(path: Path) -> Rows:
    text = _read_text(path)
    _check_delimiter(text)
    lines = list(_cells(text))
    while lines and not lines[-1][1]:  # blank lines at the end
        lines.pop()
    if not lines:
        return {}
    (_, header), *others = lines
    if not header:
        raise ValueError("line 1 is blank; the first line must be the header")
    _refuse_twice("the header", header)
    rows: Rows = {}
    for line, cells in others:
        if not cells:
            raise ValueError(f"line {line} is blank; fill it in, or remove it")
        if len(cells) != len(header):
            raise ValueError(
                f"line {line} and the header (line 1) have {len(cells)} and {len(header)} cells; "
                "quote cells that contain a comma"
            )
        rows[f"line {line}"] = dict(zip(header, cells, strict=True))
    return rows


def _cells(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's first line and cells; a blank line has none. Quoted cells may contain line breaks."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # the module refuses cells of 131,073 characters
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ValueError(
                f"the row that begins in line {line} has a quotation mark that is not closed or not doubled ({error}); "
                'quote a cell with "…", and double each quotation mark inside it'
            ) from error
        if cells is None:
            return
        yield line, cells


def _check_delimiter(text: str) -> None:
    header = text.partition("\n")[0].strip()
    for delimiter, called in {";": "semicolons", "\t": "tabs", "|": "vertical bars"}.items():
        names = [part.strip(' "') for part in header.split(delimiter)]
        if len(names) > 1 and all(map(is_name, names)):
            raise ValueError(
                f"its header has {called} between the names {', '.join(names)}; cells must be separated by commas: "
                "save it with commas"
            )


def _refuse_twice(where: str, names: Iterable[str]) -> None:
    """Raise ValueError for two columns of one name: a row would contain only the second."""
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise ValueError(f"{where} has the column {named(twice[:1])} twice; rename or remove one of them")


def _read_parquet(path: Path) -> Rows:
    import pyarrow.parquet

    with path.open("rb") as file:
        try:
            # Not fastparquet, which reads Theodolite's own tables after their checksum: a damaged file can crash its
            # process.
            table = pyarrow.parquet.ParquetFile(file).read()
            names = table.column_names
            frame = table.to_pandas()
        except (NotImplementedError, MemoryError):
            raise
        # Damage causes many exception types, whose messages name no file and no remedy.
        except Exception as error:
            raise ValueError("it is no Parquet file, or it is damaged or incomplete; write it again") from error
    _refuse_twice("the file", names)
    return numbered(frame.astype(object).where(frame.notna(), None).rename(columns=str).to_dict("records"))


def _lines(path: Path) -> list[str]:
    """Return the lines without blank ones at the end, split at line ends only.

    `splitlines` would also split at characters that prompts may contain.
    """
    text = _read_text(path).replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
    return text.split("\n") if text else []


def _read_txt(path: Path) -> Rows:
    return {f"line {number}": {"prompt": line} for number, line in enumerate(_lines(path), 1)}


def _read_jsonl(path: Path) -> Rows:
    rows: Rows = {}
    for number, line in enumerate(_lines(path), 1):
        place = f"line {number}"
        if line.lstrip().startswith("[") and not is_spelled_conversation(line):
            raise ValueError(
                f"{place} begins a list, and must be a string, an object or a list of messages; a list of prompts "
                "needs the suffix .json"
            )
        if line.strip():
            try:
                value = _decode(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{place} is not valid JSON: {error.msg} at column {error.colno}") from error
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from error
            rows[place] = _as_row(place, value)
    return rows


def _read_json(path: Path) -> Rows:
    try:
        values = _decode(_read_text(path))
    except json.JSONDecodeError as error:
        hint = "; one value in each line needs the suffix .jsonl" if error.msg == "Extra data" else ""
        raise ValueError(f"it is not valid JSON: {error}{hint}") from error
    if not isinstance(values, list):
        raise ValueError(f"it is of type {type(values).__name__}; it must be a list of strings or of objects")
    return numbered(values)


def _decode(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_as_object)


def _as_object(pairs: list[tuple[str, Any]]) -> Row:
    _refuse_twice("an object", [name for name, _ in pairs])
    return dict(pairs)


_READERS: dict[str, Callable[[Path], Rows]] = {
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".txt": _read_txt,
}
