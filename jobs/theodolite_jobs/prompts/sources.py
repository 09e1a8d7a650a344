"""Read a prompt set: built-in, from a file, or from a dataset on the hub."""

import csv
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from theodolite.errors import PromptError
from theodolite.spec import SurveySpec
from theodolite.spec_parts import PromptSetSpec, file_type
from theodolite.store.uploads import read_upload
from theodolite_jobs.prompts.conversations import Prompt, check_kinds, conversation_of, plain
from theodolite_jobs.prompts.files import read_file
from theodolite_jobs.prompts.hub_datasets import read_dataset
from theodolite_jobs.prompts.rows import Rows, is_name, named, numbered
from theodolite_jobs.prompts.selection import check_column, columns_of, keep_where, rows_found

_COMMON_COLUMNS = ("prompt", "prompts", "text", "goal", "instruction", "question")
"""Column names that cannot be prompts. A table with one column of another name needs `column` in the spec."""


def read_prompts(name: str, prompt_set: PromptSetSpec, folder: Path, store: str = "") -> list[Prompt]:
    """Return the prompts of the set `name`: `where` filters, `draw` shuffles, `skip` leaves out, `limit` ends.

    Relative file sources start from `folder`, the spec's folder; `store` has the uploads.

    Raises:
        PromptError: the source cannot be read, a column is missing, a selection is empty, a prompt is empty, or is
            neither a text nor a conversation, or the set has both.
    """
    kind, _, location = prompt_set.source.partition(":")
    if kind == "builtin":
        rows = _read_builtin(location)
    elif kind == "inline":
        rows = numbered(prompt_set.texts)
    elif kind == "file":
        rows = read_file(name, folder / location, prompt_set.split)
    elif kind == "upload":
        rows = _read_uploaded(name, store, location)
    else:
        rows = read_dataset(name, location, prompt_set)
    table = _table_type(prompt_set)
    if not rows:
        first = " or has only its first line, which is the header" if table else ""
        raise PromptError(f"prompts.{name}: {prompt_set.source} is empty{first}")
    column = _choose_column(name, rows, prompt_set.column, table)
    texts = [(place, row[column]) for place, row in keep_where(name, rows, prompt_set.where).items()]
    if not texts:
        raise PromptError(
            f"prompts.{name}.where: none of the {len(rows)} rows has the requested values; "
            f"{rows_found(rows, prompt_set.where)}; compare the spec with the file"
        )
    if prompt_set.draw:
        texts = _draw(name, texts, prompt_set.draw.test_size, prompt_set.draw.random_state)
    if prompt_set.skip >= len(texts):
        raise PromptError(
            f"prompts.{name}.skip: {prompt_set.skip} would leave out all {len(texts)} prompts; "
            f"set it to {len(texts) - 1} or less"
        )
    texts = texts[prompt_set.skip :][: prompt_set.limit]
    prompts = {
        f"prompts.{name} ({prompt_set.source}, {place}): prompt {index}": plain(value)
        for index, (place, value) in enumerate(texts)
    }
    check_kinds(prompts, prompt_set.template)
    return [_checked(where, value) for where, value in prompts.items()]


def _table_type(prompt_set: PromptSetSpec) -> str | None:
    """Return the type of a file whose first line is a header, else None."""
    kind, _, location = prompt_set.source.partition(":")
    found = file_type(location) if kind in ("file", "upload") else None
    return found if found is not None and found.startswith(("csv", "tsv")) else None


def check_pairs(spec: SurveySpec, sizes: Mapping[str, int]) -> None:
    """Raise PromptError if the sets of a paired contrast have different numbers of prompts.

    `sizes` has the number of prompts of each set that was read; a contrast of another set is not checked.
    """
    for name, contrast in spec.contrasts.items():
        sides = contrast.positive, contrast.negative
        if not spec.is_paired(name) or not sizes.keys() >= set(sides):
            continue
        positive, negative = (sizes[side] for side in sides)
        if positive != negative:
            raise PromptError(
                f"contrasts.{name}.paired: {contrast.positive} has {positive} prompts and {contrast.negative} "
                f"{negative}; pairs need equal numbers of prompts in the same order; change the sets, or "
                "set paired: false"
            )


def _checked(where: str, value: Any) -> Prompt:
    if not isinstance(value, list):
        _check_text(where, value)
        return str(value)
    messages = conversation_of(where, value)
    for index, message in enumerate(messages):
        _check_text(f"{where}, message {index}", message["content"])
    return messages


def _check_text(where: str, text: Any) -> None:
    # Name the type and not the content: messages end up in logs.
    if text is None:
        raise PromptError(f"{where} is missing (null); fill it in, or remove the row")
    if not isinstance(text, str):
        raise PromptError(f"{where} is of type {type(text).__name__}; a prompt must be a text, or a list of messages")
    if not text.strip():
        raise PromptError(f"{where} is empty; fill it in, or remove the row")
    if "\0" in text:
        raise PromptError(f"{where} has a NUL character (\\u0000) at index {text.index(chr(0))}; remove it")
    half = re.search("[\ud800-\udfff]", text)
    if half:
        raise PromptError(
            f"{where} has half of a surrogate pair (\\u{ord(half[0]):04x}) at index {half.start()}, which is no "
            "character; write the whole pair, or remove it"
        )


def _read_builtin(name: str) -> Rows:
    """Return the rows of a built-in set; `harmful` and `harmless` are the two columns of one file."""
    data = resources.files("theodolite_jobs.prompts") / "data"
    if name in ("nouns", "everyday"):
        return numbered((data / f"{name}.txt").read_text(encoding="utf-8").splitlines())
    pairs = csv.DictReader((data / "pairs.csv").read_text(encoding="utf-8").splitlines())
    return numbered(row[name] for row in pairs)


def _read_uploaded(name: str, store: str, upload: str) -> Rows:
    with TemporaryDirectory() as folder:
        path = Path(folder, f"{upload[:12]}.{file_type(upload)}")  # messages contain the path
        path.write_bytes(read_upload(store, upload))
        return read_file(name, path)


def _choose_column(name: str, rows: Rows, column: str | None, table: str | None) -> str:
    """Return the column of the prompts; `table` is the type of a file with a header."""
    columns = columns_of(rows)
    hint = _hint_at_header(columns, table) if table else ""
    if column is not None:
        check_column(f"prompts.{name}.column", rows, column, hint)
        return column
    if len(columns) != 1:
        raise PromptError(
            f"prompts.{name}.column: the rows have {len(columns)} columns, so the spec must name the one with "
            f"the prompts; allowed: {named(columns) or 'none'}{hint}"
        )
    if table and columns[0].strip().lower() not in _COMMON_COLUMNS:
        raise PromptError(
            f"prompts.{name}.column: the first line of a .{table} file is its header, but {named(columns)} may be a "
            "prompt; if so, add the line `prompt` above it, else set column to it"
        )
    return columns[0]


def _hint_at_header(columns: list[str], table: str) -> str:
    if all(is_name(column) for column in columns if column):
        return ""
    return f"; the first line of a .{table} file is its header, and here it looks like a prompt: add a header above it"


def _draw(name: str, texts: list[Any], test_size: float, random_state: int) -> list[Any]:
    from sklearn.model_selection import train_test_split

    try:
        train, _ = train_test_split(texts, test_size=test_size, random_state=random_state)
    except ValueError as error:
        raise PromptError(f"prompts.{name}.draw: {error}") from error
    return list(train)
