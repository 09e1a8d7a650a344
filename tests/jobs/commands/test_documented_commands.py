"""The commands and specs in the README and in the documentation exist as they are written.

`tests/integration/test_documented_pages.py` runs those that need no cluster, no GPU and no download.
"""

import re
import shlex

import typer
import yaml
from support.documented import PAGES, ROOT, blocks, commands, inline_commands
from support.each import each

from theodolite.spec_file import parse_spec
from theodolite_jobs.cli import app

BLOCKS = [(page, block) for page in PAGES for block in blocks(page)]
SHELL = {(page.name, command) for page, block in BLOCKS if block.language == "sh" for command in commands(block.code)}
INLINE = {(page.name, command) for page in PAGES for command in inline_commands(page)}
CALL = re.compile(r"^(?:THEODOLITE_\w+=\S+ )?(?:\.venv/bin/)?theodolite ")
COMMANDS = sorted((page, CALL.sub("", line)) for page, line in SHELL | INLINE if CALL.match(line))
SPECS = [(page.name, block.code) for page, block in BLOCKS if block.language == "yaml" and "model:" in block.code]


def test_the_documentation_has_commands_and_specs():
    assert len(COMMANDS) > 60
    assert len(SPECS) > 7


@each("page, line", COMMANDS)
def test_a_command_of_the_documentation_has_its_options(page, line):
    words, command = shlex.split(line, comments=True), typer.main.get_command(app)
    while hasattr(command, "commands") and not words[0].startswith("-"):
        assert words[0] in command.commands, f"{page}: theodolite {line}"
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("-")} <= known | {"--help"}, f"{page}: theodolite {line}"


@each("page, code", SPECS)
def test_a_spec_of_the_documentation_is_valid(page, code):
    assert parse_spec(yaml.safe_load(code)).model.id, page


def test_a_command_may_span_lines_and_have_a_comment():
    code = "# first\na 'b  # no comment'   # a comment\ncurl -d '{\n  1}'\nb \\\n    c\n"
    assert list(commands(code)) == ["a 'b  # no comment'   # a comment", "curl -d '{\n  1}'", "b     c"]


SPAN = re.compile(r"`([^`\n]+)`")
FOLDERS = [ROOT / name for name in ("", "service/theodolite", "jobs/theodolite_jobs", "docs")]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))


@each("page", PAGES)
def test_a_page_names_files_and_targets_of_make_that_exist(page):
    names = SPAN.findall(page.read_text(encoding="utf-8"))
    files = [name for name in names if re.fullmatch(r"[a-z][a-z_.\d/-]*/[a-z_.\d-]+\.(py|ya?ml|toml|json|ipynb)", name)]
    assert [name for name in files if not any((folder / name).exists() for folder in FOLDERS)] == []
    targets = [name.split()[1] for name in names if name.startswith("make ")]
    assert [name for name in targets if name not in TARGETS] == []
