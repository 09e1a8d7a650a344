"""What the project's extras install, and the command where nothing else can be imported."""

import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in {absent!r}:
            return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
from theodolite_jobs.cli import main
main()
"""
"""The command, in a process that does not find some modules."""


def start_command(*arguments: str, extras: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start `theodolite` as if only these extras of it were installed."""
    kept = distributions(*extras) | {"theodolite"}
    owners = packages_distributions().items()
    absent = {module for module, names in owners if not kept & {canonicalize_name(name) for name in names}}
    code = [sys.executable, "-c", WITHOUT.format(absent=absent), *arguments]
    return subprocess.Popen(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def distributions(*extras: str) -> set[str]:
    """Return the packages that an installation with these extras has: what they name, and what that needs."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    found: set[tuple[str, str]] = set()
    waiting = _packages(lines, "")
    while waiting:
        name, extra = package = waiting.pop()
        found.add(package)
        try:
            needs = requires(name) or []
        except PackageNotFoundError:  # needed on other systems or Pythons
            continue
        waiting |= _packages(needs, extra) - found
    return {name for name, _ in found}


def _packages(lines: list[str], extra: str) -> set[tuple[str, str]]:
    """Return the requirements that count under an extra, each with each extra it asks for and with none."""
    needs = [Requirement(line) for line in lines]
    counting = [need for need in needs if not need.marker or need.marker.evaluate({"extra": extra})]
    return {(canonicalize_name(need.name), more) for need in counting for more in ("", *need.extras)}
