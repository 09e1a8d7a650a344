"""How long the tests take: which files start first, and what a run took.

`make test` runs the files of the tests in one queue, those that took longest first, so that no worker ends much later
than the others; files that share a browser or a Ray session go to one worker. `tests/durations.json` has the seconds of
each file. The script prints how long a run took by its JUnit report, and writes the file with --store. In CI, a run of
more than BUDGET minutes of two workers fails, with its slowest files. On a machine on which most files take longer than
stored, the minutes are divided by how many times as long. With --fast, it prints the files of `make test-fast`.

Usage: python tests/support/durations.py REPORT [--store] | --fast
"""

import argparse
import json
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

BUDGET = 15
FAST_SECONDS = 1.5
BROWSER, RAY = "tests/browser", "Ray"
FILES_OF_RAY = {f"tests/integration/test_{name}.py" for name in ("effects", "rank_groups", "ray_replicas", "sharing")}
STORED = Path(__file__).parents[1] / "durations.json"


def stored_seconds() -> dict[str, float]:
    """Return the seconds of each file; files that it lacks are new."""
    return dict(json.loads(STORED.read_text())["seconds"]) if STORED.exists() else {}


def unit_of(file: str) -> str:
    """Return what one worker runs at once: the files that share a browser or a Ray session, or a file alone."""
    if file.startswith(f"{BROWSER}/"):
        return BROWSER
    return RAY if file in FILES_OF_RAY else file


def seconds_of_units(files: Iterable[str]) -> dict[str, float]:
    """Return the stored seconds of each unit; infinite if it has a new file."""
    stored, seconds = stored_seconds(), dict[str, float]()
    for file in set(files):
        seconds[unit_of(file)] = seconds.get(unit_of(file), 0) + stored.get(file, inf)
    return seconds


def fast_files() -> list[str]:
    """Return the files that take at most FAST_SECONDS, and new ones."""
    seconds, root = stored_seconds(), STORED.parents[1]
    files = sorted(str(file.relative_to(root)) for file in STORED.parent.rglob("test_*.py"))
    return [file for file in files if seconds.get(file, 0) <= FAST_SECONDS]


def test_seconds(report: Path) -> dict[str, float]:
    """Return the seconds of each test of a JUnit report, by its id."""
    cases = ElementTree.parse(report).iter("testcase")
    return {f"{_file(one.attrib['classname'])}::{one.attrib['name']}": float(one.attrib["time"]) for one in cases}


def slowness(files: dict[str, float]) -> float:
    """Return how many times as long as in the stored run the files took, in the median: what one file adds stays."""
    stored = stored_seconds()
    return median([seconds / stored[name] for name, seconds in files.items() if stored.get(name, 0) >= 1] or [1.0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("report", type=Path, nargs="?", help="JUnit report of a run")
    parser.add_argument("--store", action="store_true", help="write tests/durations.json")
    parser.add_argument("--fast", action="store_true", help=f"print the files that take at most {FAST_SECONDS} seconds")
    options = parser.parse_args()
    if options.fast:
        print(*fast_files())
        return
    if options.report is None:
        parser.error("give the report of a run, or --fast")
    suite = next(ElementTree.parse(options.report).iter("testsuite"))
    tests = test_seconds(options.report)
    minutes = float(suite.attrib["time"]) / 60
    files: dict[str, float] = {}
    for test, seconds in tests.items():
        file = test.partition("::")[0]
        files[file] = files.get(file, 0.0) + seconds
    total, slower = sum(tests.values()) / 60, slowness(files)
    print(f"{len(tests)} tests in {minutes:.1f} minutes; {total:.1f} minutes of all workers")
    print(f"The files take {slower:.2f} times as long as those of {STORED.name}.")
    if options.store:
        machine = f"{platform.machine()}, {platform.system()}, {os.cpu_count()} cores"
        rounded = {name: round(seconds, 1) for name, seconds in sorted(files.items())}
        content = {"date": datetime.now(UTC).date().isoformat(), "machine": machine, "tests": len(tests)}
        content |= {"minutes": round(minutes, 1), "seconds": rounded}
        STORED.write_text(json.dumps(content, indent=1) + "\n")
    if os.environ.get("CI") and total / max(slower, 1.0) / 2 > BUDGET:
        slowest = sorted(files, key=lambda name: -files[name])[:10]
        rows = "\n".join(f"{files[name]:7.1f} s  {name}" for name in slowest)
        raise SystemExit(f"the tests take more than {BUDGET} minutes of two workers; the slowest files:\n{rows}")


def _file(name: str) -> str:
    """Return the file of a test by the name of its module, or of a class in it."""
    parts = name.split(".")
    while len(parts) > 1 and not (STORED.parents[1] / "/".join(parts)).with_suffix(".py").exists():
        parts.pop()
    return "/".join(parts) + ".py"


if __name__ == "__main__":
    main()
