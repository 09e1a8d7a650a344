"""The commands and specs in the README and in the documentation exist as they are written."""

import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from theodolite.spec_file import parse_spec
from theodolite_jobs.cli import app

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    """Return the code blocks in a language, each with the name of its page."""
    found = [(page, *block) for page in PAGES for block in BLOCK.findall(page.read_text(encoding="utf-8"))]
    return [(page.name, code) for page, kind, code in found if kind == language]


COMMANDS = sorted(
    {
        (page, line.partition("theodolite ")[2])
        for page, code in blocks("sh")
        for line in code.splitlines()
        if re.match(r"(THEODOLITE_\w+=\S+ )?(\.venv/bin/)?theodolite ", line)
    }
)
SPECS = [(page, code) for page, code in blocks("yaml") if code.startswith("model:")]


def test_the_documentation_has_commands_and_specs():
    assert len(COMMANDS) > 25
    assert len(SPECS) > 4


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_of_the_documentation_has_its_options(page, line):
    words, command = shlex.split(line, comments=True), typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"{page}: theodolite {line}"
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("-")} <= known, f"{page}: theodolite {line}"


@pytest.mark.parametrize(("page", "code"), SPECS)
def test_a_spec_of_the_documentation_is_valid(page, code):
    assert parse_spec(yaml.safe_load(code)).model.id, page
