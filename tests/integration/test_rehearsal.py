"""The compose file's commands on this machine, to the end: with a shared folder as the store, and with a bucket."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from support.ray_cluster import free_port

pytestmark = pytest.mark.nightly

REHEARSE = Path(__file__).parents[2] / "deploy/rehearsal/processes.py"
AWS = {
    "AWS_ACCESS_KEY_ID": "rehearsal",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}


@pytest.fixture
def bucket(tmp_path):
    """An S3 of the test's own, over HTTP; credentials come from the environment."""
    port = free_port()
    with (tmp_path / "s3.log").open("wb") as log:
        command = [Path(sys.executable).with_name("moto_server"), "-p", str(port)]
        server = subprocess.Popen(command, stdout=log, stderr=log)
        url = f"http://127.0.0.1:{port}"
        try:
            for _ in range(600):
                try:
                    assert httpx.put(f"{url}/surveys").is_success
                    break
                except httpx.ConnectError:
                    time.sleep(0.2)
            yield {**AWS, "AWS_ENDPOINT": url}
        finally:
            server.terminate()
            server.wait()


def rehearse(*arguments, **environment):
    found = subprocess.run(
        [sys.executable, REHEARSE, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-12000:]
    return json.loads(found.stdout.splitlines()[-1])


def assert_whole(seen):
    assert seen["job"]["state"] == "succeeded"
    assert seen["job"]["attempt"] == 1, "a node that dies costs its shards, and not the job"
    assert {name: at["done"] for name, at in seen["job"]["progress"].items()} == {
        "harmful": 16,
        "harmless": 16,
        "nouns": 16,
    }
    assert (seen["committed"]["shards"], seen["committed"]["prompts"]) == (12, 48)
    assert seen["curve_points"] == 60
    if "prometheus" in seen or os.environ.get("CI"):
        assert seen["prometheus"] == seen["committed"]
        assert seen["retries"] >= 1
        assert seen["alerts"]["TheodoliteNodeDown"] in ("pending", "firing")
        assert seen["alerts"]["TheodoliteApiDown"] == "inactive"


def test_the_deployment_with_a_shared_folder(chat_model_folder):
    assert_whole(rehearse())


def test_the_deployment_with_a_bucket(chat_model_folder, bucket):
    assert_whole(rehearse("--store", "s3://surveys/store", **bucket))
