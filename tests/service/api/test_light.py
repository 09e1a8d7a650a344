"""Check in a new process that the service imports no heavy package, so that it starts fast and needs little memory."""

import subprocess
import sys

from support.each import each

HEAVY = {"torch", "transformers", "ray", "dask", "distributed", "datasets", "sklearn"}

REQUESTED = """
import sys
from theodolite.api.serving import block_imports
block_imports()
from starlette.testclient import TestClient
from theodolite.api.app import create_app
from theodolite.settings import Settings
client = TestClient(create_app(Settings(store={store!r}), open_without_tokens=True), "http://localhost")
run = "/v1/runs/tiny-0"
paths = ("/v1/runs", run, run + "/curves", run + "/objects/COMPLETE", run + "/tables/growth",
         run + "/sections/gram", run + "/figures/gram.shape", "/v1/compare?run=tiny-1", "/openapi.json", "/v1/jobs")
flat = (run + "/curves", run + "/tables/growth?limit=5", run + "/directions/refusal?site=resid_pre&layer=0",
        "/v1/compare?run=tiny-1")
for form in ("application/json", "application/vnd.apache.parquet"):
    for path in paths if form == "application/json" else flat:
        answer = client.get(path, headers={{"Accept": form}})
        assert answer.status_code == 200, (path, form, answer.text)
print(*sorted(name for name in {heavy!r} | {{"pyarrow"}} if sys.modules.get(name)))
for form in ("application/vnd.apache.arrow.stream", "application/vnd.apache.parquet", "application/json"):
    for path in flat:  # the import of Arrow does not change the other responses
        answer = client.get(path, headers={{"Accept": form}})
        assert answer.status_code == 200, (path, form, answer.text)
"""


@each(
    "module, forbidden",
    [
        ("theodolite.api.app", HEAVY),
        ("theodolite.submission.job_store", {*HEAVY, "fastapi", "plotly", "pandas", "xarray"}),
        ("theodolite.submission.ray_jobs", {*HEAVY, "fastapi", "plotly", "zarr"}),
    ],
)
def test_a_module_imports_no_forbidden_module(module, forbidden):
    code = f"import sys, {module}; print(*sorted({forbidden!r} & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == []


def test_responses_import_no_heavy_module(library):
    """Block the same imports as `theodolite serve`: Dask for xarray, and pyarrow for pandas."""
    code = REQUESTED.format(store=library, heavy=HEAVY)
    process = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == []
