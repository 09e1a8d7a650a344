"""Prompt files, and what a prompt set reads from them."""

from pathlib import Path
from typing import Any

from theodolite.spec_parts import PromptSetSpec
from theodolite_jobs.prompts.sources import read_prompts


def write(folder: Path, name: str, content: str | bytes) -> None:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


def read(folder: Path, file: str, **settings: Any) -> list[Any]:
    return read_prompts("goals", PromptSetSpec(source=f"file:{file}", **settings), folder)
