"""Read texts into rows: one prompt in each line, or a table of cells between commas or tabs."""

import codecs
import csv
import io
import re
from collections.abc import Iterator

from theodolite_jobs.prompts.rows import Rows, is_name, named, refuse_twice

_DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
_SUFFIXES = {",": ".csv", "\t": ".tsv"}  # of files whose cells have this delimiter between them


def decode(content: bytes) -> str:
    """Return the text of a file in UTF-8; raises ValueError for other bytes and for NUL characters."""
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


def lines_of(text: str) -> list[str]:
    """Return the lines without blank ones at the end, split at line ends only.

    `splitlines` would also split at characters that prompts may contain.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
    return text.split("\n") if text else []


def read_lines(text: str) -> Rows:
    """Return each line as a prompt."""
    return {f"line {number}": {"prompt": line} for number, line in enumerate(lines_of(text), 1)}


def read_table(text: str, delimiter: str) -> Rows:
    """Return the rows of a table, whose first line is the header; raises ValueError if a cell would be lost."""
    _check_delimiter(text, delimiter)
    lines = list(_cells(text, delimiter))
    while lines and not lines[-1][1]:  # blank lines at the end
        lines.pop()
    if not lines:
        return {}
    (_, header), *others = lines
    if not header:
        raise ValueError("line 1 is blank; the first line must be the header")
    refuse_twice("the header", header)
    rows: Rows = {}
    for line, cells in others:
        if not cells:
            raise ValueError(f"line {line} is blank; fill it in, or remove it")
        if len(cells) != len(header):
            raise ValueError(
                f"line {line} and the header (line 1) have {len(cells)} and {len(header)} cells; "
                f"quote cells that contain {_DELIMITERS[delimiter]}"
            )
        rows[f"line {line}"] = dict(zip(header, cells, strict=True))
    return rows


def _cells(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's first line and cells; a blank line has none. Quoted cells may contain line breaks."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # the module refuses cells of 131,073 characters
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
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


def _check_delimiter(text: str, delimiter: str) -> None:
    """Raise ValueError for a header of names with another delimiter between them."""
    header = re.split(r"[\r\n]", text, maxsplit=1)[0].strip()
    for other, called in _DELIMITERS.items():
        names = [part.strip(' "') for part in header.split(other)]
        if other != delimiter and len(names) > 1 and all(map(is_name, names)):
            suffix = _SUFFIXES.get(other)
            remedy = f"end its name with {suffix}" if suffix else f"save it with {_DELIMITERS[delimiter]}"
            raise ValueError(
                f"its header has {called} between the names {named(names)}; cells must be separated by "
                f"{_DELIMITERS[delimiter]}: {remedy}"
            )
