"""The commit protocol under every order of several writers: answers lost, requests repeated, writers killed."""

from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from support.each import each
from support.stepped_store import OUTCOMES, REPEAT, SUCCEED, SteppedObstore, Writer
from support.stored import record_of

from theodolite.errors import RunDamagedError, StoreError
from theodolite.sites import Site
from theodolite.store.checksums import sha256
from theodolite.store.commits import array_key, commit_shard, damages, drop_pending, new_attempt, read_commits, recover
from theodolite.store.objects import get, keys
from theodolite.store.records import Commit, record_key
from theodolite.store.runs import Run

SET, SHARDS = "set", 2


class CommitProtocol(RuleBasedStateMachine):
    """Writers commit attempts with different bytes to two shards, one store operation at a time."""

    writers = Bundle("writers")

    @initialize()
    def begin(self):
        self.obstore = SteppedObstore()
        self.patch = patch("theodolite.store.objects.obstore", self.obstore)
        self.patch.start()
        arrays = {SET: {"resid_pre": np.zeros((4, 1, 2, 3))}}
        self.run_ = Run("memory", record_of(arrays, shard_prompts=2))
        self.run_.__dict__["location"] = self.obstore.location
        self.records: dict[str, bytes] = {}
        self.n_attempts = 0
        self.known: list[tuple[int, Writer]] = []

    def teardown(self):
        if not hasattr(self, "patch"):
            return
        for _, writer in self.known:
            writer.finish()
        self.a_record_never_changes()
        self.everything_committed_arrives()
        self.patch.stop()

    @rule(target=writers, index=st.integers(0, SHARDS - 1), same_bytes=st.booleans())
    def start(self, index, same_bytes):
        self.n_attempts += 1
        content = b"bytes" if same_bytes else f"bytes {self.n_attempts}".encode()
        encoded = {str(site): content + site.encode() for site in (Site.RESID_PRE, Site.RESID_FINAL)}
        checksums = {name: sha256(part) for name, part in encoded.items()}
        stop = 2 * index + 2
        commit = Commit("tiny-0", SET, index, 2 * index, stop, new_attempt(), checksums, [[2 * index, stop - 1]])
        writer = Writer(lambda: commit_shard(self.obstore.location, commit, encoded))
        self.known.append((index, writer))
        return writer

    @rule(writer=writers, outcome=st.sampled_from([SUCCEED, SUCCEED, *OUTCOMES]))
    def step(self, writer, outcome):
        if writer.operation is None:
            return
        is_repeatable = writer.operation[0] in ("put", "rename", "delete")
        writer.step(SUCCEED if outcome == REPEAT and not is_repeatable else outcome)

    @rule(writer=consumes(writers))
    def let_finish(self, writer):
        writer.finish()

    @rule()
    def resume(self):
        recover(self.run_, SET)

    @invariant()
    def a_record_never_changes(self):
        if not hasattr(self, "run_"):
            return
        for key in keys(self.obstore.location, "shards"):
            content = get(self.obstore.location, key)
            assert self.records.setdefault(key, content) == content
        for index, writer in self.known:
            if writer.operation is None and writer.error is None and not writer.crashed:
                assert writer.result == read_commits(self.run_, SET)[index], "a writer that returned has committed"
            assert writer.error is None or isinstance(writer.error, StoreError)
            assert not isinstance(writer.error, RunDamagedError)

    def everything_committed_arrives(self):
        commits = recover(self.run_, SET)
        assert {record_key(SET, index) for index in commits} == set(self.records)
        for commit in commits.values():
            assert list(damages(self.run_, commit)) == []
        if len(commits) == SHARDS:
            drop_pending(self.run_)
            names = {array_key(commit, name) for commit in commits.values() for name in commit.checksums}
            assert set(keys(self.obstore.location)) == names | set(self.records)


TestCommitProtocol = CommitProtocol.TestCase
TestCommitProtocol.settings = settings(
    max_examples=2 * settings.default.max_examples,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@each("outcome", OUTCOMES)
@each("at", range(7))
def test_one_writer_with_one_fault_loses_nothing(outcome, at):
    machine = CommitProtocol()
    machine.begin()
    writer = machine.start(0, False)
    for _ in range(at):
        machine.step(writer, SUCCEED)
    machine.step(writer, outcome)
    machine.let_finish(writer)
    machine.let_finish(machine.start(0, False))
    machine.a_record_never_changes()
    machine.teardown()
    assert len(machine.records) == 1
