"""Processes that start in milliseconds: copies of one that has imported what takes seconds."""

import os
import sys
from multiprocessing import forkserver, get_context
from typing import Any
from unittest.mock import patch

from theodolite.groups import GROUPS

PROCESSES = get_context("forkserver")
_forkserver: Any = forkserver._forkserver  # the process whose copies all others are
PRELOADED = [
    "chaos.processes",
    "support.rank_group",
    "theodolite_jobs.capture.parity",
    "theodolite_jobs.models.load",
    "theodolite_jobs.passes.reduced",
    *(f"theodolite_jobs.groups.{name}.compute" for name in GROUPS),
    "transformers.models.llama.modeling_llama",
    "dask.array",
    "plotly.graph_objects",
    "pyarrow.parquet",
    "scipy.stats",
    "scipy.sparse",
]


def start_forks() -> str:
    """Start the process whose copies all others are, unless it runs; return its address."""
    PROCESSES.set_forkserver_preload(PRELOADED)
    # Python 3.11 does not give it sys.path, and passes over what it cannot import.
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        _forkserver.ensure_running()
    return str(_forkserver._forkserver_address)


def share_forks(address: str) -> None:
    """Let this process start others through the process that it is a copy of; Python would start another one."""
    _forkserver._forkserver_address = address
    _forkserver.ensure_running = lambda: None
