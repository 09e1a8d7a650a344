"""Provide a store that all tests of the service only read, and a fake Ray cluster."""

from pathlib import Path

import pytest
from support.encoder_run import encoder_run
from support.made_once import made_once
from support.serving import REFUSAL, RayStandIn, captured_run, client_of, surveyed_run


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """A store with `tiny-0` (four layers), `tiny-1` (six layers, one contrast) and `captured-0` (no results)."""
    return str(made_once(tmp_path_factory, "library", fill)[0])


def fill(folder: Path) -> None:
    surveyed_run(folder)
    surveyed_run(folder, "tiny-1", seed=1, n_layers=6, contrasts={"refusal": REFUSAL})
    captured_run(folder, "captured-0", seed=2)


@pytest.fixture(scope="session")
def client(library):
    return client_of(library)


@pytest.fixture(scope="session")
def atlas(tmp_path_factory):
    """A run with heads and words."""
    return encoder_run(tmp_path_factory)


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
