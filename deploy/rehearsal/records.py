"""Compare a run with an undisturbed one, where the store is: print the differences and the sums of its commit records.

Usage: python - STORE UNDISTURBED RUN_ID < records.py
"""

import json
import sys

from theodolite.query.verification import verify
from theodolite.store.commits import read_commits
from theodolite.store.objects import get, keys
from theodolite.store.runs import open_run

REWRITTEN = ("COMPLETE", "report.html", "shards/", "run.json")
"""Objects with new times or the names of attempts; commit records are compared by their checksums."""

run, undisturbed = (open_run(store, sys.argv[3]) for store in sys.argv[1:3])
problems = [f"verify: {problem}" for problem in verify(run)]
stored, expected = ({key for key in keys(one.location)} for one in (run, undisturbed))
problems += [f"{key}: is in one of the runs alone" for key in sorted(stored ^ expected)]
for key in sorted(stored & expected):
    if not key.startswith(REWRITTEN) and get(run.location, key) != get(undisturbed.location, key):
        problems.append(f"{key}: differs")
commits = []
for name in run.record.sets:
    own, others = read_commits(run, name), read_commits(undisturbed, name)
    problems += [f"{name}/{index}: other bits" for index in own if own[index].checksums != others[index].checksums]
    commits += list(own.values())
sums = ("prompts", "tokens", "shared_tokens", "padding_tokens", "quarantined", "oom_backoffs", "stored_bytes")
counters = {"shards": len(commits), **{name: sum(commit.numbers()[name] for commit in commits) for name in sums}}
print(json.dumps({"problems": problems, "counters": counters}))
