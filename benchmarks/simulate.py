"""Run the simulations of statistics: how often intervals contain the truth, and conclusions are right, in many draws.

Each simulation is a script of this folder, whose newest result in `results/` names the versions of the analyses
with whose formulas it was made. Without names, the script runs each whose analyses have other versions by now.

Usage: python benchmarks/simulate.py [NAME ...]
"""

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from theodolite.groups import GROUPS

SIMULATIONS = {
    "differences": ("permutations",),
    "gaussian_nulls": ("sphere", "gram"),
    "growth": ("travel",),
    "intervals": ("curves",),
    "location": ("permutations",),
    "location_fitted": ("permutations",),
    "maps": ("basis",),
    "planted_effects": ("effects",),
    "sample_sizes": ("curves",),
}
"""The scripts, each with the groups whose formulas it tests."""

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SIMULATIONS))
    names = parser.parse_args().names
    if unknown := set(names) - SIMULATIONS.keys():
        parser.error(f"there is no simulation {min(unknown)}; there are {', '.join(SIMULATIONS)}")
    for name in names or list(filter(is_outdated, SIMULATIONS)):
        file = HERE / "results" / f"{name}_{datetime.now(UTC).date()}.json"
        print(f"{name}: {file}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, HERE / f"{name}.py", "--out", file], check=True)
        result = json.loads(file.read_text())
        file.write_text(json.dumps(result | {"groups": versions_of(name)}, indent=2) + "\n")
        for older in set(results_of(name)) - {file}:
            older.unlink()


def is_outdated(name: str) -> bool:
    """Return whether no result of a simulation was made with the formulas of today."""
    return all(json.loads(file.read_text()).get("groups") != versions_of(name) for file in results_of(name))


def results_of(name: str) -> list[Path]:
    """Return the stored results of a simulation."""
    return list((HERE / "results").glob(f"{name}_20*.json"))


def versions_of(name: str) -> dict[str, int]:
    return {group: GROUPS[group].version for group in SIMULATIONS[name]}


if __name__ == "__main__":
    main()
