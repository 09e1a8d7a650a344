"""The commit record of a shard: what was committed, with a checksum of its own and the shard that it belongs to."""

import json
from dataclasses import asdict, dataclass, field

from pydantic import TypeAdapter, ValidationError

from theodolite.errors import RunDamagedError, one_line
from theodolite.shard_counts import ShardCounts
from theodolite.store.checksums import seal, unseal
from theodolite.store.layout import EXPERTS, MLP_POSITIVE, REDUCED
from theodolite.store.runs import RunRecord


@dataclass(frozen=True)
class Commit(ShardCounts):
    """The record of the committed attempt of a shard, with the shard's counts."""

    run_id: str
    prompt_set: str
    index: int
    start: int  # first sample
    stop: int  # one past the last sample
    attempt: str  # its unique name, part of its keys under `pending/`
    checksums: dict[str, str]  # SHA-256 of each array's encoded bytes, by the array's name
    batches: list[list[int]]  # the samples of each batch, as they were computed
    quarantined: dict[int, str] = field(default_factory=dict)  # why a sample's activations cannot be used, by sample
    stored_bytes: int = field(default=0, compare=False)  # size of the encoded arrays
    encode_seconds: float = field(default=0.0, compare=False)  # time to encode the arrays and compute their checksums
    store_seconds: float = field(default=0.0, compare=False)  # time to write the encoded arrays
    idle_seconds: float = field(default=0.0, compare=False)  # time that the replica waited before the capture
    token_ids_sha256: str = ""  # digest of the token ids of the shard's samples
    device: str = ""  # the device that computed the shard
    arithmetic: list[str] = field(default_factory=list)  # what determines rounding errors
    layers: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Size and CRC-32C of each compressed layer, in order, by site: with them, a layer is read and verified alone."""

    @property
    def name(self) -> str:
        """The shard's name in messages."""
        return f"{self.prompt_set}/{self.index:05d}"

    def numbers(self) -> dict[str, float]:
        """Return all counts and times of a shard, those of writing included."""
        return {
            **self.counts_by_name(),
            "prompts": self.stop - self.start,
            "quarantined": len(self.quarantined),
            "stored_bytes": self.stored_bytes,
            "encode_seconds": self.encode_seconds,
            "store_seconds": self.store_seconds,
            "idle_seconds": self.idle_seconds,
        }


_COMMIT = TypeAdapter(Commit)


def record_key(prompt_set: str, index: int) -> str:
    """Return the key of a shard's commit record in the run."""
    return f"shards/{prompt_set}/{index:05d}.json"


def all_record_keys(run: RunRecord) -> set[str]:
    """Return the keys of the commit records of all shards of a run."""
    return {record_key(name, index) for name, facts in run.sets.items() for index in range(facts.n_shards)}


def encode_record(commit: Commit) -> bytes:
    """Return the content of a commit record."""
    fields = {**asdict(commit), "quarantined": {str(sample): why for sample, why in commit.quarantined.items()}}
    return seal(fields)


def decode_record(content: bytes | None, run: RunRecord, prompt_set: str, index: int) -> Commit:
    """Return the commit record of a shard, after checking its checksum, its identity and its arrays.

    Raises:
        RunDamagedError: the record is missing or damaged, or belongs to another shard or run.
    """
    try:
        commit = _parse(content)
        _check(commit, run, prompt_set, index)
    except ValueError as error:
        raise _damaged(run.run_id, record_key(prompt_set, index), error) from error
    return commit


def decode_winner(content: bytes | None, loser: Commit) -> Commit:
    """Return the commit record that another attempt has created for the same shard; raises as `decode_record` does."""
    try:
        winner = _parse(content)
        if (winner.run_id, winner.name) != (loser.run_id, loser.name):
            raise ValueError(f"is the record of shard {winner.name} of {winner.run_id}")
    except ValueError as error:
        raise _damaged(loser.run_id, record_key(loser.prompt_set, loser.index), error) from error
    return winner


def _damaged(run_id: str, key: str, error: ValueError) -> RunDamagedError:
    return RunDamagedError(f"{run_id}: {key} {one_line(error)}; run `theodolite run verify {run_id} --repair`")


def _parse(content: bytes | None) -> Commit:
    """Return a record; raise ValueError, whose message completes a sentence that begins with the record's key."""
    text = json.dumps(unseal(content))  # the order stays, so that `encode_record` gives the same bytes
    try:
        return _COMMIT.validate_json(text, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise ValueError(f"is not a commit record: {where}: {problem['msg'].lower()}") from None


def _check(commit: Commit, run: RunRecord, prompt_set: str, index: int) -> None:
    """Raise ValueError unless a record describes this shard of the run, with all of its arrays."""
    own = f"{prompt_set}/{index:05d}"
    if (commit.run_id, commit.name) != (run.run_id, own):
        raise ValueError(f"is the record of shard {commit.name} of {commit.run_id}")
    start, stop = run.bounds(prompt_set).of(index)
    if (commit.start, commit.stop) != (start, stop):
        raise ValueError(f"has the samples {commit.start} to {commit.stop}; shard {own} has {start} to {stop}")
    if not all(start <= sample < stop for sample in commit.quarantined):
        raise ValueError(f"quarantines samples outside {start} to {stop}")
    if differing := expected_arrays(run, prompt_set, index) ^ set(commit.checksums):
        raise ValueError(f"lists other arrays than the run has: {', '.join(sorted(differing))}")


def expected_arrays(run: RunRecord, prompt_set: str, index: int) -> set[str]:
    """Return the names of the arrays that a shard has."""
    is_reduced = index >= run.bounds(prompt_set).n_stored
    counts = {MLP_POSITIVE.name} if run.sets[prompt_set].n_units else set()
    if is_reduced:
        return {REDUCED} | counts
    experts = {EXPERTS.name} if run.sets[prompt_set].n_choices else set()
    return set(map(str, run.spec.capture.all_sites)) | counts | experts
