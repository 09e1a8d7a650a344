"""Run schedules of faults, print what they did, and write the summary as JSON; exit 1 if anything was lost."""

import argparse
import json
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

from chaos.harness import Outcome, run_seeds, summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=25, help="number of schedules")
    parser.add_argument("--first", type=int, default=0, help="seed of the first schedule")
    parser.add_argument("--out", type=Path, help="file for the summary (JSON)")
    options = parser.parse_args()

    def report(outcome: Outcome) -> None:
        faults = ", ".join(outcome.schedule.kinds)
        state = "ok" if not outcome.problems else json.dumps(outcome.problems, indent=1)
        print(f"seed {outcome.schedule.seed}: {outcome.attempts} attempts, {outcome.seconds:.0f} s; {faults}: {state}")
        sys.stdout.flush()

    outcomes = run_seeds(range(options.first, options.first + options.schedules), with_bucket=True, report=report)
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {platform.system()}",
        **summary(outcomes),
    }
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(any(outcome.problems for outcome in outcomes))


if __name__ == "__main__":
    main()
