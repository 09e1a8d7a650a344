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
        ("theodolite.figures.gram", HEAVY),
        ("theodolite_jobs.statistics.separation", {*HEAVY, "zarr", "obstore"}),
        ("theodolite.figures", HEAVY),
        ("theodolite", {*HEAVY, "zarr", "pandas", "httpx"}),
        ("theodolite.client", HEAVY),
        ("theodolite.run_reader", HEAVY),
        ("theodolite.export", HEAVY),
        ("theodolite.submission.ray_jobs", HEAVY),
        ("theodolite.submission.surveys", HEAVY),
        ("theodolite_jobs.cluster.scheduling", HEAVY),
        ("theodolite_jobs.cluster.ranks", HEAVY),
        ("theodolite.metrics", HEAVY),
        ("theodolite.submission.waiting", HEAVY),
        ("theodolite_jobs.report.page", HEAVY),
        ("theodolite_jobs.capture.parity", {"ray", "dask", "zarr", "obstore", "pydantic_settings", "typer"}),
        ("theodolite_jobs.results.context", {"torch", "transformers", "ray"}),
        ("theodolite_jobs.cli", {*HEAVY, "zarr", "obstore", "numpy", "pydantic"}),
    ],
)
def test_module_imports_nothing_it_must_not_know(module, forbidden):
    code = f"import sys, {module}; print(*sorted({forbidden!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
