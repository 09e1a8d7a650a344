"""The overlays of deploy/kubernetes, and their objects with those of a batch survey."""

import json
from functools import cache
from pathlib import Path

import pytest
from support.rendering import Thing, render_survey

FOLDER = Path(__file__).parents[2] / "deploy/kubernetes/overlays"
OVERLAYS = sorted(set(FOLDER.iterdir()) - {FOLDER / "mine"})


@pytest.fixture(params=OVERLAYS, ids=lambda folder: folder.name)
def overlay(request) -> Path:
    return request.param


@pytest.fixture
def things(overlay) -> list[Thing]:
    return json.loads(rendered_once(overlay))


@cache
def rendered_once(overlay: Path) -> str:
    return json.dumps(render_survey(overlay))
