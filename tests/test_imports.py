"""What a module may import is part of the architecture; each is asked in a fresh process."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "ray", "dask", "distributed"}


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("theodolite.spec", {*HEAVY, "zarr", "obstore"}),
        ("theodolite.query.runs", HEAVY),
        ("theodolite.query.curves", HEAVY),
        ("theodolite.query.compare", HEAVY),
        ("theodolite.query.published", HEAVY),
        ("theodolite.figures.comparison", HEAVY),
        ("theodolite.figures.geometry", HEAVY),
        ("theodolite_jobs.statistics.separation", {*HEAVY, "zarr", "obstore"}),
        ("theodolite.figures", HEAVY),
        ("theodolite", {*HEAVY, "zarr", "pandas", "httpx"}),
        ("theodolite.client", HEAVY),
        ("theodolite.reading", HEAVY),
        ("theodolite.export", HEAVY),
        ("theodolite.cluster.submit", HEAVY),
        ("theodolite.cluster.jobs", HEAVY),
        ("theodolite.cluster.driver", HEAVY),
        ("theodolite.cluster.ranks", HEAVY),
        ("theodolite.metrics", HEAVY),
        ("theodolite.waiting", HEAVY),
        ("theodolite_jobs.report.page", HEAVY),
        ("theodolite.capture.parity", {"ray", "dask", "zarr", "obstore", "pydantic_settings", "typer"}),
        ("theodolite_jobs.stream.pipeline", {"torch", "transformers", "ray"}),
        ("theodolite_jobs.cli", {*HEAVY, "zarr", "obstore", "numpy", "pydantic"}),
    ],
)
def test_module_imports_nothing_it_must_not_know(module, forbidden):
    code = f"import sys, {module}; print(*sorted({forbidden!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
