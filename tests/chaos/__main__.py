"""Run schedules of faults, or damage finished runs; print what happened and write the summary as JSON.

Exit 1 if anything was lost, doubled, different, hung, unnamed or not restored.
"""

import argparse
import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chaos.cluster import run_cluster_seeds
from chaos.damages import Damaged, damages_summary, run_damages
from chaos.flips import run_flips
from chaos.harness import run_seeds
from chaos.outcomes import Outcome, summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=25, help="number of schedules, or of damaged runs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one")
    parser.add_argument("--processes", type=int, default=1, help="schedules at the same time; each needs two cores")
    parser.add_argument("--dask", action="store_true", help="also kill workers of a Dask cluster")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--ray", action="store_true", help="kill processes of a real Ray cluster; a minute a schedule")
    kind.add_argument("--flips", type=int, help="flip this number of bits, of every kind of file, one at a time")
    kind.add_argument("--damages", action="store_true", help="damage finished runs and repair them")
    parser.add_argument("--out", type=Path, help="file for the summary (JSON)")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.schedules)
    if options.flips:
        result = run_flips(options.flips, options.first)
    elif options.damages:
        result = damages_summary(run_damages(seeds, report_damaged))
    elif options.ray:
        result = summary(run_cluster_seeds(seeds, report))
    else:
        asked = {"with_bucket": True, "with_dask": options.dask, "processes": options.processes}
        result = summary(run_seeds(seeds, **asked, report=report))
    machine = f"{platform.machine()}, {platform.system()}, {os.cpu_count()} cores"
    result = {"date": datetime.now(UTC).date().isoformat(), "machine": machine, **result}
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(bool(result["seeds_with_problems"]))


def report(outcome: Outcome) -> None:
    """Print a line about a schedule."""
    first = {kind: _first(problems) for kind, problems in outcome.problems.items()}
    if first:
        first["schedule"] = [str(outcome.schedule)]
    faults = ", ".join(f"{fault} ({count})" for fault, count in sorted(Counter(outcome.faults).items()))
    _say(f"seed {outcome.schedule.seed}: {outcome.attempts} attempts, {outcome.seconds:.0f} s; {faults}", first)


def report_damaged(found: Damaged) -> None:
    """Print a line about a damaged run."""
    kinds = {"unnamed": found.unnamed, "not restored": found.not_restored}
    first = {kind: _first(problems) for kind, problems in kinds.items() if problems}
    spec = " (with --spec)" if found.needed_spec else ""
    _say(f"seed {found.seed}: {found.seconds:.1f} s{spec}; {', '.join(found.damages)}", first)


def _first(problems: Sequence[str]) -> list[str]:
    return [f"{len(problems)} in all", *problems[:3]]


def _say(what: str, problems: dict[str, Any]) -> None:
    print(f"{what}: {json.dumps(problems, indent=1) if problems else 'ok'}", flush=True)


if __name__ == "__main__":
    main()
