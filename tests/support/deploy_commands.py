"""What the deployment files start, held against the programs themselves."""

import importlib
import os
import shutil
import subprocess
from itertools import pairwise
from typing import Any

import pytest

from theodolite_jobs.models.convert.files import SMALL_FILES
from theodolite_jobs.models.hub import _DUPLICATES

PROGRAMS = {
    "ray": ("ray.scripts.scripts", "cli"),
    "dask scheduler": ("distributed.cli.dask_scheduler", "main"),
    "dask worker": ("distributed.cli.dask_worker", "main"),
    "hf": ("huggingface_hub.cli.hf", "app"),
    "theodolite": ("theodolite_jobs.cli", "app"),
}


def assert_understood(command: list[str]) -> None:
    """Let a program parse its arguments, and do nothing."""
    name = " ".join(command[:2]) if command[0] == "dask" else command[0]
    module, attribute = PROGRAMS[name]
    program: Any = getattr(importlib.import_module(module), attribute)
    if not hasattr(program, "make_context"):
        program = importlib.import_module("typer.main").get_command(program)
    arguments = command[len(name.split()) :]
    context = program.make_context(name, arguments)
    while getattr(program, "commands", None):
        name, program, arguments = program.resolve_command(context, [*context._protected_args, *context.args])
        context = program.make_context(name, arguments, parent=context)


def assert_fetches_what_surveys_read(command: list[str]) -> None:
    """Hold the patterns of `hf download` against those of a survey that is offline later."""
    pairs = list(pairwise(command))
    assert {value for option, value in pairs if option == "--include"} == {*SMALL_FILES, "*.safetensors"}
    assert {value for option, value in pairs if option == "--exclude"} == set(_DUPLICATES)


def promtool(*arguments: object) -> None:
    """Have Prometheus' own tool look at something."""
    tool = shutil.which("promtool")
    if tool is None:
        if os.environ.get("CI"):
            pytest.fail("CI needs promtool")
        pytest.skip("promtool is not installed; Debian's package prometheus has it")
    done = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
