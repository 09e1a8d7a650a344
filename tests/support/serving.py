"""Provide clients of a service in this process, runs from random arrays, and a fake of a Ray cluster's HTTP API."""

import importlib.metadata
import itertools
import shutil
import socket
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
import xarray as xr
from starlette.testclient import TestClient
from support.analysing import analyse, survey_gram
from support.stored import store_run

from theodolite.api.access import SECONDS_CACHED
from theodolite.api.app import create_app
from theodolite.api.serving import serve
from theodolite.settings import Settings
from theodolite.spec_options import GramSpec
from theodolite.store.objects import get, keys, open_location, put
from theodolite.store.runs import Run, open_run, run_url

SITES = ("resid_pre", "resid_mid")
REFUSAL = {"positive": "harmful", "negative": "harmless", "paired": False}
CONTRASTS = {"refusal": REFUSAL, "subject": {"positive": "nouns", "negative": "harmless", "paired": False}}

SPEC: dict[str, Any] = {
    "model": {"id": "smollm2-135m-instruct"},
    "prompts": {
        "harmful": {"source": "builtin:harmful", "limit": 8},
        "harmless": {"source": "builtin:harmless", "limit": 8},
    },
    "contrasts": {"refusal": {"positive": "harmful", "negative": "harmless", "paired": True}},
    "analyses": ["curves"],
}


def draw_sets(seed: int = 0, n_layers: int = 4, d_model: int = 8) -> dict[str, dict[str, np.ndarray]]:
    """Return random activations of three sets; `nouns` has only the last position."""
    rng = np.random.default_rng(seed)
    sizes = {"harmful": (10, 2), "harmless": (9, 2), "nouns": (6, 1)}
    return {
        name: {
            site: (rng.normal(size=(n, positions, n_layers, d_model)) + rng.normal(size=d_model)).astype(np.float32)
            for site in SITES
        }
        for name, (n, positions) in sizes.items()
    }


def captured_run(folder: Path, run_id: str = "tiny-0", seed: int = 0, n_layers: int = 4, **record: Any) -> Run:
    """Write a captured run without results."""
    contrasts = record.pop("contrasts", CONTRASTS)
    return store_run(folder, draw_sets(seed, n_layers), run_id=run_id, contrasts=contrasts, **record)


_SURVEYED: dict[str, dict[str, bytes]] = {}
"""The objects of each surveyed run by their keys, since the statistics of a run take seconds."""


def surveyed_run(folder: Path, run_id: str = "tiny-0", seed: int = 0, n_layers: int = 4, **record: Any) -> Run:
    """Write a complete run with every analysis that needs no model."""
    arguments = repr((run_id, seed, n_layers, record))
    if arguments not in _SURVEYED:
        with TemporaryDirectory() as scratch:
            run = captured_run(Path(scratch), run_id, seed, n_layers, **record)
            contrasts = run.record.spec.resolved_contrasts()
            analyse(run, contrasts, None, lambda *_: None, {"separation", "travel"})
            survey_gram(run, contrasts, GramSpec(), None, lambda *_: None)
            contents = {key: get(run.location, key) for key in keys(run.location)}
            _SURVEYED[arguments] = {key: content for key, content in contents.items() if content is not None}
            assert len(_SURVEYED[arguments]) == len(contents)
    location = open_location(run_url(str(folder), run_id), create=True)
    for key, content in _SURVEYED[arguments].items():
        put(location, key, content)
    return open_run(str(folder), run_id)


def copied(library: str, folder: Path, *run_ids: str, with_activations: bool = False) -> str:
    """Copy runs into a new store, which a test may damage, and return its path; responses need no activations."""
    left_out = None if with_activations else shutil.ignore_patterns("activations.zarr")
    for run_id in run_ids:
        shutil.copytree(Path(library) / "runs" / run_id, folder / "runs" / run_id, ignore=left_out)
    return str(folder)


def stored_group(store: str, run_id: str, group: str) -> xr.Dataset:
    """Return the results of an analysis, read without the code of this project."""
    dataset: xr.Dataset
    with xr.open_zarr(f"{store}/runs/{run_id}/results.zarr", group=group, chunks=None) as dataset:
        return dataset.load()


def client_of(
    store: str | Path,
    *,
    tokenless: bool = True,
    client: tuple[str, int] = ("testclient", 50000),
    seconds_cached: float = SECONDS_CACHED,
    **settings: Any,
) -> TestClient:
    """Return a client on loopback of a service over this store; an exception of the service returns 500.

    Tests send more requests in a minute than people, so by default the limit is far above them.
    """
    settings = {"requests_per_minute": 10**9, **settings}
    app = create_app(
        Settings(store=str(store), **settings), open_without_tokens=tokenless, seconds_cached=seconds_cached
    )
    return TestClient(app, "http://localhost", raise_server_exceptions=False, client=client)


def configured(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> uvicorn.Config:
    """Return the loaded configuration of the server that `theodolite serve` would start on loopback."""
    configs: list[uvicorn.Config] = []

    def run(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        configs.append(server.config)
        sockets[0].close()

    with monkeypatch.context() as patched:
        patched.setattr("uvicorn.Server.run", run)
        patched.setattr("theodolite.api.serving.block_imports", lambda: None)
        patched.setattr("gc.freeze", lambda: None)
        patched.setattr("sys.setswitchinterval", lambda _seconds: None)
        serve(settings, "127.0.0.1", 0)
    configs[0].load()
    return configs[0]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def assert_problem(response: Any, status: int, *parts: str) -> None:
    """Assert that a response is a problem of RFC 9457 with this status, whose detail contains all parts."""
    assert response.status_code == status, response.text[:400]
    assert response.headers["content-type"] == "application/problem+json"
    content = response.json()
    assert content["status"] == status
    assert content["type"].startswith("urn:theodolite:")
    assert content["title"]
    for part in parts:
        assert part in content["detail"], content["detail"]


def numbers(values: list[Any]) -> np.ndarray:
    """Return a JSON list as floats, with NaN for null."""
    return np.array([np.nan if value is None else value for value in values], dtype=float)


class RayStandIn:
    """A fake of the job API of a Ray cluster's dashboard, in memory.

    Like Ray, it returns 500 for a submission id that was used before. Tests set the states with `set_state`.
    """

    def __init__(self, token: str | None = None) -> None:
        self.token = token
        self.jobs: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []
        self.failure: Exception | None = None
        self.log = "capturing\n"
        self.version = importlib.metadata.version("ray")
        self._lock = threading.Lock()

    @property
    def submitted(self) -> list[str]:
        """The ids of all submissions, in order."""
        return list(self.jobs)

    def set_state(self, submission: str, status: str, message: str = "") -> None:
        self.jobs[submission] |= {"status": status, "message": message}

    def request(self, method: str, url: str, json: Any = None, headers: Any = None, **_: Any) -> httpx.Response:
        """Return a response; tests replace `httpx.request` by this method."""
        path = httpx.URL(url).path
        self.requests.append((method, path))
        if self.failure is not None:
            raise self.failure
        with self._lock:
            status, content = self._answer(method, path, json, headers or {})
        request = httpx.Request(method, url)
        if isinstance(content, str):
            return httpx.Response(status, text=content, request=request)
        return httpx.Response(status, json=content, request=request)

    def _answer(self, method: str, path: str, content: Any, headers: Any) -> tuple[int, Any]:
        if self.token and headers.get("Authorization") != f"Bearer {self.token}":
            return 401, "Unauthorized: Missing authentication token"
        if path == "/api/version":
            return 200, {"ray_version": self.version}
        parts = path.removeprefix("/api/jobs").strip("/").split("/")
        if method == "POST" and parts == [""]:
            name = content["submission_id"]
            if name in self.jobs:
                return 500, f"Traceback (most recent call last):\nValueError: Job with submission_id {name} exists."
            self.jobs[name] = {**content, "status": "PENDING", "message": "", "type": "SUBMISSION"}
            return 200, {"job_id": name, "submission_id": name}
        if method == "GET" and parts == [""]:
            driver = {"type": "DRIVER", "submission_id": None, "job_id": "01000000", "status": "RUNNING"}
            return 200, [driver, *self.jobs.values()]
        if parts[0] not in self.jobs:
            return 404, f"Job {parts[0]} does not exist"
        if method == "GET":
            return 200, {"logs": self.log} if parts[1:] == ["logs"] else self.jobs[parts[0]]
        if method == "DELETE":
            return 200, {"deleted": bool(self.jobs.pop(parts[0]))}
        self.set_state(parts[0], "STOPPED")
        return 200, {"stopped": True}


def pages_of(client: TestClient, path: str, **params: Any) -> list[list[dict[str, Any]]]:
    """Return the items of each page, by following the cursors."""
    pages, cursor = [], None
    for _ in itertools.count():
        answer = client.get(path, params={**params, **({"cursor": cursor} if cursor else {})})
        assert answer.status_code == 200, answer.text
        content = answer.json()
        pages.append(content["items"])
        cursor = content["next"]
        if cursor is None:
            return pages
    raise AssertionError
