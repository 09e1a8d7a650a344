"""What a module may import is part of the architecture; each is asked in a fresh process."""

import re
import subprocess
import sys

import pytest
from support.extras import start_command

HEAVY = {"torch", "transformers", "ray", "dask", "distributed"}
SLOW = {*HEAVY, "datasets", "sklearn", "scipy", "numba"}
"""Libraries that take seconds to load, which a refusal does not wait for."""


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("theodolite.spec", {*HEAVY, "zarr", "obstore"}),
        ("theodolite.query.runs", HEAVY),
        ("theodolite.query.curves", HEAVY),
        ("theodolite.query.compare", HEAVY),
        ("theodolite.query.published", HEAVY),
        ("theodolite.figures.comparison", HEAVY),
        ("theodolite.figures.gram", HEAVY),
        ("theodolite_jobs.statistics.separation", {*HEAVY, "zarr", "obstore"}),
        ("theodolite.figures", HEAVY),
        ("theodolite", {*HEAVY, "zarr", "pandas", "httpx"}),
        ("theodolite.client", HEAVY),
        ("theodolite.run_reader", HEAVY),
        ("theodolite.store_reader", HEAVY),
        ("theodolite.export", HEAVY),
        ("theodolite.submission.ray_jobs", HEAVY),
        ("theodolite.submission.surveys", HEAVY),
        ("theodolite_jobs.cluster.scheduling", HEAVY),
        ("theodolite_jobs.cluster.ranks", HEAVY),
        ("theodolite.metrics", HEAVY),
        ("theodolite.submission.waiting", HEAVY),
        ("theodolite_jobs.report.page", HEAVY),
        ("theodolite_jobs.capture.parity", {"ray", "dask", "zarr", "obstore", "pydantic_settings", "typer"}),
        *((f"theodolite_jobs.{name}", SLOW) for name in ("survey", "prepare", "estimate", "inspection")),
        ("theodolite_jobs.results.context", {"torch", "transformers", "ray"}),
        ("theodolite_jobs.cli", {*HEAVY, "zarr", "obstore", "numpy", "pydantic"}),
    ],
)
def test_module_imports_nothing_it_must_not_know(module, forbidden):
    code = f"import sys, {module}; print(*sorted({forbidden!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


@pytest.mark.parametrize("arguments", [("--help",), ("survey", "--help"), ("spec", "schema"), ("runs", "--store", ".")])
def test_a_command_that_reads_needs_no_extra(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = start_command(*arguments)
    _, errors = command.communicate(timeout=300)
    assert command.returncode == 0, errors


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("serve", "--port", "0"), "service"),
        (("heads", "smollm2-135m-instruct"), "jobs"),
        (("model", "inspect", "."), "jobs"),
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
    assert found.stdout.splitlines() == ["Client __version__ open_run runs", "Client runs"]
