"""Tasks on threads and on a cluster: in order, a few ahead, and not held up by a slow one."""

import threading
import time
from contextvars import copy_context

import pytest
import torch

from theodolite.errors import ClusterRefusedError, RunDamagedError
from theodolite_jobs.tasks import call_on_each_worker, run_tasks, scheduler, shared

THREADS = 2


@pytest.fixture(scope="module")
def cluster():
    """A real scheduler and one worker of two threads, in this process."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=1, threads_per_worker=THREADS, processes=False, dashboard_address=":0", silence_logs=50
    ) as running:
        yield running.scheduler_address


@pytest.fixture(params=["threads", "cluster"])
def tasks(request):
    address = request.getfixturevalue("cluster") if request.param == "cluster" else None
    with scheduler(address, THREADS):
        yield


class Calls:
    """Records calls, and holds the first one until it is let go. Shared by identity: the cluster is in this process."""

    def __init__(self):
        self.begun, self.let_go = [], threading.Event()


CALLS = Calls()


@pytest.fixture(autouse=True)
def calls():
    CALLS.__init__()
    yield CALLS
    CALLS.let_go.set()


def square(number):
    CALLS.begun.append(number)
    return number**2


def hold_the_first(number):
    CALLS.begun.append(number)
    if number == 0:
        assert CALLS.let_go.wait(60)
    return number


def fail_at_three(number):
    CALLS.begun.append(number)
    if number == 0:
        CALLS.let_go.wait(60)
    if number == 3:
        raise RunDamagedError("shard 3 is damaged")
    return number


def numbers(count):
    return [(number,) for number in range(count)]


def recorder(said):
    return lambda *progress: said.append(progress)


def wait_until(is_so):
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_results_come_in_order_and_progress_reaches_the_end(tasks):
    said = []
    assert list(run_tasks(square, numbers(9), recorder(said), "squares")) == [number**2 for number in range(9)]
    assert said == [("squares", done, 9) for done in range(10)]


def test_nothing_to_do_is_done(tasks):
    said = []
    assert list(run_tasks(square, [], recorder(said), "squares")) == []
    assert said == [("squares", 0, 0)]


def test_the_others_go_on_beside_a_slow_one(tasks, calls):
    found = []

    def read():
        found.extend(run_tasks(hold_the_first, numbers(8), rounds=3))

    reader = threading.Thread(target=copy_context().run, args=(read,))  # the scheduler is a variable of the context
    reader.start()
    wait_until(lambda: len(calls.begun) == 3 * THREADS)  # all that may be ahead have begun on the one thread left
    assert found == []
    calls.let_go.set()
    reader.join(20)
    assert found == list(range(8))


@pytest.mark.parametrize("rounds", [1, 2])
def test_no_more_than_the_stated_number_is_ahead(tasks, calls, rounds):
    results = run_tasks(square, numbers(20), rounds=rounds)
    assert calls.begun == []
    for yielded in range(20):
        assert next(results) == yielded**2
        time.sleep(0.01)
        assert len(calls.begun) <= yielded + rounds * THREADS
    assert next(results, None) is None


def test_an_error_is_raised_while_an_earlier_one_still_runs_and_the_rest_is_cancelled(tasks, calls):
    results = run_tasks(fail_at_three, numbers(50), rounds=5)
    with pytest.raises(RunDamagedError, match="shard 3 is damaged"):
        list(results)
    assert not calls.let_go.is_set()
    assert len(calls.begun) <= 5 * THREADS


def test_what_is_shared_reaches_every_task(tasks):
    table = shared({"offset": 100})
    assert list(run_tasks(add_offset, [(table, number) for number in range(5)])) == list(range(100, 105))


def add_offset(table, number):
    return table["offset"] + number


def refuse(what):
    raise ClusterRefusedError(f"{what} on thread {threading.current_thread().name}")


def test_a_function_runs_on_each_worker_and_its_error_is_raised(tasks):
    with pytest.raises(ClusterRefusedError, match="no store on thread"):
        call_on_each_worker(refuse, "no store")
    call_on_each_worker(square, 3)
    assert CALLS.begun == [3]


def test_tasks_run_without_a_scheduler_too():
    assert list(run_tasks(square, numbers(3))) == [0, 1, 4]
    assert shared(5) == 5


def test_a_reader_that_stops_early_leaves_nothing_waiting(tasks, calls):
    results = run_tasks(square, numbers(1000))
    assert next(results) == 0
    results.close()
    assert len(calls.begun) <= 2 * THREADS


def test_an_inner_scheduler_takes_the_threads_of_the_outer_one():
    begun = []  # not the list that calls of earlier tests may still extend
    with scheduler(None, 1), scheduler(None):
        next(run_tasks(begun.append, numbers(9), rounds=2))
        time.sleep(0.05)
        assert len(begun) <= 2


def threads_of_torch(_index):
    (torch.ones(300, 300) @ torch.ones(300, 300)).sum()  # a thread takes its number of threads at its first operation
    return torch.get_num_threads()


def test_torch_uses_one_core_in_each_task_of_this_process_and_all_again_afterwards():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with scheduler(None, THREADS):
            assert list(run_tasks(threads_of_torch, [(0,), (1,), (2,)])) == [1, 1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
