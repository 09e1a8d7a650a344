"""What a schedule of faults did to the store: its run is compared with that of an undisturbed survey."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from theodolite.errors import StoreError
from theodolite.query.runs import run_state
from theodolite.query.verification import unexpected_objects, verify
from theodolite.store.manifest import finished_groups
from theodolite.store.objects import get, keys
from theodolite.store.runs import Run, list_run_ids, open_run

_TIMED = ("COMPLETE", "report.html", "run.json")  # contain times
_TIMES = {"seconds", "encode_seconds", "store_seconds", "idle_seconds"}
_VARYING = _TIMES | {"attempt", "sha256"}
"""Fields of a commit record that differ between runs with the same bits."""


@dataclass
class Outcome:
    """What a schedule did to the store; every list is empty if all is well."""

    schedule: Any  # of `schedules` or of `cluster`
    seconds: float = 0.0
    attempts: int = 0
    faults: list[str] = field(default_factory=list)  # those that happened
    hung: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)  # attempts that ended with a traceback
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)

    @property
    def problems(self) -> dict[str, list[str]]:
        """The problems by kind, without the kinds that did not happen."""
        kinds = ("hung", "crashed", "lost", "doubled", "different", "left_behind")
        return {kind: getattr(self, kind) for kind in kinds if getattr(self, kind)}


def compare(run: Run, expected: dict[str, bytes], records: dict[str, Any], outcome: Outcome) -> None:
    """Verify a run, and compare its objects and commit records with those of an undisturbed run."""
    outcome.lost += verify(run)
    outcome.left_behind += unexpected_objects(run)
    outcome.left_behind += keys(run.location, "pending")
    stored, stored_records = contents(run), records_of(run)
    compare_keys(stored, expected, outcome)
    outcome.different += [key for key in sorted(expected.keys() & stored.keys()) if expected[key] != stored[key]]
    outcome.different += [name for name, record in records.items() if stored_records.get(name) != record]


def compare_keys(stored: Collection[str], expected: Collection[str], outcome: Outcome) -> None:
    """Name the objects that are lost, and those that nobody expects."""
    outcome.lost += sorted(set(expected) - set(stored))
    outcome.doubled += sorted(set(stored) - set(expected))


def open_only_run(store: str) -> Run:
    """Return the only run of a store."""
    (run_id,) = list_run_ids(store)
    return open_run(store, run_id)


def lacking(store: str, whole: Run) -> list[str]:
    """Return a problem for each run that says that it is complete although it lacks results of the whole run."""
    problems = []
    with suppress(StoreError):  # the store may refuse requests, or may not exist yet
        for run in (open_run(store, run_id) for run_id in list_run_ids(store)):
            lost = finished_groups(whole).keys() - finished_groups(run).keys()
            if lost and run_state(run) == "complete":
                problems.append(f"the run says that it is complete, and lacks {', '.join(sorted(lost))}")
    return problems


def contents(run: Run) -> dict[str, bytes]:
    """Return the objects of a run that contain no times, by key."""
    compared = [key for key in keys(run.location) if not key.startswith(("shards/", "pending/")) and key not in _TIMED]
    return {key: get(run.location, key) or b"" for key in compared}


def batches_of(run: Run) -> dict[str, Any]:
    """Return the batches that a run's commit records state, by their keys."""
    return {key: record["batches"] for key, record in records_of(run).items()}


def records_of(run: Run) -> dict[str, dict[str, Any]]:
    """Return the commit records, without the fields that differ between runs with the same bits."""
    records = {key: json.loads(get(run.location, key) or b"{}") for key in keys(run.location, "shards")}
    return {
        key: {name: value for name, value in record.items() if name not in _VARYING} for key, record in records.items()
    }


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the number of schedules, of faults by kind, and of problems by kind."""
    faults = Counter(fault for outcome in outcomes for fault in outcome.faults)
    problems = Counter(kind for outcome in outcomes for kind in outcome.problems)
    return {
        "schedules": len(outcomes),
        "attempts": sum(outcome.attempts for outcome in outcomes),
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
        "slowest_schedule_seconds": round(max(outcome.seconds for outcome in outcomes), 1),
        "faults": dict(sorted(faults.items())),
        **{kind: problems[kind] for kind in ("lost", "doubled", "different", "hung", "crashed", "left_behind")},
        "seeds_with_problems": [outcome.schedule.seed for outcome in outcomes if outcome.problems],
    }
