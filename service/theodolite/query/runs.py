"""What is in a store, how far each run is, and whether it is whole."""

from collections.abc import Iterator
from typing import Any

from theodolite.store.commits import damages, read_commits
from theodolite.store.layout import COMPLETE, GROUPS
from theodolite.store.objects import get
from theodolite.store.results import read_group
from theodolite.store.runs import Run, list_run_ids, open_run, read_complete


def run_state(run: Run) -> str:
    """Return how far a run is: `complete`, `captured` where only results are missing, or `capturing`."""
    if get(run.location, COMPLETE) is not None:
        return "complete"
    done = sum(len(read_commits(run.location, name)) for name in run.record.sets)
    return "captured" if done == sum(facts.n_shards for facts in run.record.sets.values()) else "capturing"


def summary(run: Run) -> dict[str, Any]:
    """Return a run in one line."""
    return {
        "run_id": run.id,
        "name": run.record.spec.name,
        "model": run.record.model.name,
        "sets": {name: facts.n_samples for name, facts in run.record.sets.items()},
        "contrasts": list(run.record.spec.contrasts),
        "analyses": sorted(read_complete(run)),
        "state": run_state(run),
        "created": run.record.created.isoformat(),
    }


def summaries(store: str) -> list[dict[str, Any]]:
    """Return all runs of a store, newest first."""
    found = [summary(open_run(store, run_id)) for run_id in list_run_ids(store)]
    return sorted(found, key=lambda item: str(item["created"]), reverse=True)


def describe(run: Run) -> dict[str, Any]:
    """Return everything known of a run but its arrays: question, model, parity, progress, result groups."""
    commits = {name: read_commits(run.location, name) for name in run.record.sets}
    return {
        **summary(run),
        "report": run.report,
        "digest": run.record.digest,
        "model": run.record.model.model_dump(),
        "capture": run.record.spec.capture.model_dump(mode="json"),
        "sets": {
            name: {
                **facts.model_dump(),
                "shards_committed": len(commits[name]),
                "quarantined": sum(len(commit.quarantined) for commit in commits[name].values()),
            }
            for name, facts in run.record.sets.items()
        },
        "parity": run.record.parity,
        "versions": run.record.versions,
        "results": {name: _variables(run, name) for name in read_complete(run)},
    }


def verify(run: Run) -> Iterator[str]:
    """Yield a sentence for each thing that is not whole: missing or changed shards, unreadable results."""
    for name, facts in run.record.sets.items():
        commits = read_commits(run.location, name)
        for index in range(facts.n_shards):
            if index not in commits:
                yield f"shard {name}/{index:05d}: is not captured"
                continue
            yield from damages(run.location, commits[index])
    if not read_complete(run):
        yield "results: none are finished"
    for group in read_complete(run):
        yield from _group_damages(run, group)


def _group_damages(run: Run, group: str) -> Iterator[str]:
    try:
        dataset = read_group(run, group)
    # Zarr's codecs and metadata readers each raise their own kinds for bytes that changed.
    except Exception as error:
        yield f"results {group}: cannot be read: {error}"
        return
    missing = {variable.name for variable in GROUPS[group]} - set(map(str, dataset.data_vars))
    if missing:
        yield f"results {group}: lack {', '.join(sorted(missing))}"


def _variables(run: Run, group: str) -> dict[str, list[str]]:
    return {str(name): list(map(str, array.dims)) for name, array in read_group(run, group).data_vars.items()}
