"""The scheduling loop, with replicas that only pretend."""

import threading
import time
from concurrent.futures import Future

import pytest
from support.pretend import NUMBERS, PretendReplica, work_of

from theodolite.errors import CaptureError, ModelError
from theodolite_jobs.cluster.scheduling import IN_FLIGHT, OUT_OF_MEMORY, Watch, run_shards


class Seen:
    """What the loop told."""

    def __init__(self):
        self.committed, self.retried, self.replicas, self.told = [], [], [], []
        self.watch = Watch(
            lambda shard, numbers: self.committed.append((shard.index, numbers)),
            self.retried.append,
            self.replicas.append,
            self.told.append,
        )


def run(workers, count):
    seen = Seen()
    run_shards(workers, work_of(count), {"set": [(1,)] * count}, seen.watch)
    return seen


@pytest.mark.parametrize(("replicas", "count"), [(1, 0), (1, 7), (3, 40), (8, 5)])
def test_every_shard_is_committed_once_whatever_the_number_of_replicas(replicas, count):
    workers = [PretendReplica() for _ in range(replicas)]
    seen = run(workers, count)
    assert sorted(seen.committed) == [(index, NUMBERS) for index in range(count)]
    assert sorted(index for worker in workers for index in worker.done) == list(range(count))
    assert all(worker.most_at_once <= IN_FLIGHT for worker in workers)
    assert (seen.retried, seen.replicas) == ([], list(range(1, replicas + 1)))


def test_a_shard_whose_replica_died_is_done_after_it_began_anew():
    worker = PretendReplica({2: 1})
    seen = run([worker], 6)
    assert sorted(index for index, _ in seen.committed) == list(range(6))
    assert worker.lives == 2, "one death, one restart, though two shards were lost"
    assert seen.retried == ["died", "died"]
    assert seen.replicas == [1, 0, 1]


def test_a_shard_that_kills_three_times_ends_the_run_and_its_neighbour_is_not_blamed():
    with pytest.raises(CaptureError, match=r"shard set/00002 failed 3 times, last because: killed; what was committed"):
        run([PretendReplica({2: 99}), PretendReplica({2: 99})], 6)


def test_replicas_that_died_while_idle_are_no_fault_of_the_shard_that_finds_out():
    workers = [PretendReplica() for _ in range(4)]
    for worker in workers:
        worker.dead = True
        worker.seconds_to_restart = 0.1  # so that all have been tried before one is back
    seen = run(workers, 1)
    assert [index for index, _ in seen.committed] == [0]
    assert seen.retried == ["died"] * 4


def test_a_survey_begins_with_the_replicas_that_are_there_and_others_join():
    there, late, never = PretendReplica(seconds=0.01), PretendReplica(), PretendReplica()
    late.ready, never.ready = Future(), Future()
    threading.Timer(0.1, late.ready.set_result, [None]).start()
    seen = run([late, there, never], 60)
    assert sorted(index for index, _ in seen.committed) == list(range(60))
    assert there.done
    assert late.done
    assert (never.done, seen.replicas) == ([], [1, 2])


def test_a_replica_that_never_gets_ready_is_left_out_and_somebody_is_told_why():
    broken, other = PretendReplica(restarts=0), PretendReplica()
    broken.ready = Future()
    broken.ready.set_exception(ModelError("this node has no such model"))
    seen = run([broken, other], 5)
    assert len(other.done) == 5
    assert seen.told == ["a replica is left out: this node has no such model"]
    assert (broken.is_killed, other.is_killed) == (True, False), "one that is left out holds no place"


def test_a_replica_that_does_not_begin_anew_leaves_its_work_to_the_others():
    lost, other = PretendReplica({0: 1}, restarts=0), PretendReplica()
    seen = run([lost, other], 12)
    assert sorted(index for index, _ in seen.committed) == list(range(12))
    assert seen.replicas[-1] == 1
    assert lost.done == []


def test_without_any_replica_left_a_shard_is_named():
    with pytest.raises(CaptureError, match=r"shard set/0000\d has no replica left to run on"):
        run([PretendReplica({0: 1}, restarts=0), PretendReplica({1: 1}, restarts=0)], 4)


def test_batches_are_halved_as_often_as_memory_runs_out_and_from_then_on_for_all():
    worker = PretendReplica({index: 1 for index in range(4)}, restarts=1, reason=OUT_OF_MEMORY)
    seen = run([worker], 8)
    assert sorted(index for index, _ in seen.committed) == list(range(8))
    assert worker.halvings[7] == 4
    assert set(seen.retried) == {OUT_OF_MEMORY}


@pytest.mark.parametrize("replicas", [1, 2, 8])
def test_what_did_not_fit_anywhere_at_once_is_halved_once(replicas):
    class Small(PretendReplica):
        """Has memory for half a batch."""

        def capture(self, plan, shard, tokens, halvings):
            self.deaths[shard.index] = int(halvings == 0)
            return super().capture(plan, shard, tokens, halvings)

    workers = [Small(reason=OUT_OF_MEMORY, seconds=0.05) for _ in range(replicas)]
    seen = run(workers, 4 * replicas)
    assert sorted(index for index, _ in seen.committed) == list(range(4 * replicas))
    assert max(halvings for worker in workers for halvings in worker.halvings.values()) == 1


def test_a_prompt_that_does_not_fit_alone_ends_the_run():
    with pytest.raises(CaptureError, match=r"shard set/00001 failed 3 times"):
        run([PretendReplica({1: 99}, reason=OUT_OF_MEMORY)], 4)


def test_an_error_of_the_code_ends_the_run_at_once():
    with pytest.raises(ModelError, match="no such layer"):
        run([PretendReplica(error=ModelError("no such layer"))], 3)


def test_a_replica_that_takes_long_keeps_no_other_from_its_work():
    slow, quick = PretendReplica(seconds=0.5), PretendReplica()
    began = time.monotonic()
    run([slow, quick], 40)
    assert len(quick.done) == 38
    assert time.monotonic() - began < 5


def test_a_replica_gets_nothing_until_it_is_back_and_others_go_on():
    away, other = PretendReplica({0: 1}), PretendReplica(seconds=0.002)
    away.seconds_to_restart = 0.3
    seen = run([away, other], 60)
    assert sorted(index for index, _ in seen.committed) == list(range(60))
    assert away.lives == 1
    assert len(other.done) == 60
    assert seen.replicas == [1, 2, 1]


def test_a_replica_that_finds_no_place_is_waited_for_only_where_there_is_no_other():
    lost = PretendReplica({0: 1})
    lost.finds_a_place = False
    assert len(run([lost, PretendReplica()], 9).committed) == 9
    lost = PretendReplica({0: 1}, restarts=2)
    lost.finds_a_place, lost.seconds_to_restart = False, 0.1
    with pytest.raises(CaptureError, match="no replica left to run on, last because: no place"):
        run([lost], 3)


def test_a_replica_that_is_back_is_waited_for_where_there_is_no_other():
    worker = PretendReplica({3: 1})
    worker.seconds_to_restart = 0.2
    assert len(run([worker], 9).committed) == 9
