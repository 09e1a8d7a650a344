"""Submit the jobs of `SPEC` to a service and look at them."""

from typing import Any

from starlette.testclient import TestClient
from support.serving import SPEC

from theodolite.spec_file import parse_spec

URL = "http://head:8265"
ID = parse_spec(SPEC).digest()


def another(number: int) -> dict[str, Any]:
    """Return a spec of another job."""
    return {**SPEC, "gram": {"samples": 100 + number}}


def submit(client: TestClient, spec: dict[str, Any] = SPEC, **given: Any) -> Any:
    answer = client.post("/v1/jobs", json=spec, **given)
    assert answer.status_code == 202, answer.text
    return answer


def show(client: TestClient, job_id: str = ID) -> Any:
    answer = client.get(f"/v1/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()
