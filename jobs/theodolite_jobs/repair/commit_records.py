"""Lost commit records: write them again from the stored arrays, if COMPLETE proves these arrays."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from theodolite.digests import digest_of
from theodolite.errors import RunDamagedError
from theodolite.query.verification import ShardKey
from theodolite.store.activations import layers_of
from theodolite.store.checksums import sha256
from theodolite.store.commits import array_key, read_commit, read_commits
from theodolite.store.manifest import finished_groups, forget, listed_checksums
from theodolite.store.objects import get, put
from theodolite.store.prompts import read_prompts
from theodolite.store.records import Commit, encode_record, expected_arrays, record_key
from theodolite.store.runs import Run
from theodolite_jobs.capture.plan import ShardPlan, count_tokens
from theodolite_jobs.capture_run import recorded_arithmetic
from theodolite_jobs.cluster.replica import commit_of
from theodolite_jobs.groups.moments import compute as moments
from theodolite_jobs.prepared import Prepared
from theodolite_jobs.results.context import Context


def lost_records(run: Run, shards: Iterable[ShardKey], changed: Collection[str]) -> set[ShardKey]:
    """Return the shards whose commit record is missing, damaged, or not the one that COMPLETE lists.

    Args:
        run: the run.
        shards: the shards that are missing or damaged.
        changed: the keys of all objects that are not what COMPLETE lists.
    """
    replaced = listed_checksums(run).keys() & set(changed)
    lost = {
        (name, index)
        for name, facts in run.record.sets.items()
        for index in range(facts.n_shards)
        if record_key(name, index) in replaced
    }
    return lost | {shard for shard in shards if _commit_or_none(run, shard) is None}


def restore_spelling(run: Run, lost: Collection[ShardKey]) -> set[ShardKey]:
    """Write records again whose contents COMPLETE lists but whose bytes are others; return the lost records left."""
    listed, left = listed_checksums(run), set(lost)
    for name, index in lost:
        commit, key = _commit_or_none(run, (name, index)), record_key(name, index)
        if commit is not None and sha256(content := encode_record(commit)) == listed.get(key):
            put(run.location, key, content)
            left.remove((name, index))
    return left


def rebuild_records(run: Run, prepared: Prepared, lost: Collection[ShardKey]) -> bool:
    """Write lost commit records again from the stored arrays; return False and write nothing if they are not proven.

    COMPLETE has the digest of `moments`, which follows from the checksums of all arrays and the quarantined samples.
    A new record has no times, and the batches of the plan if the lost record cannot be read.
    """
    commits: dict[str, list[Commit]] = {}
    for name, facts in run.record.sets.items():
        quarantined = _quarantined(run, name)
        for index in range(facts.n_shards):
            if (name, index) in lost:
                commit = _rebuilt(run, prepared, prepared.plans[name].shards[index], quarantined)
            else:
                commit = _commit_or_none(run, (name, index))
            if commit is None:
                return False
            commits.setdefault(name, []).append(commit)
    if _moments_digest(run, commits) != finished_groups(run).get("moments"):
        return False
    forget(run, [record_key(*shard) for shard in lost])
    for name, index in lost:
        put(run.location, record_key(name, index), encode_record(commits[name][index]))
    return True


def rests_on_these_shards(run: Run) -> bool:
    """Return whether the finished results were computed from the shards that are committed now."""
    known = finished_groups(run).get("moments")
    commits = {name: list(read_commits(run, name).values()) for name in run.record.sets}
    return known is None or known == _moments_digest(run, commits)


def _moments_digest(run: Run, commits: dict[str, list[Commit]]) -> str:
    context = Context(run, run.record.spec, {})
    context.commits = commits
    return digest_of(moments.digest_inputs(context))


def _rebuilt(run: Run, prepared: Prepared, shard: ShardPlan, quarantined: Mapping[int, str]) -> Commit | None:
    """Return a commit record of the stored arrays of a shard, or None if one is missing."""
    from theodolite_jobs.capture.engine import CapturedShard  # torch takes seconds to load

    name = shard.prompt_set
    known = _commit_or_none(run, (name, shard.index))
    batches = [tuple(batch) for batch in known.batches] if known else list(shard.batches)
    task = prepared.plans[name].task(shard, prepared.tokens[name])
    own = {sample: why for sample, why in quarantined.items() if shard.start <= sample < shard.stop}
    captured = CapturedShard({}, None, batches, own, count_tokens(task, batches))
    device = str(run.record.parity.get("device", ""))
    commit = commit_of(run.id, task, captured, {}, device, recorded_arithmetic(run))
    arrays = {
        array: get(run.location, array_key(commit, array))
        for array in sorted(expected_arrays(run.record, name, shard.index))
    }
    contents = {array: content for array, content in arrays.items() if content is not None}
    if len(contents) < len(arrays):
        return None
    checksums = {array: sha256(content) for array, content in contents.items()}
    return replace(
        commit, checksums=checksums, layers=layers_of(contents), stored_bytes=sum(map(len, contents.values()))
    )


def _quarantined(run: Run, prompt_set: str) -> dict[int, str]:
    """Return why samples of a set cannot be used, by sample; empty if the table of prompts cannot tell."""
    try:
        frame = read_prompts(run, prompt_set)
        rows = frame[frame["status"] == "quarantined"]
        return dict(zip(rows["sample"].tolist(), rows["error"].tolist(), strict=True))
    except (RunDamagedError, KeyError):
        return {}


def _commit_or_none(run: Run, shard: ShardKey) -> Commit | None:
    try:
        return read_commit(run, *shard)
    except RunDamagedError:
        return None
