"""The scheduling loop, with simulated replicas."""

from concurrent.futures import Future
from threading import Timer

import pytest
from support.each import each
from support.simulated_replicas import NUMBERS, SimulatedReplica, task_of, tasks_of

from theodolite.errors import CaptureError, ModelError, RunDamagedError, StoreError
from theodolite_jobs.capture.plan import ShardPlan
from theodolite_jobs.cluster import scheduling
from theodolite_jobs.cluster.poison import MAX_POISON
from theodolite_jobs.cluster.scheduling import (
    IN_FLIGHT,
    MAX_ATTEMPTS,
    OUT_OF_MEMORY,
    POISON,
    Callbacks,
    Dispatched,
    run_shards,
)


class Seen:
    """Record the callbacks of the loop; `watch` looks at the records after each committed or retried shard."""

    def __init__(self, watch):
        self.committed, self.retried, self.replicas, self.messages = [], [], [], []
        self.watch = watch
        self.callbacks = Callbacks(self._committed, self._retried, self.replicas.append, self.messages.append)

    def _committed(self, shard, numbers):
        self.committed.append((shard.index, numbers))
        self.watch(self)

    def _retried(self, reason):
        self.retried.append(reason)
        self.watch(self)


def run(workers, count, watch=lambda _seen: None):
    seen = Seen(watch)
    run_shards(workers, tasks_of(count), seen.callbacks)
    return seen


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(scheduling, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(scheduling, "RESTART_SECONDS", 0.001)


@each("replicas, count", [(1, 0), (1, 7), (3, 40), (8, 5)])
def test_every_shard_is_committed_once_whatever_the_number_of_replicas(replicas, count):
    workers = [SimulatedReplica() for _ in range(replicas)]
    seen = run(workers, count)
    assert sorted(seen.committed) == [(index, NUMBERS) for index in range(count)]
    assert sorted(index for worker in workers for index in worker.done) == list(range(count))
    assert all(worker.most_at_once <= IN_FLIGHT for worker in workers)
    assert (seen.retried, seen.replicas) == ([], list(range(1, replicas + 1)))


def test_a_shard_whose_replica_died_is_captured_after_the_restart():
    worker = SimulatedReplica({2: 1})
    seen = run([worker], 6)
    assert sorted(index for index, _ in seen.committed) == list(range(6))
    assert worker.incarnations == 2, "one death, one restart, though two shards were lost"
    assert seen.retried == ["died", "died"]
    assert seen.replicas == [1, 0, 1]


def test_a_shard_that_kills_three_times_ends_the_run_and_queued_shards_are_not_counted():
    with pytest.raises(CaptureError, match=r"shard set/00002 failed 3 times; last error: killed; committed shards"):
        run([SimulatedReplica({2: 99}, restarts=99) for _ in range(2)], 6)


def test_pauses_before_the_restarts_of_a_replica_grow_until_it_commits(monkeypatch):
    pauses = []
    monkeypatch.setattr(scheduling, "Timer", lambda seconds, *rest: pauses.append(seconds) or Timer(0, *rest))
    worker = SimulatedReplica({0: 2, 1: 2, 5: 1, 8: 1}, restarts=99)
    assert len(run([worker], 9).committed) == 9
    assert worker.incarnations == 7
    assert pauses == [scheduling.RESTART_SECONDS * factor for factor in (1, 2, 4)]
    assert worker.is_killed, "a replica that waits for its restart holds no GPU"


def test_a_replica_restarts_without_a_pause_after_out_of_memory_or_a_probe(monkeypatch):
    monkeypatch.setattr(scheduling, "Timer", lambda *_: pytest.fail("there is no pause"))
    assert len(run([SimulatedReplica({0: 1, 1: 1}, reason=OUT_OF_MEMORY)], 3).committed) == 3


def test_replicas_that_died_while_idle_do_not_count_as_failures_of_a_shard():
    workers = [SimulatedReplica() for _ in range(4)]
    for worker in workers:
        worker.dead = True
        worker.may_restart.clear()

    def watch(seen):
        if len(seen.retried) == 4:  # the loop tries all replicas before the first one is back
            workers[0].may_restart.set()

    seen = run(workers, 1, watch)
    assert [index for index, _ in seen.committed] == [0]
    assert seen.retried == ["died"] * 4


def test_a_survey_starts_with_the_ready_replicas_and_others_join():
    early, late, never = (SimulatedReplica() for _ in range(3))
    late.ready, never.ready = Future(), Future()

    def watch(seen):
        if len(seen.committed) == 5:
            late.ready.set_result(None)

    seen = run([late, early, never], 60, watch)
    assert sorted(index for index, _ in seen.committed) == list(range(60))
    assert early.done
    assert late.done
    assert (never.done, seen.replicas) == ([], [1, 2])


def test_a_replica_that_fails_to_load_is_removed_with_a_message():
    broken, other = SimulatedReplica(restarts=0), SimulatedReplica()
    broken.ready = Future()
    broken.ready.set_exception(ModelError("this node has no such model"))
    seen = run([broken, other], 5)
    assert len(other.done) == 5
    assert seen.messages == ["a replica was removed: this node has no such model"]
    assert (broken.is_killed, other.is_killed) == (True, False), "a removed replica holds no resources"


def test_other_replicas_capture_the_shards_of_one_that_does_not_restart():
    lost, other = SimulatedReplica({0: 1}, restarts=0), SimulatedReplica()
    seen = run([lost, other], 12)
    assert sorted(index for index, _ in seen.committed) == list(range(12))
    assert seen.replicas[-1] == 1
    assert lost.done == []


def test_the_error_without_any_replica_names_a_shard():
    with pytest.raises(CaptureError, match=r"shard set/0000\d has no replica left to run on"):
        run([SimulatedReplica({0: 1}, restarts=0), SimulatedReplica({1: 1}, restarts=0)], 4)


def test_all_later_batches_are_halved_each_time_memory_runs_out():
    worker = SimulatedReplica({index: 1 for index in range(4)}, restarts=1, reason=OUT_OF_MEMORY)
    seen = run([worker], 8)
    assert sorted(index for index, _ in seen.committed) == list(range(8))
    assert worker.halvings[7] == 4
    assert set(seen.retried) == {OUT_OF_MEMORY}


@each("replicas", [1, 2, 8])
def test_batches_that_run_out_of_memory_at_the_same_time_are_halved_once(replicas):
    class Small(SimulatedReplica):
        """A replica with memory for half a batch."""

        def capture(self, task):
            self.deaths[task.shard.index] = int(task.halvings == 0)
            return super().capture(task)

    workers = [Small(reason=OUT_OF_MEMORY) for _ in range(replicas)]
    seen = run(workers, 4 * replicas)
    assert sorted(index for index, _ in seen.committed) == list(range(4 * replicas))
    assert max(halvings for worker in workers for halvings in worker.halvings.values()) == 1


def test_a_prompt_that_does_not_fit_alone_ends_the_run():
    with pytest.raises(CaptureError, match=r"shard set/00001 failed 3 times"):
        run([SimulatedReplica({1: 99}, reason=OUT_OF_MEMORY)], 4)


def test_an_error_of_the_code_ends_the_run():
    with pytest.raises(ModelError, match="no such layer"):
        run([SimulatedReplica(error=ModelError("no such layer"))], 3)


def test_a_slow_replica_does_not_delay_the_others():
    slow, quick = SimulatedReplica(), SimulatedReplica()
    slow.may_run.clear()

    def watch(seen):
        if len(seen.committed) == 38:
            slow.may_run.set()

    run([slow, quick], 40, watch)
    assert (len(slow.done), len(quick.done)) == (IN_FLIGHT, 38)


def test_a_replica_gets_no_shards_while_it_restarts():
    away, other = SimulatedReplica({0: 1}), SimulatedReplica()
    away.may_restart.clear()
    seen = run([away, other], 60)
    assert sorted(index for index, _ in seen.committed) == list(range(60))
    assert away.incarnations == 1
    assert len(other.done) == 60
    assert seen.replicas == [1, 2, 1]


def test_the_loop_waits_for_a_replica_without_resources_only_if_it_is_the_last():
    lost = SimulatedReplica({0: 1})
    lost.has_resources = False
    assert len(run([lost, SimulatedReplica()], 9).committed) == 9
    lost = SimulatedReplica({0: 1}, restarts=2)
    lost.has_resources = False
    with pytest.raises(CaptureError, match="no replica left to run on; last error: no resources"):
        run([lost], 3)


def test_the_loop_waits_for_the_restart_of_the_only_replica():
    worker = SimulatedReplica({3: 1})
    worker.may_restart.clear()

    def watch(seen):
        if len(seen.retried) == 2:  # the loop has nothing to do but wait
            worker.may_restart.set()

    assert len(run([worker], 9, watch).committed) == 9


def test_a_shard_that_the_store_refused_is_repeated_by_a_replica_that_lives_on():
    worker = SimulatedReplica(failures={2: [StoreError("cannot write: 503")] * 2})
    seen = run([worker], 6)
    assert sorted(index for index, _ in seen.committed) == list(range(6))
    assert (worker.incarnations, seen.retried, seen.replicas) == (1, ["store", "store"], [1])


def test_a_shard_that_the_store_alone_refuses_ends_the_run_after_all_others_are_committed():
    seen, refused = Seen(lambda _seen: None), [StoreError("cannot write: 503")] * 99
    with pytest.raises(CaptureError, match=r"shard set/00002 and all others were refused by the store during 6"):
        run_shards([SimulatedReplica(failures={2: refused})], tasks_of(6), seen.callbacks)
    assert sorted(index for index, _ in seen.committed) == [0, 1, 3, 4, 5]


def test_a_store_that_refuses_all_shards_is_waited_for():
    """Each shard is refused three times before the first commit, which no single shard may be."""
    refused = StoreError("cannot write: 503")
    seen = run([SimulatedReplica(failures={index: [refused] * 3 for index in range(2)})], 2)
    assert sorted(index for index, _ in seen.committed) == [0, 1]
    assert len(seen.retried) == 6
    assert len([message for message in seen.messages if "the store refused shard" in message]) == 1


def test_a_store_that_stays_away_ends_the_run_and_the_pauses_between_attempts_grow(monkeypatch):
    pauses = []
    monkeypatch.setattr(scheduling, "Timer", lambda seconds, *rest: pauses.append(seconds) or Timer(0, *rest))
    refused = {index: [StoreError("cannot write: 503")] * 99 for index in range(6)}
    with pytest.raises(CaptureError, match=r"refused by the store during 6 pauses; last error: cannot write: 503"):
        run([SimulatedReplica(failures=refused)], 6)
    assert pauses == [scheduling.PAUSE_SECONDS * factor for factor in (1, 2, 4, 8, 8, 8)]


def test_a_full_disk_is_waited_for_however_often_it_refuses():
    full = StoreError("cannot write pending/set: No space left on device (os error 28)")
    seen = run([SimulatedReplica(failures={index: [full] * 5 for index in range(3)})], 6)
    assert sorted(index for index, _ in seen.committed) == list(range(6))
    assert [message for message in seen.messages if message.startswith("the store is full")]


class LateWriter(SimulatedReplica):
    """A replica that commits its shards when it has captured all of them, the last one first."""

    def __init__(self, count, refused=()):
        super().__init__()
        self.count, self.refused = count, set(refused)
        self.unwritten = []

    def capture(self, task):
        captured, committed = super().capture(task).captured, Future()
        captured.add_done_callback(lambda _done: self.write(task.shard.index, committed))
        return Dispatched(captured, committed)

    def write(self, index, committed):
        self.unwritten.append((index, committed))
        while len(self.done) >= self.count and self.unwritten:
            late, future = self.unwritten.pop()
            if late in self.refused:
                self.refused.remove(late)
                future.set_exception(StoreError("cannot write: 503"))
            else:
                future.set_result(NUMBERS)


def test_a_replica_captures_on_while_its_shards_are_not_committed_yet():
    worker = LateWriter(6)
    seen = run([worker], 6)
    assert [index for index, _ in seen.committed] == [5, 4, 3, 2, 1, 0]
    assert worker.most_at_once <= IN_FLIGHT


def test_a_captured_shard_that_cannot_be_written_frees_its_slot_once():
    worker = LateWriter(6, refused=[1, 3, 4])
    seen = run([worker], 20)
    assert sorted(index for index, _ in seen.committed) == list(range(20))
    assert seen.retried == ["store"] * 3
    assert worker.most_at_once <= IN_FLIGHT


def test_a_damaged_record_ends_the_run_at_once():
    with pytest.raises(RunDamagedError):
        run([SimulatedReplica(failures={2: [RunDamagedError("shards/set/00002.json is not JSON")]})], 6)


def run_one_shard(workers, n_prompts, watch=lambda _seen: None):
    """Run one shard whose batches have four prompts."""
    batches = tuple(tuple(range(start, min(start + 4, n_prompts))) for start in range(0, n_prompts, 4))
    seen = Seen(watch)
    run_shards(workers, [task_of(ShardPlan("set", 0, 0, n_prompts, batches))], seen.callbacks)
    return seen


@each("replicas", [1, 3])
@each("poison", [{0}, {7}, {5}, {1, 6}, {2, 3, 9}])
def test_prompts_that_kill_their_replica_are_found_and_the_rest_of_the_shard_is_kept(poison, replicas):
    workers = [SimulatedReplica(restarts=99, poison=poison) for _ in range(replicas)]
    seen = run_one_shard(workers, 10)
    assert [index for index, _ in seen.committed] == [0]
    last = max((worker.quarantined.get(0, {}) for worker in workers), key=len)
    assert last == dict.fromkeys(sorted(poison), POISON)
    found = [message for message in seen.messages if message.endswith("kills its replica and is quarantined")]
    assert sorted(found) == [
        f"prompt {sample} of set kills its replica and is quarantined" for sample in sorted(poison)
    ]


def test_a_shard_with_more_poison_prompts_than_are_plausible_ends_the_run():
    with pytest.raises(CaptureError, match=r"shard set/00000 failed 3 times; last error: killed"):
        run_one_shard([SimulatedReplica(restarts=99, poison=range(3, 10))], 10)


def test_a_replica_that_dies_with_each_prompt_ends_the_run_if_it_is_the_only_one():
    """For example, its GPU has an error that every process on it sees."""
    worker = SimulatedReplica({0: 99}, restarts=99)
    with pytest.raises(CaptureError, match=r"shard set/00000 has no replica left to run on; last error: killed"):
        run_one_shard([worker], 64)
    assert worker.probes == MAX_POISON + 1
    assert worker.quarantined == {0: {}}
    assert worker.is_killed


def test_a_replica_that_dies_with_each_prompt_convicts_none_and_others_capture_its_shard():
    bad, other = SimulatedReplica({0: 99}, restarts=99), SimulatedReplica()
    other.ready = Future()

    def join(seen):
        if len(seen.retried) == MAX_ATTEMPTS + MAX_POISON + 1 and not other.ready.done():
            other.ready.set_result(None)

    seen = run_one_shard([bad, other], 64, join)
    assert [index for index, _ in seen.committed] == [0]
    assert other.quarantined == {0: {}}
    assert "a replica died with each of 4 prompts alone, so no prompt is the cause" in seen.messages
    assert "a replica was removed: killed" in seen.messages
    assert (bad.is_killed, other.is_killed) == (True, False)


def test_a_shard_of_one_poison_prompt_is_committed_without_it():
    worker = SimulatedReplica(restarts=99, poison={0})
    seen = run_one_shard([worker], 1)
    assert [index for index, _ in seen.committed] == [0]
    assert worker.quarantined[0] == {0: POISON}


def test_unrelated_deaths_convict_no_prompt():
    worker = SimulatedReplica({0: 3}, restarts=99)
    seen = run_one_shard([worker], 8)
    assert [index for index, _ in seen.committed] == [0]
    assert worker.quarantined[0] == {}
    assert [message for message in seen.messages if message.startswith("no prompt of shard set/00000 kills")]


def test_one_store_error_after_a_search_does_not_end_the_run():
    failures = {0: [StoreError("cannot write: 503")]}
    seen = run_one_shard([SimulatedReplica(restarts=99, poison={2}, failures=failures)], 8)
    assert [index for index, _ in seen.committed] == [0]


def test_a_death_of_the_last_replica_during_a_search_ends_the_run_with_the_shard():
    with pytest.raises(CaptureError, match=r"shard set/00000 has no replica left to run on"):
        run_one_shard([SimulatedReplica(restarts=3, poison={2})], 8)
