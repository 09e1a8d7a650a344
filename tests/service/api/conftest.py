"""Provide a store that all tests of the service only read, and a fake Ray cluster."""

from pathlib import Path

import pytest
from support.serving import REFUSAL, RayStandIn, captured_run, client_of, surveyed_run
from support.short_reports import short_reports

from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """A store with `tiny-0` (four layers), `tiny-1` (six layers, one contrast) and `captured-0` (no results)."""
    folder = tmp_path_factory.mktemp("library")
    surveyed_run(folder)
    surveyed_run(folder, "tiny-1", seed=1, n_layers=6, contrasts={"refusal": REFUSAL})
    captured_run(folder, "captured-0", seed=2)
    return str(folder)


@pytest.fixture(scope="session")
def client(library):
    return client_of(library)


@pytest.fixture(scope="session")
def atlas(tmp_path_factory):
    """A run over the weights of a small real encoder."""
    spec = {"model": {"id": "all-minilm-l6-v2"}, "prompts": {}, "heads": {"vectors": 2}, "words": {"tokens": 3}}
    settings = Settings(store=str(tmp_path_factory.mktemp("atlas")))
    with short_reports():
        return survey(parse_spec(spec), Path(), settings, Console())


@pytest.fixture(scope="session")
def atlas_client(atlas):
    return client_of(atlas.store)


@pytest.fixture
def ray(monkeypatch):
    """A fake Ray cluster at http://head:8265."""
    cluster = RayStandIn()
    monkeypatch.setattr("theodolite.submission.ray_jobs.httpx.request", cluster.request)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nonexistent")
    return cluster
