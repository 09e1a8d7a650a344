"""Read a prompt set: built-in, from a file, or from a dataset on the hub."""

import csv
import json
import re
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from theodolite.errors import PromptError
from theodolite.spec_parts import PromptSetSpec
from theodolite.store.uploads import read_upload

Row = dict[str, Any]


def read_prompts(name: str, prompt_set: PromptSetSpec, folder: Path, store: str = "") -> list[str]:
    """Return the texts of the set `name`: `where` filters, `draw` shuffles, `skip` leaves out, `limit` takes the first.

    Relative file sources start from `folder`, the spec's folder; `store` has the uploads.

    Raises:
        PromptError: the source cannot be read, a column is missing, a selection is empty, or a prompt is empty or not
            text.
    """
    kind, _, location = prompt_set.source.partition(":")
    if kind == "builtin":
        rows = _read_builtin(location)
    elif kind == "inline":
        rows = _as_rows(prompt_set.texts)
    elif kind == "file":
        rows = _read_file(name, folder / location)
    elif kind == "upload":
        rows = _read_uploaded(name, store, location)
    else:
        rows = _read_hub(name, location, prompt_set.split)
    if not rows:
        raise PromptError(f"prompts.{name}: {prompt_set.source} is empty")
    column = _choose_column(name, rows, prompt_set.column)
    texts = [row[column] for row in _keep_where(name, rows, prompt_set.where)]
    if not texts:
        raise PromptError(
            f"prompts.{name}.where: none of the {len(rows)} rows has the values requested for "
            f"{_named(prompt_set.where)}; columns: {_named(rows[0])}"
        )
    if prompt_set.draw:
        texts = _draw(name, texts, prompt_set.draw.test_size, prompt_set.draw.random_state)
    if prompt_set.skip >= len(texts):
        raise PromptError(
            f"prompts.{name}.skip: {prompt_set.skip} would leave out all {len(texts)} prompts; "
            f"set it to {len(texts) - 1} or less"
        )
    texts = texts[prompt_set.skip :][: prompt_set.limit]
    for index, text in enumerate(texts):
        _check_text(f"prompts.{name} ({prompt_set.source}): prompt {index}", text)
    return texts


def _named(columns: Iterable[str]) -> str:
    """Return the columns' names for a message, without names that may be prompts.

    The columns of a file without a header are named by its first prompt, and messages end up in logs.
    """
    return ", ".join(
        name if re.fullmatch(r"\w[\w.-]{0,39}", name) else f"(a name of {len(name)} characters)" for name in columns
    )


def _check_text(where: str, text: Any) -> None:
    if not isinstance(text, str) or not text.strip():
        # Name the type and not the content: messages end up in logs.
        wrong = "is empty" if isinstance(text, str) else f"is of type {type(text).__name__}; a prompt must be a text"
        raise PromptError(f"{where} {wrong}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(f"{where} is not valid Unicode: {error}") from error


def _read_builtin(name: str) -> list[Row]:
    """Return the rows of a built-in set; `harmful` and `harmless` are the two columns of one file."""
    data = resources.files("theodolite_jobs.prompts") / "data"
    if name == "nouns":
        return [{"prompt": line} for line in (data / "nouns.txt").read_text(encoding="utf-8").splitlines()]
    pairs = csv.DictReader((data / "pairs.csv").read_text(encoding="utf-8").splitlines())
    return [{"prompt": row[name]} for row in pairs]


def _read_file(name: str, path: Path) -> list[Row]:
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
    except UnicodeDecodeError as error:
        raise PromptError(f"prompts.{name}.source: {path} is not UTF-8 ({error}); save it as UTF-8") from error
    # Each reader raises its own exception types for a file whose content does not match its suffix.
    except Exception as error:
        raise PromptError(f"prompts.{name}.source: {path} cannot be read: {error}") from error


def _read_uploaded(name: str, store: str, upload: str) -> list[Row]:
    with TemporaryDirectory() as folder:
        path = Path(folder, f"{upload[:12]}{Path(upload).suffix}")  # messages name the path, and need no whole digest
        path.write_bytes(read_upload(store, upload))
        return _read_file(name, path)


def _read_csv(path: Path) -> list[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    for index, row in enumerate(rows):
        if None in row or None in row.values():
            raise ValueError(f"row {index} has more or fewer cells than the header; quote cells that contain a comma")
    return rows


def _read_parquet(path: Path) -> list[Row]:
    import pyarrow.parquet

    # Not fastparquet, which reads Theodolite's own tables after their checksum: a damaged file can crash its process.
    frame = pyarrow.parquet.read_table(path).to_pandas()
    rows: list[Row] = frame.astype(object).where(frame.notna(), None).rename(columns=str).to_dict("records")
    return rows


def _lines(path: Path) -> list[str]:
    """Return the lines, split at newlines only; `splitlines` also splits at characters that prompts may contain."""
    text = path.read_text(encoding="utf-8-sig").removesuffix("\n")
    return text.split("\n") if text else []


_READERS: dict[str, Callable[[Path], list[Row]]] = {
    ".csv": _read_csv,
    ".jsonl": lambda path: _as_rows([json.loads(line) for line in _lines(path) if line.strip()]),
    ".json": lambda path: _as_rows(json.loads(path.read_text(encoding="utf-8-sig"))),
    ".parquet": _read_parquet,
    ".txt": lambda path: _as_rows(_lines(path)),
}


def _read_hub(name: str, dataset: str, split: str) -> list[Row]:
    from datasets import load_dataset
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        return [dict(row) for row in load_dataset(dataset, split=split)]
    # The library raises dozens of exception types, from a missing split to no network.
    except Exception as error:
        raise PromptError(f"prompts.{name}.source: hub:{dataset}, split {split!r}, cannot be read: {error}") from error


def _as_rows(values: Any) -> list[Row]:
    if not isinstance(values, list) or not all(isinstance(value, str | dict) for value in values):
        raise ValueError("expected a list of strings or of objects")
    return [{"prompt": value} if isinstance(value, str) else value for value in values]


def _choose_column(name: str, rows: list[Row], column: str | None) -> str:
    columns = _columns(rows)
    if column is None:
        if len(columns) != 1:
            raise PromptError(
                f"prompts.{name}.column: the rows have {len(columns)} columns, so the spec must name the one with "
                f"the prompts; allowed: {_named(columns) or 'none'}"
            )
        column = columns[0]
    _check_column(f"prompts.{name}.column", rows, column)
    return column


def _columns(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


def _check_column(where: str, rows: list[Row], column: str) -> None:
    columns = _columns(rows)
    if column not in columns:
        raise PromptError(f"{where}: no column {column!r}; allowed: {_named(columns)}")
    lacking = [index for index, row in enumerate(rows) if column not in row]
    if lacking:
        raise PromptError(
            f"{where}: {len(lacking)} rows have no {column!r}, the first is row {lacking[0]}; every row needs it"
        )


def _keep_where(name: str, rows: list[Row], where: dict[str, Any]) -> list[Row]:
    for column in where:
        _check_column(f"prompts.{name}.where", rows, column)
    return [row for row in rows if all(_same(row[column], value) for column, value in where.items())]


def _same(cell: Any, value: Any) -> bool:
    """Return whether a cell equals a value, compared also as text (csv has only text); missing equals empty."""
    return bool(cell == value) or _as_text(cell) == _as_text(value)


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _draw(name: str, texts: list[str], test_size: float, random_state: int) -> list[str]:
    from sklearn.model_selection import train_test_split

    try:
        train, _ = train_test_split(texts, test_size=test_size, random_state=random_state)
    except ValueError as error:
        raise PromptError(f"prompts.{name}.draw: {error}") from error
    return list(train)
