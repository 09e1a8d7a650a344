"""The commit records of a run: their sums, and what differs from an undisturbed run.

As a script it prints both as JSON, for a run and an undisturbed one in two stores. It uses Theodolite alone, so it also
runs in a container: python - STORE UNDISTURBED RUN_ID < records.py
"""

import json
import sys
from collections.abc import Iterator

from theodolite.query.verification import verify
from theodolite.store.commits import read_commits
from theodolite.store.objects import get, keys
from theodolite.store.runs import Run, open_run

REWRITTEN = ("COMPLETE", "report.html", "shards/", "run.json")
"""Objects with new times or the names of attempts; commit records are compared by their checksums."""

SUMMED = ("prompts", "tokens", "shared_tokens", "padding_tokens", "quarantined", "oom_backoffs", "stored_bytes")


def counters(run: Run) -> dict[str, float]:
    """Return the sums over the commit records of a run."""
    commits = [commit for name in run.record.sets for commit in read_commits(run, name).values()]
    return {"shards": len(commits), **{name: sum(commit.numbers()[name] for commit in commits) for name in SUMMED}}


def differences(run: Run, undisturbed: Run) -> Iterator[str]:
    """Yield what `verify` says of a run, and what differs from an undisturbed run of the same survey."""
    yield from (f"verify: {problem}" for problem in verify(run))
    stored, expected = (set(keys(one.location)) for one in (run, undisturbed))
    yield from (f"{key}: is in one of the runs alone" for key in sorted(stored ^ expected))
    for key in sorted(stored & expected):
        if not key.startswith(REWRITTEN) and get(run.location, key) != get(undisturbed.location, key):
            yield f"{key}: differs"
    for name in run.record.sets:
        own, others = read_commits(run, name), read_commits(undisturbed, name)
        yield from (f"{name}/{index}: other bits" for index in own if own[index].checksums != others[index].checksums)


if __name__ == "__main__":
    disturbed, other = (open_run(store, sys.argv[3]) for store in sys.argv[1:3])
    print(json.dumps({"problems": list(differences(disturbed, other)), "counters": counters(disturbed)}))
