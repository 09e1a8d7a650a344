"""What a module may import is part of the architecture; each is asked in a fresh process."""

import re
import subprocess
import sys

import pytest
from support.each import each
from support.extras import start_command

HEAVY = {"torch", "transformers", "ray", "dask", "distributed"}
SLOW = {*HEAVY, "datasets", "sklearn", "scipy", "numba"}
"""Libraries that take seconds to load, which a refusal does not wait for."""


# import-linter forbids what no module of a package imports. What a module imports only inside its functions shows here.
@each(
    "modules, forbidden",
    [
        ("theodolite", {*HEAVY, "zarr", "pandas", "httpx"}),
        ("theodolite.spec", {*HEAVY, "zarr", "obstore"}),
        ("theodolite_jobs.cli", {*HEAVY, "zarr", "obstore", "numpy", "pydantic"}),
        ("theodolite_jobs.cluster.scheduling, theodolite_jobs.cluster.ranks, theodolite_jobs.report.page", HEAVY),
        ("theodolite_jobs.capture.parity", {"ray", "dask", "zarr", "obstore", "pydantic_settings", "typer"}),
        (", ".join(f"theodolite_jobs.{name}" for name in ("survey", "prepare", "estimate", "inspection")), SLOW),
        ("theodolite_jobs.results.context", {"torch", "transformers", "ray"}),
    ],
)
def test_modules_import_nothing_that_takes_seconds(modules, forbidden):
    code = f"import sys, {modules}; print(*sorted({forbidden!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


@pytest.mark.nightly
@each("arguments", [("--help",), ("survey", "--help"), ("spec", "schema"), ("run", "list", "--store", ".")])
def test_a_command_that_reads_needs_no_extra(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = start_command(*arguments)
    _, errors = command.communicate(timeout=300)
    assert command.returncode == 0, errors


@pytest.mark.nightly
@each(
    "arguments, extra",
    [
        (("serve", "--port", "0"), "service"),
        (("mcp",), "mcp"),
        (("heads", "smollm2-135m-instruct"), "jobs"),
        (("model", "."), "jobs"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(arguments, extra, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.chdir(tmp_path)
    command = start_command(*arguments)
    _, errors = command.communicate(timeout=300)
    assert command.returncode == 1
    lacking = "error: this command needs packages that are not installed (No module named '{}'); "
    assert re.sub(r"'\w+'", "'{}'", errors, count=1) == lacking + f"run: pip install 'theodolite[{extra}]'\n"


def test_the_package_names_what_it_imports_at_first_use():
    code = "import theodolite; print(*dir(theodolite)); print(theodolite.Client.__name__, theodolite.runs.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = "Client __version__ analyse compare export_vector heads label load_vector open_run plan remove runs survey"
    assert found.stdout.splitlines() == [f"{names} verify", "Client runs"]
