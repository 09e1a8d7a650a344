"""A complete run of the tiny model, copies of it that tests damage, and replicas that start without Ray."""

import shutil
from pathlib import Path

import pytest
from chaos.processes import capture_without_ray
from support.damages import settings
from support.short_reports import short_reports
from support.tiny_sizes import GROUPED
from support.tiny_survey import save_model, spec_of
from transformers import LlamaConfig

from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """The folder of a tiny model of three layers."""
    config = LlamaConfig(**GROUPED | {"num_hidden_layers": 3})
    return save_model(tmp_path_factory.mktemp("tiny") / "model", config=config)


@pytest.fixture(scope="module")
def without_figures():
    """Let the surveys of a module write reports without figures: drawing takes most of the time of a tiny survey."""
    with short_reports():
        yield


@pytest.fixture(scope="module")
def forked_replicas():
    """Let the surveys of a module capture with forked replicas, which start in milliseconds; those of Ray need seconds.

    Tests of Ray itself use `ray_with_pretend_gpus` instead.
    """
    with capture_without_ray():
        yield


@pytest.fixture(scope="session")
def whole(tiny_folder, tmp_path_factory):
    """The folder of a complete run."""
    store = tmp_path_factory.mktemp("whole")
    with short_reports(), capture_without_ray():
        return Path(survey(spec_of(tiny_folder), Path(), settings(store), Console()).url)


@pytest.fixture
def damaged(whole, tmp_path):
    """A copy of the run, for the test to damage."""
    return Path(shutil.copytree(whole, tmp_path / "store/runs" / whole.name))
