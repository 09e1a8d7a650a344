"""Read a file of prompts into rows: find the reader by the end of the file's name, and decompress."""

import gzip
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from theodolite.errors import PromptError, one_line
from theodolite.spec_parts import FILE_TYPES, file_type
from theodolite_jobs.prompts.arrow_files import read_parquet, read_saved
from theodolite_jobs.prompts.json_files import read_json, read_json_lines
from theodolite_jobs.prompts.rows import MOST_DECODED_BYTES, MOST_DECODED_ROWS, Rows
from theodolite_jobs.prompts.text_files import decode, read_lines, read_table

_PIECE_BYTES = 2**20

_BEGIN_ROWS = (b"\n", b"\r", b"[", b"{")

_GZIP = b"\x1f\x8b"

_TEXT_READERS: dict[str, Callable[[str], Rows]] = {
    "csv": partial(read_table, delimiter=","),
    "tsv": partial(read_table, delimiter="\t"),
    "jsonl": read_json_lines,
    "ndjson": read_json_lines,
    "json": read_json,
    "txt": read_lines,
}


def read_file(name: str, path: Path, split: str = "train") -> Rows:
    """Return the rows of a file of the set `name`, or of a folder of `save_to_disk`, which may have splits.

    Raises:
        PromptError: the file does not exist, or it cannot be read without losing or changing a row.
    """
    try:
        return _read(path, split)
    # Each reader raises its own exception types for a file whose content does not match its suffix.
    except Exception as error:
        raise PromptError(f"prompts.{name}.source: {path.absolute()} cannot be read: {one_line(error)}") from error


def _read(path: Path, split: str) -> Rows:
    if path.is_dir():
        return read_saved(path, split)
    if not path.is_file():
        raise ValueError("it does not exist or is not a file; relative paths start from the spec's folder")
    kind = file_type(path.name)
    if kind is None:
        allowed = ", ".join(f".{one}" for one in FILE_TYPES)
        raise ValueError(f"its name has no supported suffix; allowed: {allowed}, and folders of save_to_disk")
    return read_parquet(path) if kind == "parquet" else _read_text(path, kind)


def _read_text(path: Path, kind: str) -> Rows:
    content = path.read_bytes()
    plain = kind.removesuffix(".gz")
    if plain != kind:
        content = _decompressed(path)
    elif content.startswith(_GZIP):
        raise ValueError(f"it is compressed with gzip; end its name with .{plain}.gz")
    return _TEXT_READERS[plain](decode(content))


def _decompressed(path: Path) -> bytes:
    """Return the content of a gzip file, after counting its bytes and rows without keeping it in memory."""
    try:
        with gzip.open(path) as file:
            _check_size(file, path.stat().st_size)
            file.seek(0)
            return file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"it is no gzip file, or it is damaged or incomplete ({error}); write it again") from error


def _check_size(file: gzip.GzipFile, n_bytes: int) -> None:
    """Raise ValueError if a gzip file of `n_bytes` decompresses to too many bytes, or to too many rows."""
    n_decoded, n_rows, most_rows = 0, 0, max(MOST_DECODED_ROWS, n_bytes)
    while piece := file.read(_PIECE_BYTES):
        n_decoded += len(piece)
        n_rows += sum(map(piece.count, _BEGIN_ROWS))
        if n_decoded > MOST_DECODED_BYTES:
            found = f"{MOST_DECODED_BYTES} bytes, the largest size of a compressed file"
        elif n_rows > most_rows:
            found = f"{most_rows:,} lines, lists and objects, the most in a compressed file of {n_bytes:,} bytes"
        else:
            continue
        raise ValueError(f"it decompresses to more than {found}; decompress it, and name the decompressed file")
