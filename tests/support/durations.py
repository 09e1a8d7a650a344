"""How long the tests take: which files start first, and what a run took.

`make test` runs the files of the tests in one queue, those that took longest first, so that no worker ends much later
than the others. `tests/durations.json` has the seconds of each file; the script writes it from a JUnit report, prints
the slowest tests, and fails if the run took longer than its budget.

Usage: python tests/support/durations.py REPORT [--budget MINUTES] [--store]
"""

import argparse
import json
import os
import platform
import sys
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from xml.etree import ElementTree

STORED = Path(__file__).parents[1] / "durations.json"

SHOWN = 10
"""How many of the slowest tests are printed."""


def stored_seconds() -> dict[str, float]:
    """Return the seconds of each file; files that it lacks are new."""
    return dict(json.loads(STORED.read_text())["seconds"]) if STORED.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("report", type=Path, help="JUnit report of a run")
    parser.add_argument("--budget", type=float, default=inf, help="minutes that the run may take")
    parser.add_argument("--store", action="store_true", help="write tests/durations.json")
    options = parser.parse_args()
    suite = next(ElementTree.parse(options.report).iter("testsuite"))
    tests = {
        f"{_file(case.attrib['classname'])}::{case.attrib['name']}": float(case.attrib["time"])
        for case in suite.iter("testcase")
    }
    minutes = float(suite.attrib["time"]) / 60
    files: dict[str, float] = {}
    for test, seconds in tests.items():
        file = test.partition("::")[0]
        files[file] = files.get(file, 0.0) + seconds
    print(f"{len(tests)} tests in {minutes:.1f} minutes; {sum(tests.values()) / 60:.1f} minutes of all workers")
    if options.store:
        machine = f"{platform.machine()}, {platform.system()}, {os.cpu_count()} cores"
        rounded = {name: round(seconds, 1) for name, seconds in sorted(files.items())}
        content = {"date": datetime.now(UTC).date().isoformat(), "machine": machine, "tests": len(tests)}
        content |= {"minutes": round(minutes, 1), "seconds": rounded}
        STORED.write_text(json.dumps(content, indent=1) + "\n")
    if minutes > options.budget:
        print(f"That is more than {options.budget:g} minutes. The slowest tests:")
        for test, seconds in sorted(tests.items(), key=lambda item: -item[1])[:SHOWN]:
            print(f"{seconds:7.1f} s  {test}")
        sys.exit(1)


def _file(name: str) -> str:
    """Return the file of a test by the name of its module, or of its class."""
    parts = name.split(".")
    return "/".join(parts[:-1] if parts[-1][0].isupper() else parts) + ".py"


if __name__ == "__main__":
    main()
