"""Change the code in one place at a time, and count the changes that the tests notice; write a report as JSON.

The tests of a change are those that executed its lines in a run with contexts (see `make mutants`): the fastest ones
first, until one fails, or all have run that fit into the time. A change that no test executes, or that all of its tests
accept, is reported. Code that runs only in other processes is not recorded.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from coverage import CoverageData
from support.durations import test_seconds

from mutants.changes import Change, changed, draw_changes
from mutants.tests_of_copy import run_tests

ROOT = Path(__file__).parents[2]
JOBS, SERVICE = "jobs/theodolite_jobs", "service/theodolite"
FOLDERS = tuple(f"{JOBS}/{name}" for name in ("statistics", "groups", "capture", "models", "cluster"))
FOLDERS += (f"{SERVICE}/store",)

COPIED = ("service", "jobs", "tests", "deploy", "docs", "benchmarks", ".ci", "Makefile", "pyproject.toml", "mkdocs.yml")
COPIED += ("README.md", "CHANGELOG.md", "constraints.txt", "docker-compose.yml", ".dockerignore")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coverage", type=Path, default=ROOT / ".coverage", help="data of a run with contexts")
    parser.add_argument("--durations", type=Path, default=ROOT / "junit.xml", help="JUnit report of the same run")
    parser.add_argument("--number", type=int, default=400, help="number of changes")
    parser.add_argument("--seed", type=int, default=0, help="which changes")
    parser.add_argument("--seconds", type=float, default=90, help="time of the tests of one change, without the start")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="changes at the same time")
    parser.add_argument("--out", type=Path, help="file for the report (JSON)")
    options = parser.parse_args()
    changes = draw_changes(ROOT, FOLDERS, options.number, options.seed)
    tests_of = executed_lines(options.coverage, test_seconds(options.durations), options.seconds)
    report = run(changes, tests_of, options.processes, options.seconds)
    machine = f"{platform.machine()}, {platform.system()}, {os.cpu_count()} cores"
    report = {"date": datetime.now(UTC).date().isoformat(), "machine": machine, "seed": options.seed, **report}
    print(json.dumps({name: value for name, value in report.items() if name != "accepted"}, indent=1))
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


def executed_lines(coverage: Path, durations: dict[str, float], seconds: float) -> Any:
    """Return the function that finds the tests of a change: the fastest ones, up to a sum of seconds."""
    data = CoverageData(str(coverage))
    data.read()
    files = {Path(file).as_posix().rpartition("/jobs/theodolite_jobs/")[2]: file for file in data.measured_files()}
    files |= {Path(file).as_posix().rpartition("/service/theodolite/")[2]: file for file in data.measured_files()}

    def tests_of(change: Change) -> list[str]:
        measured = files.get(change.file.split("/", 2)[2])
        lines = data.contexts_by_lineno(measured) if measured else {}
        contexts = {one for line in range(change.first_line, change.last_line + 1) for one in lines.get(line, ())}
        tests = {context.partition("|")[0] for context in contexts if context} & set(durations)
        chosen, total = [], 0.0
        for test in sorted(tests, key=lambda test: durations[test]):
            total += durations[test]
            if chosen and total > seconds:
                break
            chosen.append(test)
        return chosen

    return tests_of


def run(changes: list[Change], tests_of: Any, processes: int, seconds: float) -> dict[str, Any]:
    """Run the tests of all changes, some at the same time, each in a copy of the sources."""
    begin, outcomes = time.monotonic(), Counter[str]()
    accepted: list[dict[str, Any]] = []
    by_folder: dict[str, Counter[str]] = {folder: Counter() for folder in FOLDERS}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(processes) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for index in range(processes):
            copies.put(_copy(Path(folder) / str(index)))

        def one(change: Change) -> tuple[Change, str, int]:
            tests, copy = tests_of(change), copies.get()
            try:
                return change, _outcome(copy, change, tests, seconds) if tests else "no test", len(tests)
            finally:
                copies.put(copy)

        for number, (change, outcome, n_tests) in enumerate(pool.map(one, changes), 1):
            outcomes[outcome] += 1
            by_folder[next(name for name in FOLDERS if change.file.startswith(name))][outcome] += 1
            if outcome in ("accepted", "no test"):
                accepted.append({**asdict(change), "outcome": outcome, "tests": n_tests})
            line = f"{change.file}:{change.first_line}: {change.description}"
            print(f"{number}/{len(changes)} {outcome} ({n_tests} tests): {line}", file=sys.stderr, flush=True)
    return {
        "changes": len(changes),
        "noticed": outcomes["noticed"] + outcomes["hung"],
        "outcomes": dict(outcomes),
        "folders": {name: dict(counts) for name, counts in by_folder.items()},
        "seconds": round(time.monotonic() - begin),
        "accepted": accepted,
    }


def _copy(folder: Path) -> Path:
    folder.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def _outcome(copy: Path, change: Change, tests: list[str], seconds: float) -> str:
    """Return whether the tests notice a change."""
    file = copy / change.file
    before = file.read_text()
    file.write_text(changed(before, change))
    outcome = run_tests(copy, tests, 120 + 3 * seconds)
    file.write_text(before)
    return outcome


if __name__ == "__main__":
    main()
