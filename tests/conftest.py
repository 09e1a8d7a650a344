"""Shapes in annotations are checked while testing, and fixtures that several folders share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

# Before anything imports them: pure functions say their arrays' shapes, and beartype holds them to it.
install_import_hook(
    ["theodolite_jobs.statistics", "theodolite_jobs.passes.one_shard", "theodolite_jobs.results.circuits"],
    "beartype.beartype",
)

from theodolite.settings import Settings  # noqa: E402
from theodolite.spec import ModelSpec  # noqa: E402
from theodolite_jobs.models.load import load_tokenizer  # noqa: E402 - after the hook
from theodolite_jobs.models.source import fetch, resolve_source  # noqa: E402

CHAT_MODEL = "smollm2-135m-instruct"

# What needs these is left out of `make test-fast`.
SLOW_FIXTURES = {"chat_model_folder", "chat_tokenizer", "ray_with_pretend_gpus"}
SLOW_FOLDERS = [Path(__file__).with_name("integration")]


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if not SLOW_FIXTURES.isdisjoint(fixtures) or any(item.path.is_relative_to(folder) for folder in SLOW_FOLDERS):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def chat_model_folder() -> Path:
    """The real 135M chat model, converted once into the user's cache."""
    return fetch(resolve_source(ModelSpec(id=CHAT_MODEL), Path()), Settings().cache)


@pytest.fixture(scope="session")
def chat_tokenizer(chat_model_folder: Path):
    return load_tokenizer(chat_model_folder)


@pytest.fixture(scope="session")
def ray_with_pretend_gpus() -> Iterator[None]:
    """Ray on this machine, which believes it has four GPUs."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=4,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 2**20,
    )
    yield
    ray.shutdown()
