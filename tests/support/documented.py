"""The files, commands and programs that the README and the documentation show, in the order of each page."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w.-]+\.(?:yaml|csv))`")
_SPAN = re.compile(r"(?<!`)`((?:THEODOLITE_\w+=\S+ )?theodolite [^`]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A code block: its language, its code, and the file that the paragraph before it names last, if it names one."""

    language: str
    code: str
    file: str | None


def blocks(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        paragraph = text[: found.start()].rstrip().rpartition("\n\n")[2]
        files = _FILE.findall(paragraph) if found[1] in ("yaml", "csv") else []
        yield Block(found[1], found[2], files[-1] if files else None)


def commands(code: str) -> Iterator[str]:
    """Yield the commands of a block for a shell; an open quotation goes on in the next line, and so does `\\`."""
    command = ""
    for line in code.replace("\\\n", "").splitlines():
        command += line
        try:
            words = shlex.split(command, comments=True)
        except ValueError:
            command += "\n"
            continue
        if words:
            yield command
        command = ""


def inline_commands(page: Path) -> Iterator[str]:
    """Yield the calls of `theodolite` in the sentences of a page."""
    yield from _SPAN.findall(_BLOCK.sub("", page.read_text(encoding="utf-8")))
