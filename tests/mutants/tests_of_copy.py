"""Run tests in a copy of the sources, in a forked process that has imported the large libraries already."""

import multiprocessing
import os
import signal
import sys
from pathlib import Path

import pytest

PROCESSES = multiprocessing.get_context("forkserver")
# What tests import first; importing it again for each change would take longer than most tests.
PROCESSES.set_forkserver_preload(
    ["torch", "transformers", "ray", "zarr", "xarray", "dask.distributed", "scipy.stats", "sklearn", "plotly"]
)

_OUTCOMES = {None: "hung", 10: "accepted", 11: "noticed"}


def run_tests(copy: Path, tests: list[str], seconds: float) -> str:
    """Return whether the tests of a copy pass ("accepted"), fail ("noticed"), take too long ("hung"), or cannot run."""
    process = PROCESSES.Process(target=_run, args=(copy, tests))
    process.start()
    process.join(seconds)
    outcome = _OUTCOMES.get(process.exitcode, "error")
    if process.is_alive():
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return outcome


def _run(copy: Path, tests: list[str]) -> None:
    os.setsid()
    os.chdir(copy)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    paths = [str(copy / name) for name in ("jobs", "service", "tests")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # of the processes that tests start
    sys.path[:0] = paths
    options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    os._exit(10 + int(pytest.main([*options, *tests])))
