"""Shapes in annotations are checked while testing, and fixtures that several folders share."""

import gc
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.subtests import SubtestReport
from hypothesis import settings
from jaxtyping import install_import_hook
from support.durations import seconds_of_units, unit_of

# Before anything imports them: pure functions say their arrays' shapes, and beartype holds them to it.
JOBS = Path(__file__).parents[1] / "jobs"
FORMULAS = [".".join(file.relative_to(JOBS).with_suffix("").parts) for file in JOBS.glob("*/groups/*/formulas*.py")]
install_import_hook(
    [*FORMULAS, "theodolite_jobs.statistics", "theodolite_jobs.passes.one_shard", "theodolite_jobs.results.circuits"],
    "beartype.beartype",
)

from theodolite.settings import Settings  # noqa: E402
from theodolite.spec_parts import ModelSpec  # noqa: E402
from theodolite_jobs.models.load import load_tokenizer  # noqa: E402 - after the hook
from theodolite_jobs.models.source import fetch, resolve_source  # noqa: E402

settings.register_profile("nightly", settings.default, max_examples=1000, deadline=None)
settings.register_profile("daily", settings.default, max_examples=25)
settings.load_profile("daily")

CHAT_MODEL = "smollm2-135m-instruct"


pytest.register_assert_rewrite("families")  # its failures show the compared values too


def pytest_collection_finish() -> None:
    """Keep the garbage collector from the objects of imported libraries and collected tests, which all stay.

    It also begins a hundred times less often: tests make many objects, and few cycles.
    """
    gc.freeze()
    gc.set_threshold(70_000)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Queue(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(super()._split_scope(nodeid))

    return Queue(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # in a queue of several workers, units that take long start first
        seconds = seconds_of_units(item.location[0] for item in items)
        items.sort(key=lambda item: (-seconds[unit := unit_of(item.location[0])], unit))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the seconds of a subtest once, with those of its test."""
    if isinstance(report, SubtestReport):
        report.duration = 0.0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the command that repeats the tests that failed."""
    failed = [one.nodeid for kind in ("failed", "error") for one in terminalreporter.stats.get(kind, ())]
    if failed:
        tests = " ".join(map(shlex.quote, dict.fromkeys(failed)))
        drawn = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "OPENAPI_EXAMPLES") if name in os.environ}
        profile = terminalreporter.config.getoption("hypothesis_profile")
        words = [*(f"{name}={value}" for name, value in drawn.items()), sys.executable, "-m pytest"]
        words += [f"--hypothesis-profile={profile}"] if profile else []
        terminalreporter.write_line(f"To repeat: {' '.join(words)} {tests}")


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
