"""A complete run of the tiny model, and copies of it that tests damage."""

import shutil
from pathlib import Path

import pytest
from support.damages import settings
from support.short_reports import short_reports
from support.tiny_survey import save_model, spec_of

from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """The folder of the tiny model."""
    return save_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def whole(ray_with_pretend_gpus, tiny_folder, tmp_path_factory):
    """The folder of a complete run."""
    store = tmp_path_factory.mktemp("whole")
    with short_reports():
        return Path(survey(spec_of(tiny_folder), Path(), settings(store), Console()).url)


@pytest.fixture
def without_figures():
    """Write reports without figures during a test."""
    with short_reports():
        yield


@pytest.fixture
def damaged(whole, tmp_path):
    """A copy of the run, for the test to damage."""
    return Path(shutil.copytree(whole, tmp_path / "store/runs" / whole.name))
