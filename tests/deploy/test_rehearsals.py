"""The table of rehearsals in docs/operations.md has the faults and the seconds of the stored results."""

import json
import re
from pathlib import Path
from typing import Any

from support.each import each

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs/operations.md").read_text()


@each("rehearsal, key", [("containers", "faults"), ("hosts", "surveys"), ("slurm", "jobs")])
def test_the_table_has_the_last_results(rehearsal, key):
    (file,) = (ROOT / "benchmarks/results").glob(f"rehearsal-{rehearsal}_*.json")
    found: list[dict[str, Any]] = json.loads(file.read_text())[key]
    assert not any(one["problems"] for one in found)
    rows = re.findall(rf"^\| {rehearsal} \| ([^|]+) \| [^|]+ \| ([\d-]+) \|$", OPERATIONS, flags=re.M)
    assert [seconds for _, seconds in rows] == [f"{one['seconds']:.0f}" if "seconds" in one else "-" for one in found]
    if rehearsal != "hosts":  # whose results differ by the number of hosts
        assert [fault for fault, _ in rows] == [one["fault"] for one in found]
