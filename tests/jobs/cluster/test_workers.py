"""A replica on Ray as the loop sees it, with fake actors whose futures the tests complete."""

import time
from concurrent.futures import Future

import pytest
import ray

from theodolite.errors import CaptureError, ParityError, RankOutOfMemoryError, RankOutOfStepError, StoreError
from theodolite.spec_parts import ModelSpec
from theodolite_jobs import progress
from theodolite_jobs.capture.plan import SetLayout, ShardPlan, ShardTask
from theodolite_jobs.cluster import replicas
from theodolite_jobs.cluster.replica import Assignment, Replica
from theodolite_jobs.cluster.replicas import certify_workers
from theodolite_jobs.cluster.scheduling import DIED, OUT_OF_MEMORY, RESTART_SECONDS, ReplicaDiedError
from theodolite_jobs.cluster.session import Resources
from theodolite_jobs.cluster.workers import MAX_RESTARTS, RayWorker
from theodolite_jobs.progress import Bar
from theodolite_jobs.stages import Stage, counted

TASK = ShardTask(SetLayout((-1,), 0), ShardPlan("set", 0, 0, 2, ((0, 1),)), [])
CERTIFICATE = {"dtype": "float32", "attention": "sdpa", "device": "cpu", "ranks": 1}


class Method:
    """A method of a fake actor; records the futures that it returned."""

    def __init__(self):
        self.answers = []

    def remote(self, *_arguments):
        answer = Future()
        self.answers.append(answer)
        return type("Call", (), {"future": lambda _self: answer})()

    def options(self, **_options):
        return self


class Actor:
    """A fake of a Ray actor handle."""

    def __init__(self):
        self.process_id, self.certify, self.capture, self.written = Method(), Method(), Method(), Method()
        self.loading = Method()
        self.is_killed = False


@pytest.fixture
def made(monkeypatch):
    """Every actor that was started."""
    actors = []

    def start(worker):
        started = [Actor() for _ in range(worker._ranks)]
        actors.extend(started)
        return started

    def kill(actor):
        actor.is_killed = True
        methods = actor.process_id, actor.certify, actor.capture, actor.written, actor.loading
        for answer in (answer for method in methods for answer in method.answers):
            if not answer.done():
                answer.set_exception(ray.exceptions.ActorDiedError())

    monkeypatch.setattr(RayWorker, "_actors", start)
    monkeypatch.setattr(ray, "kill", kill)
    return actors


def worker_of(ranks=1):
    return RayWorker(None, Resources(1, ranks, 1, 1.0, ranks))


def died(answer):
    error = answer.exception(timeout=60)
    assert isinstance(error, ReplicaDiedError)
    return error.reason, error.was_executing


def of_task(cause):
    return ray.exceptions.RayTaskError("capture", "traceback", cause)


@pytest.mark.parametrize("was_executing", [True, False])
def test_a_shard_was_executing_if_the_replica_came_to_it(made, was_executing):
    answer = worker_of().capture(TASK).committed
    if was_executing:
        made[0].process_id.answers[-1].set_result(1)
    made[0].capture.answers[0].set_exception(ray.exceptions.ActorDiedError())
    assert died(answer) == (DIED, was_executing)


def test_a_shard_that_the_driver_kills_is_not_counted_as_failed(made):
    worker = worker_of(2)
    writing, next_one = worker.capture(TASK).committed, worker.capture(TASK).committed
    for actor in made:
        for answer in actor.process_id.answers:
            answer.set_result(1)
    made[1].capture.answers[0].set_result(None)  # the first rank still writes the shard
    made[1].capture.answers[1].set_exception(of_task(RankOutOfMemoryError("a batch does not fit")))
    assert died(next_one) == (OUT_OF_MEMORY, True)
    worker.restart(OUT_OF_MEMORY)
    assert died(writing) == (DIED, False)
    assert [actor.is_killed for actor in made] == [True, True, False, False]


def test_the_shard_that_killed_a_rank_is_counted_while_another_rank_still_writes(made):
    worker = worker_of(2)
    writing, deadly = worker.capture(TASK).committed, worker.capture(TASK).committed
    for answer in (made[0].process_id.answers[1], *made[1].process_id.answers[1:]):
        answer.set_result(1)  # the second rank came to both shards
    made[1].capture.answers[0].set_result(None)
    made[1].capture.answers[1].set_exception(ray.exceptions.ActorDiedError())
    assert died(deadly) == (DIED, True)
    worker.restart(DIED)
    assert died(writing) == (DIED, False)


def test_a_rank_that_is_out_of_step_counts_no_failure(made):
    answer = worker_of(2).capture(TASK).committed
    for actor in made:
        actor.process_id.answers[-1].set_result(1)
    made[0].capture.answers[0].set_exception(of_task(RankOutOfStepError("out of step")))
    assert died(answer) == (DIED, False)


def test_a_replica_takes_another_shard_while_it_writes_one(made):
    capture = worker_of().capture(TASK)
    made[0].capture.answers[0].set_result(None)
    assert capture.captured.done()
    assert not capture.committed.done()
    made[0].written.answers[0].set_result({"prompts": 2})
    assert capture.committed.result() == {"prompts": 2}


def test_a_death_is_not_counted_against_the_shard_that_is_written(made):
    worker = worker_of()
    writing, captured = worker.capture(TASK).committed, worker.capture(TASK).committed
    for answer in made[0].process_id.answers:
        answer.set_result(1)
    made[0].capture.answers[0].set_result(None)
    for answer in (made[0].written.answers[0], made[0].capture.answers[1]):
        answer.set_exception(ray.exceptions.ActorDiedError())
    assert died(writing) == (DIED, False)
    assert died(captured) == (DIED, True)


def test_an_error_of_a_gpu_that_the_writer_sees_is_counted_against_its_shard(made):
    writing = worker_of().capture(TASK).committed
    made[0].capture.answers[0].set_result(None)
    made[0].written.answers[0].set_exception(of_task(RuntimeError("CUDA error: device-side assert triggered")))
    assert died(writing) == (DIED, True)


def test_restarts_are_counted_between_two_commits(made):
    worker = worker_of()
    assert all(worker.restart(DIED) for _ in range(MAX_RESTARTS))
    answer = worker.capture(TASK).committed
    made[-1].capture.answers[0].set_result(None)
    made[-1].written.answers[0].set_result({})
    assert answer.result() == {}
    assert all(worker.restart(DIED) for _ in range(MAX_RESTARTS))
    assert worker.restart(DIED) is None
    worker.kill()  # as the loop does when it removes a replica
    assert all(actor.is_killed for actor in made), "a removed replica holds no GPU"


ECC = of_task(RuntimeError("CUDA error: uncorrectable ECC error encountered"))


def complete(actor, certificate):
    actor.process_id.answers[0].set_result(1)
    if isinstance(certificate, Exception):
        actor.certify.answers[0].set_exception(certificate)
    else:
        actor.certify.answers[0].set_result(certificate)


def certified(made, monkeypatch, *certificates):
    """Let each replica return a certificate or an error, or wait for resources if that is None."""
    monkeypatch.setattr(replicas, "describe_free", lambda: "none are free")
    started, messages = [worker_of() for _ in certificates], []
    for actor, certificate in zip(made, certificates, strict=True):
        if certificate is not None:
            complete(actor, certificate)
    bar = Bar("loading", None, 0, "s")
    return started, certify_workers(started, Resources(1, 0, 1, 1.0), 0, messages.append, 0.2, bar), messages


def test_replicas_that_start_late_are_certified_with_the_arithmetic_of_the_first(made, monkeypatch):
    (started, missing), certificate, messages = certified(made, monkeypatch, CERTIFICATE, None)
    assert certificate == CERTIFICATE
    assert messages == ["1 of 2 replicas have started; the others join when resources are free"]
    assert missing.expected == started.expected == ("float32", "sdpa", "cpu", "1 rank(s)")
    assert len(made[1].certify.answers) == 2
    assert not missing.ready.done()


def test_the_driver_prints_what_a_replica_counts_while_it_loads(made, monkeypatch, capsys):
    """At first it does not count, then it converts, and then it loads the weights; the other one waits for it."""
    counts = iter([None, *(Stage("converting", done, 9, "tensors") for done in (2, 5, 9)), None, None])

    class Loading(Method):
        def remote(self, *_):
            call = super().remote()
            found = next(counts, "loaded")
            self.answers[-1].set_result(None if found == "loaded" else found)
            if found == "loaded":
                for actor in made:
                    actor.certify.answers[0].set_result(CERTIFICATE)
            return call

    class Waiting(Method):
        def remote(self, *_):
            call = super().remote()
            self.answers[-1].set_result(None)
            return call

    monkeypatch.setattr(replicas, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(progress.Bar, "SECONDS_BETWEEN_LINES", 0)
    workers, bar = [worker_of() for _ in range(2)], Bar("loading", None, 0, "s")
    made[0].loading, made[1].loading = Waiting(), Loading()
    for actor in made:
        actor.process_id.answers[0].set_result(1)
    assert certify_workers(workers, Resources(2, 0, 1, 1.0), 0, print, 0.2, bar) == CERTIFICATE
    lines = [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines[0] == "loading the model: 0 s"
    assert lines[1:4] == [f"converting: {done}/9 tensors" for done in (2, 5, 9)]
    assert lines[4].startswith("loading the model: ")


def test_a_replica_tells_what_it_counts_while_it_loads(monkeypatch, tmp_path):
    seen = []

    def load(replica):
        seen.extend(replica.loading() for _ in counted("abc", 3, "converting", "tensors"))
        replica._certificate = CERTIFICATE

    monkeypatch.setattr(Replica, "_ready", load)
    replica = Replica(Assignment("run-0", "", ModelSpec(id="m"), "", tmp_path, tmp_path, (), (), 1))
    replica.certify()
    assert seen == [None, ("converting", 1, 3, "tensors"), ("converting", 2, 3, "tensors")]
    assert replica.loading() is None


def test_the_loop_restarts_a_replica_that_died_while_it_loaded(made, monkeypatch):
    (gone, _), certificate, _ = certified(made, monkeypatch, ray.exceptions.ActorDiedError(), CERTIFICATE)
    assert certificate == CERTIFICATE
    assert isinstance(gone.ready.exception(), ReplicaDiedError)


@pytest.mark.parametrize("n_deaths", [1, MAX_RESTARTS])
def test_replicas_that_all_died_while_they_loaded_start_again(made, monkeypatch, n_deaths):
    """For example, all GPUs of a node have an error that the next process does not see."""
    later, pauses = iter([ECC] * (n_deaths - 1) + [CERTIFICATE]), []
    restart = RayWorker.restart

    def complete_after_restart(worker, reason):
        ready = restart(worker, reason)
        complete(made[-1], next(later))
        return ready

    monkeypatch.setattr(RayWorker, "restart", complete_after_restart)
    monkeypatch.setattr(time, "sleep", pauses.append)
    _, certificate, messages = certified(made, monkeypatch, ECC)
    assert certificate == CERTIFICATE
    assert [message.partition(":")[0] for message in messages] == [
        "all started replicas died while they loaded the model, and start again"
    ] * n_deaths
    assert "uncorrectable ECC" in messages[0]
    assert pauses == [0.0, *(RESTART_SECONDS * 2**more for more in range(n_deaths - 1))]


def test_a_survey_ends_when_replicas_die_again_and_again_while_they_load(made, monkeypatch):
    restart = RayWorker.restart

    def die_after_restart(worker, reason):
        if (ready := restart(worker, reason)) is not None:
            complete(made[-1], ECC)
        return ready

    monkeypatch.setattr(RayWorker, "restart", die_after_restart)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    with pytest.raises(CaptureError, match="all started replicas died while they loaded the model: CUDA error"):
        certified(made, monkeypatch, ECC)
    assert len(made) == 1 + MAX_RESTARTS


def test_an_error_of_the_store_while_a_replica_loads_is_its_death(made):
    """A pause later, the store may respond again."""
    worker = worker_of()
    complete(made[0], of_task(StoreError("cannot read the store: 503")))
    assert died(worker.ready) == (DIED, False)


def test_an_operation_that_a_gpu_lacks_is_an_error_of_the_code(made):
    answer = worker_of().capture(TASK).committed
    made[0].process_id.answers[-1].set_result(1)
    problem = "Could not run 'aten::x' with arguments from the 'CUDA' backend"
    made[0].capture.answers[0].set_exception(of_task(NotImplementedError(problem)))
    assert isinstance(answer.exception(), CaptureError)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_after_out_of_memory_in_the_driver_of_a_gpu_the_batches_are_halved(made, text):
    answer = worker_of().capture(TASK).committed
    made[0].process_id.answers[-1].set_result(1)
    made[0].capture.answers[0].set_exception(of_task(RuntimeError(text)))
    assert died(answer) == (OUT_OF_MEMORY, True)


@pytest.mark.parametrize(
    ("second", "error"),
    [({**CERTIFICATE, "device": "cuda:0"}, CaptureError), (of_task(ParityError("it differs")), ParityError)],
)
def test_replicas_that_differ_are_refused(made, monkeypatch, second, error):
    with pytest.raises(error):
        certified(made, monkeypatch, CERTIFICATE, second)


def test_the_wait_for_a_node_has_a_limit(made, monkeypatch):
    monkeypatch.setattr(replicas, "has_node_for", lambda _resources: False)
    with pytest.raises(
        CaptureError, match=r"no node with 0 GPUs and 1 CPUs joined the cluster in 0 s; change --gpus-per-replica"
    ):
        certified(made, monkeypatch, None)
