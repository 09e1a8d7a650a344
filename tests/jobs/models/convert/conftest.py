"""A saved Qwen1 checkpoint, a copy that tests may change, and its conversion."""

import shutil
from pathlib import Path

import pytest
from support.qwen1 import save_qwen1

from theodolite_jobs.models.convert.qwen1 import convert_qwen1


@pytest.fixture(scope="session")
def saved_qwen1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model with the files of the hub; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("saved") / "qwen1"
    save_qwen1(folder)
    return folder


@pytest.fixture
def folder(saved_qwen1: Path, tmp_path: Path) -> Path:
    """A copy of `saved_qwen1` that a test may change."""
    return Path(shutil.copytree(saved_qwen1, tmp_path / "qwen1"))


@pytest.fixture(scope="session")
def converted(saved_qwen1: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The conversion of `saved_qwen1`; tests only read it."""
    return convert_qwen1(saved_qwen1, tmp_path_factory.mktemp("converted") / "qwen2")
