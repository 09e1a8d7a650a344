"""What rehearsals share: their specs, waiting, the progress of a survey job, and its counters in Prometheus."""

import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

from theodolite.client import Job

ROOT = Path(__file__).resolve().parents[2]
SPEC_FILE = ROOT / "jobs/theodolite_jobs/specs/rehearsal.yaml"
SPEC = yaml.safe_load(SPEC_FILE.read_text())
RECORDS = (ROOT / "deploy/rehearsal/records.py").read_text()
"""The script that compares two runs, to be read from standard input."""

SECONDS = 600
"""Time after which a rehearsal gives up waiting for something."""


def spec_of(name: str, prompts: int) -> dict[str, Any]:
    """Return the spec of the rehearsals with this number of prompts in each set; another number gives another run."""
    sets = {one: {**prompt_set, "limit": prompts} for one, prompt_set in SPEC["prompts"].items()}
    return {**SPEC, "name": name, "prompts": sets}


def is_halfway(job: Job) -> bool:
    """Return whether some but not all prompts are committed; raises SystemExit if the survey job has ended."""
    now = job.describe()
    if now["state"] not in ("queued", "running"):
        raise SystemExit(f"the survey job is {now['state']}: {now['reason']}")
    done, total = (sum(at[name] for at in now["progress"].values()) for name in ("done", "total"))
    return bool(0 < done < total)


def prometheus_counters(url: str, counters: dict[str, float]) -> dict[str, float | None]:
    """Return the counters in Prometheus, summed over drivers; raises SystemExit if they differ from commit records."""
    metrics = {
        "shards": "shards_committed",
        "prompts": "prompts_captured",
        "tokens": "tokens_captured",
        "shared_tokens": "prefix_tokens_saved",
        "padding_tokens": "padding_tokens",
        "quarantined": "prompts_quarantined",
        "oom_backoffs": "oom_backoffs",
        "stored_bytes": "store_bytes_written",
    }

    def last(name: str) -> float | None:
        return query(url, f"sum(max_over_time(theodolite_{name}_total[30m]))")

    wait_for(lambda: last("shards_committed") == counters["shards"], "the last shard in Prometheus")
    seen = {name: last(metric) for name, metric in metrics.items()}
    different = {name: (seen[name], counters[name]) for name in metrics if seen[name] != counters[name]}
    if different:
        raise SystemExit(f"counters differ (Prometheus, commit records): {different}")
    return seen


def query(url: str, expression: str) -> float | None:
    """Return the value of an expression in Prometheus; None if it has none."""
    result = httpx.get(f"{url}/api/v1/query", params={"query": expression}).json()["data"]["result"]
    return float(result[0]["value"][1]) if result else None


def alert_states(url: str) -> dict[str, str]:
    """Return the state of each alert."""
    rules = httpx.get(f"{url}/api/v1/rules").json()["data"]["groups"]
    return {rule["name"]: rule["state"] for group in rules for rule in group["rules"]}


def wait_for(
    condition: Callable[[], bool], what: str, check: Callable[[], None] = lambda: None, seconds: float = SECONDS
) -> None:
    """Wait until a condition holds, and call `check` meanwhile; raises SystemExit after a timeout."""
    deadline = time.monotonic() + seconds
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {seconds} s for {what}")
        time.sleep(0.2)


def is_up(url: str) -> bool:
    """Return whether a GET request succeeds."""
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def answers(address: str) -> bool:
    """Return whether a server listens at host:port."""
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except OSError:
        return False
    return True


def say(text: str) -> None:
    """Print a message to standard error."""
    print(text, file=sys.stderr, flush=True)
