"""The images: what their file says, and that the service runs on the little that its own image holds."""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from support.extras import distributions, start_command
from support.finished_runs import finished_run

from theodolite.model_aliases import MODEL_ALIASES

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
STAGES = {text.split()[2]: text for text in re.split(r"^FROM ", DOCKERFILE, flags=re.M)[1:]}
HEAVY = {
    "torch",
    "ray",
    "dask",
    "distributed",
    "transformers",
    "datasets",
    "accelerate",
    "scikit-learn",
    "scipy",
    "numba",
    "peft",
}


@pytest.mark.nightly
def test_the_service_runs_on_its_requirements_alone(tmp_path):
    run = finished_run(tmp_path, {"moments": {}, "curves": {"variance_mean": 1.0}, "directions": {}})
    made = start_command("token", "create", "--store", str(tmp_path), "--scope", "read", "--json")
    token = json.loads(made.communicate(timeout=120)[0])["token"]
    serve = ("serve", "--store", str(tmp_path), "--host", "0.0.0.0", "--port", "0")
    service = start_command(*serve, extras=("service",))
    try:
        port = re.search(r"http://0\.0\.0\.0:(\d+)", service.stdout.readline())[1]
        curves = f"/v1/runs/{run.id}/curves?statistic=variance_mean"
        figure = f"/v1/runs/{run.id}/figures/curves.refusal.-1"
        pages = ["/", "/docs", "/static/swagger-ui-bundle.js", "/static/plotly.min.js", "/openapi.json"]
        for path in (*pages, "/readyz", "/metrics", f"/v1/runs/{run.id}/sections", curves, figure):
            assert get(port, path, token), path
        assert get(port, curves, token, "application/vnd.apache.parquet")[:4] == b"PAR1"
    finally:
        service.terminate()
        service.communicate(timeout=120)


def test_the_service_has_nothing_heavy():
    assert not distributions("service") & HEAVY


@pytest.mark.parametrize("target", ["api", "jobs", "capture"])
def test_an_image_is_no_root_checks_itself_and_was_tried_when_it_was_built(target):
    instructions = re.findall(r"^([A-Z]+) (.*)", STAGES[target], flags=re.M)
    after_user = [name for name, _ in instructions][[name for name, _ in instructions].index("USER") :]
    assert after_user[:2] == ["USER", "RUN"], "the smoke import runs as the user"
    assert {"HEALTHCHECK", "CMD"} <= set(after_user)
    assert ("USER", "10001:10001") in instructions
    # Exec form: signals reach the program, and no shell is needed.
    assert all(value.startswith('["') for name, value in instructions if name == "CMD")


def test_only_the_images_for_jobs_have_torch():
    assert STAGES["api"].startswith("base AS")
    assert STAGES["jobs"].startswith("torch-cpu AS")
    assert STAGES["capture"].startswith("torch-cuda AS")


def test_what_is_copied_is_let_through_and_nothing_else_is():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*", "a folder of secrets beside the sources must not become part of an image"
    let_through = {line[1:].rstrip("/") for line in lines if line[0] == "!"}
    copied = {
        name.rstrip("/")
        for line in re.findall(r"^COPY (?!--)(.*)", DOCKERFILE, flags=re.M)
        for name in line.split()[:-1]
    }
    assert {name for name in copied if not name.startswith("deploy/requirements/")} | {
        "deploy/requirements"
    } == let_through
    assert all((ROOT / name).exists() for name in copied)


def test_no_frontend_without_a_digest_reads_the_file():
    assert not re.search(r"^#\s*syntax\s*=", DOCKERFILE, flags=re.M)


def test_the_base_is_pinned_and_the_model_is_the_one_that_surveys_name():
    assert re.search(r"^ARG PYTHON=python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}$", DOCKERFILE, flags=re.M)
    models = {words[2] for words in MODEL_ALIASES.values()}
    (model,) = re.findall(r"^[\w-]+==[\d.]+", (ROOT / "deploy/requirements/model.txt").read_text(), flags=re.M)
    assert model in models


def test_hadolint_has_nothing_to_say():
    program = Path(sys.executable).parent / "hadolint"
    found = subprocess.run([program, ROOT / "deploy/Dockerfile"], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def get(port: str, path: str, token: str, accept: str = "*/*") -> bytes:
    headers = {"Authorization": f"Bearer {token}", "Accept": accept}
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)) as answer:
        return answer.read()
