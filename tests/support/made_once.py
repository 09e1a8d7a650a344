"""What several workers of a run use, and one of them makes."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> tuple[Path, Any]:
    """Return this worker's copy of a folder, and what `make` returned when it filled the first one (as JSON)."""
    of_run = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    folder, returned = of_run / name, of_run / f"{name}.json"
    with FileLock(of_run / f"{name}.lock"):
        if not returned.exists():
            shutil.rmtree(folder, ignore_errors=True)  # what a worker left that failed
            folder.mkdir()
            returned.write_text(json.dumps(make(folder)))
    return Path(shutil.copytree(folder, factory.mktemp("copies") / name)), json.loads(returned.read_text())
