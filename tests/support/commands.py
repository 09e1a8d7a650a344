"""Commands of Theodolite in the process of a test, which has imported torch already."""

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from theodolite_jobs.cli import main

THEODOLITE = str(Path(sys.executable).with_name("theodolite"))
"""The command, for tests that need a process of its own."""


def theodolite(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command, which answers each question with yes."""
    command, stdout, stderr, code = [THEODOLITE, *map(str, words)], io.StringIO(), io.StringIO(), 0
    replaced = patch.multiple(sys, argv=command, stdin=io.StringIO("y\n"))
    with replaced, redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return subprocess.CompletedProcess(command, code, stdout.getvalue(), stderr.getvalue())
