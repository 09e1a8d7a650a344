"""Shapes in annotations are checked while testing, and fixtures that several folders share."""

import gc
import os
import shlex
import sys
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook
from support.durations import stored_seconds

# Before anything imports them: pure functions say their arrays' shapes, and beartype holds them to it.
install_import_hook(
    ["theodolite_jobs.statistics", "theodolite_jobs.passes.one_shard", "theodolite_jobs.results.circuits"],
    "beartype.beartype",
)

from theodolite.settings import Settings  # noqa: E402
from theodolite.spec_parts import ModelSpec  # noqa: E402
from theodolite_jobs.models.load import load_tokenizer  # noqa: E402 - after the hook
from theodolite_jobs.models.source import fetch, resolve_source  # noqa: E402

settings.register_profile("nightly", settings.default, max_examples=1000)
settings.register_profile("daily", settings.default, max_examples=25)
settings.load_profile("daily")

CHAT_MODEL = "smollm2-135m-instruct"

# `make test-fast` leaves out tests of these fixtures, files and folders: they need a model, a cluster, whole analyses,
# many processes or thousands of draws.
SLOW_FIXTURES = {"atlas", "chat_model_folder", "chat_tokenizer", "ray_with_pretend_gpus"}
SLOW_PLACES = [
    Path(__file__).parent / name
    for name in (
        "browser",
        "deploy/test_configuration.py",
        "deploy/test_images.py",
        "deploy/test_kubernetes.py",
        "deploy/test_slurm.py",
        "deploy/test_watching.py",
        "integration",
        "jobs/capture",
        "jobs/cluster/test_ranks.py",
        "jobs/effects/test_ranks.py",
        "jobs/effects/test_routes.py",
        "jobs/models",
        "jobs/passes/test_collect.py",
        "jobs/prompts/test_hub_datasets.py",
        "jobs/report",
        "jobs/results",
        "jobs/statistics/test_bands.py",
        "jobs/statistics/test_curves.py",
        "jobs/statistics/test_curves_sample_size.py",
        "jobs/statistics/test_directions_reliability.py",
        "jobs/statistics/test_separation.py",
        "jobs/statistics/test_travel_growth.py",
        "jobs/statistics/test_travel_nulls.py",
        "jobs/statistics/test_travel_verdict.py",
        "jobs/statistics/test_words_trajectories.py",
        "jobs/test_analysis.py",
        "jobs/test_damaged_results.py",
        "jobs/test_inspection.py",
        "jobs/test_metrics_server.py",
        "service/api/test_connections.py",
        "service/api/test_damaged_runs.py",
        "service/api/test_light.py",
        "service/api/test_openapi.py",
        "service/query/test_exports.py",
        "service/query/test_first_tokens.py",
        "service/query/test_sections.py",
        "service/sections/test_nulls.py",
        "service/store/test_commit_protocol.py",
        "service/store/test_damaged_stores.py",
        "service/submission/test_job_histories.py",
        "service/test_spec_fuzz.py",
        "test_imports.py",
    )
]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave slow files unread where they would only be deselected, since their imports take seconds."""
    is_fast = config.option.markexpr.startswith("not (slow or ")
    return True if is_fast and collection_path in SLOW_PLACES else None


def pytest_collection_finish() -> None:
    """Keep the garbage collector from the objects of imported libraries and collected tests, which all stay."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if not SLOW_FIXTURES.isdisjoint(fixtures) or any(item.path.is_relative_to(place) for place in SLOW_PLACES):
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):  # in a queue of several workers, files that take long start first
        seconds = stored_seconds()
        items.sort(key=lambda item: -seconds.get(item.location[0], inf))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the command that repeats the tests that failed."""
    failed = [one.nodeid for kind in ("failed", "error") for one in terminalreporter.stats.get(kind, ())]
    if failed:
        tests = " ".join(map(shlex.quote, dict.fromkeys(failed)))
        terminalreporter.write_line(f"To repeat: OMP_NUM_THREADS=1 {sys.executable} -m pytest {tests}")


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
