"""Replicas on Ray: starting them, proving them, and giving them shards."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from theodolite.errors import CaptureError, RankOutOfMemoryError, RankOutOfStepError, TheodoliteError, first_line
from theodolite.spec import TokenIds
from theodolite_jobs.capture.plan import SetPlan, ShardPlan, probe_prompts
from theodolite_jobs.cluster.ranks import meeting_ranks
from theodolite_jobs.cluster.replica import REPLICA_ENVIRONMENT, Arithmetic, Assignment, Replica, arithmetic
from theodolite_jobs.cluster.scheduling import DIED, OUT_OF_MEMORY, ReplicaDiedError
from theodolite_jobs.cluster.session import Resources, has_node_for, said_free

MAX_RESTARTS = 4
"""Restarts of one replica between two shards that it commits."""

_SECONDS_TO_GATHER = 60.0
"""How long a survey waits for all its replicas to find a place, before it begins with those that have."""


class RayWorker:
    """A replica on Ray: one actor, or a group that shares a model; it restarts whole, wherever and whenever it fits.

    Attributes:
        placed: done once all its processes have started somewhere.
        ready: what will be its parity certificate: it loads its model and proves it on a few prompts of each set.
        expected: how it must compute, once that is known.
    """

    def __init__(
        self,
        assignment: Assignment,
        resources: Resources,
        plans: Mapping[str, SetPlan],
        probes: Mapping[str, Sequence[TokenIds]],
    ) -> None:
        """Start it, wherever and whenever the cluster has a place for it."""
        self._ranks, self._cpus = resources.ranks, resources.cpus / resources.ranks
        self._options = {
            "num_cpus": self._cpus,
            "num_gpus": resources.gpus / resources.ranks,
            "max_restarts": 0,  # restarting is ours
            "max_task_retries": 0,  # a lost call may have succeeded; the loop decides what is done again
            "runtime_env": {"env_vars": {**REPLICA_ENVIRONMENT, "OMP_NUM_THREADS": str(resources.threads)}},
        }
        self._arguments = assignment, dict(plans), dict(probes)
        self._restarts = 0
        self._place: Any = None
        self.expected: Arithmetic | None = None
        self._begin()

    def certify(self) -> None:
        """Ask for its certificate, as what is expected of it is now."""
        self.ready = _together([actor.certify.remote(self.expected) for actor in self.actors], "a replica")

    def capture(
        self, plan: SetPlan, shard: ShardPlan, tokens: Sequence[TokenIds], halvings: int
    ) -> "Future[Mapping[str, Any]]":
        """Begin a shard: all ranks of a group get the same calls in the same order."""
        asked = plan, shard, list(tokens), halvings
        # In order: the first is answered when the shard begins.
        begun, killed = [actor.process_id.remote().future() for actor in self.actors], self._killed

        def had_begun(rank: int) -> bool:
            return not killed.is_set() and begun[rank].done() and begun[rank].exception() is None

        answer = _together([actor.capture.remote(*asked) for actor in self.actors], f"shard {shard.name}", had_begun)
        answer.add_done_callback(self._committed)
        return answer

    def restart(self, reason: str) -> "Future[Any] | None":
        """Begin anew, unless that was done `MAX_RESTARTS` times in vain; it is back once it has proven itself again.

        It waits for a place as long as it takes, which keeps no other one from its work. One that ran out of memory is
        not counted: it gets smaller batches.
        """
        if self._restarts == MAX_RESTARTS:
            return None
        self.kill()
        self._restarts += reason != OUT_OF_MEMORY
        self._begin()
        return self.ready

    def kill(self) -> None:
        """End all its processes: one of a group that is left would wait for the others."""
        self._killed.set()  # what fails now was not its own death
        for actor in self.actors:
            ray.kill(actor)
        if self._place is not None:
            ray.util.remove_placement_group(self._place)

    def _committed(self, answer: "Future[Any]") -> None:
        if answer.exception() is None:
            self._restarts = 0

    def _begin(self) -> None:
        self._killed = threading.Event()
        self.actors = self._actors()
        self.placed = self._reached()
        self.certify()

    def _reached(self) -> "Future[Any]":
        return _together([actor.process_id.remote() for actor in self.actors], "a replica")

    def _actors(self) -> list[Any]:
        actor_class: Any = ray.remote(Replica)
        if self._ranks == 1:
            return [actor_class.options(**self._options).remote(*self._arguments)]
        self._place = ray.util.placement_group(
            [{"CPU": self._cpus, "GPU": 1.0}] * self._ranks, strategy="STRICT_PACK"
        )  # all on one node, for they exchange what each layer gives
        here = PlacementGroupSchedulingStrategy(self._place)
        meeting: Any = ray.remote(meeting_ranks).options(num_cpus=0, num_returns=self._ranks, scheduling_strategy=here)
        placed = actor_class.options(**self._options, scheduling_strategy=here)
        return [placed.remote(*self._arguments, rank) for rank in meeting.remote(self._ranks)]


def start_workers(
    assignment: Assignment,
    resources: Resources,
    plans: Mapping[str, SetPlan],
    tokens: Mapping[str, Sequence[TokenIds]],
) -> list[RayWorker]:
    """Start all replicas."""
    probes = {name: probe_prompts(tokens[name]) for name in plans}
    few = {name: replace(plan, shards=()) for name, plan in plans.items()}
    return [RayWorker(assignment, resources, few, probes) for _ in range(resources.replicas)]


def certify_workers(
    workers: Sequence[RayWorker], resources: Resources, wait_seconds: float, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Have replicas prove themselves against plain Hugging Face; return the first one's certificate.

    Those that find no place in a minute do so later and join the others: two surveys that share a cluster would else
    wait for ever, each for the places that the other holds.

    Args:
        workers: the replicas.
        resources: what each needs.
        wait_seconds: how long the cluster may take to bring a node that has it.
        tell: is told what is waited for.

    Raises:
        ParityError: a replica differs by more than rounding.
        ModelError: a replica cannot load the model.
        CaptureError: no node came, all replicas died, or they compute in different ways, which would mix in one run.
    """
    by_place = {worker.placed: worker for worker in workers}
    placed, missing = wait(by_place, _SECONDS_TO_GATHER)
    waited = _SECONDS_TO_GATHER
    while not placed:
        if waited >= wait_seconds and not has_node_for(resources):
            raise CaptureError(
                f"no node with {resources.gpus} GPUs and {resources.cpus:g} CPUs came in {waited:.0f} s; change "
                "--gpus-per-replica or --replicas, or let the cluster grow (THEODOLITE_NODES_WAIT_SECONDS)"
            )
        tell(f"waiting: no replica has found a place yet; {said_free()}")
        placed, missing = wait(by_place, _SECONDS_TO_GATHER, FIRST_COMPLETED)
        waited += _SECONDS_TO_GATHER
    if missing:
        tell(f"{len(placed)} of {len(workers)} replicas have a place; the others join when they find one")
    certificates, died = [], []
    for place in placed:
        try:
            certificates.append(by_place[place].ready.result())
        except ReplicaDiedError as error:  # it is begun anew when shards are given out
            died.append(error)
    if not certificates:
        raise CaptureError(f"a replica died while it loaded the model: {died[0]}") from died[0]
    ways = {arithmetic(certificate) for certificate in certificates}
    if len(ways) > 1:
        raise CaptureError(f"the replicas compute in different ways, {sorted(ways)}; use nodes of one kind")
    for worker in workers:
        (worker.expected,) = ways
    for place in missing:
        if not by_place[place].ready.done() or by_place[place].ready.exception() is None:
            by_place[place].certify()
    return dict(certificates[0])


def _together(calls: Sequence[Any], where: str, had_begun: Callable[[int], bool] = lambda _rank: True) -> "Future[Any]":
    """Return what will be the first one's answer once all have answered, or the first error of any.

    Args:
        calls: of all ranks.
        where: what they are about, for messages.
        had_begun: whether the process of a rank came to its call before it died.
    """
    answer: Future[Any] = Future()
    futures = [call.future() for call in calls]
    left, lock = [len(futures)], threading.Lock()

    def heard(rank: int, done: "Future[Any]") -> None:
        error = done.exception()
        with lock:
            left[0] -= 1
            if answer.done():
                return
            if error is not None:
                known = _as_the_loop_knows_it(error, where, had_begun=had_begun(rank), is_group=len(futures) > 1)
                answer.set_exception(known)
            elif left[0] == 0:
                answer.set_result(futures[0].result())

    for rank, future in enumerate(futures):
        future.add_done_callback(partial(heard, rank))
    return answer


def _as_the_loop_knows_it(error: BaseException, where: str, *, had_begun: bool, is_group: bool) -> BaseException:
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        if isinstance(cause, RankOutOfMemoryError):
            return ReplicaDiedError(OUT_OF_MEMORY, str(cause))
        if isinstance(cause, RankOutOfStepError):
            return ReplicaDiedError(DIED, str(cause), had_begun=False)
        # A rank whose group lost one fails wherever it waits for it.
        if is_group and not isinstance(cause, TheodoliteError):
            return ReplicaDiedError(DIED, first_line(cause), had_begun=had_begun)
        return _own_error(error, where)
    if isinstance(error, ray.exceptions.RayError):
        is_memory = isinstance(error, ray.exceptions.OutOfMemoryError)
        return ReplicaDiedError(OUT_OF_MEMORY if is_memory else DIED, first_line(error), had_begun=had_begun)
    return error


def _own_error(error: ray.exceptions.RayTaskError, where: str) -> TheodoliteError:
    """Return our own error where a replica raised one, and a CaptureError for anything else."""
    cause = error.cause
    if isinstance(cause, TheodoliteError):
        return type(cause)(str(cause))
    return CaptureError(f"{where} failed: {type(cause).__name__}: {first_line(cause)}")
