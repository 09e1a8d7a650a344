"""Starting replicas on Ray and feeding them shards until all are committed."""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray

from theodolite.capture.plan import SetPlan, Shard, TokenIds
from theodolite.cluster.replica import REPLICA_ENVIRONMENT, Assignment, Replica
from theodolite.errors import CaptureError, TheodoliteError

IN_FLIGHT = 2
"""Shards given to a replica at a time: one computes, one waits, so that it never idles between two."""

MAX_ATTEMPTS = 3
"""Tries of a shard before the run gives up; a shard that kills its replica must not do so without end."""

MAX_RESTARTS = 4
"""Restarts of one replica."""

Progress = Callable[[Shard, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Resources:
    """What the replicas get.

    Attributes:
        replicas: how many.
        gpus: GPUs of each.
        threads: threads of each, on a CPU.
        cpus: what Ray books for each.
    """

    replicas: int
    gpus: int
    threads: int
    cpus: float


@contextmanager
def ray_session(address: str | None) -> Iterator[None]:
    """Connect to a cluster, or start Ray inside this machine for as long as the context lasts.

    Raises:
        CaptureError: the cluster cannot be reached.
    """
    if ray.is_initialized():  # a notebook, or a test, that keeps Ray running between surveys
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    local: dict[str, Any] = {} if address else {"include_dashboard": False, "object_store_memory": 100 * 2**20}
    try:
        ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **local)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise CaptureError(f"cannot connect to the Ray cluster at {address or 'this machine'}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def choose_resources(replicas: int | None, gpus_per_replica: int | None) -> Resources:
    """Choose how many replicas of which size the cluster gets: all GPUs where there are any.

    Raises:
        CaptureError: the cluster has fewer GPUs than one replica was asked to have.
    """
    cluster = ray.cluster_resources()
    cpus, gpus = int(cluster.get("CPU", 1)), int(cluster.get("GPU", 0))
    each = gpus_per_replica if gpus_per_replica is not None else min(1, gpus)
    wanted = replicas or max(1, gpus // each if each else 1)
    if each * wanted > gpus:
        raise CaptureError(
            f"{wanted} replicas of {each} GPUs need {each * wanted}, and the cluster has {gpus}; "
            "change --replicas or --gpus-per-replica"
        )
    threads = max(1, cpus // wanted)
    return Resources(wanted, each, threads, cpus=min(float(threads), cpus / wanted))


def start_replicas(assignment: Assignment, resources: Resources) -> list[Any]:
    """Start replicas; they load their model on first use."""
    actor = ray.remote(Replica).options(
        num_cpus=resources.cpus,
        num_gpus=resources.gpus,
        max_restarts=MAX_RESTARTS,
        max_task_retries=0,  # a lost call may have succeeded; the loop below decides what is done again
        runtime_env={"env_vars": {**REPLICA_ENVIRONMENT, "OMP_NUM_THREADS": str(resources.threads)}},
    )
    return [actor.remote(assignment) for _ in range(resources.replicas)]


def certify_replicas(
    replicas: Sequence[Any], plans: Mapping[str, SetPlan], tokens: Mapping[str, Sequence[TokenIds]]
) -> dict[str, Any]:
    """Have every replica prove itself against plain Hugging Face; return the first one's certificate.

    Raises:
        ParityError: a replica differs by more than rounding.
        ModelError: a replica cannot load the model.
        CaptureError: a replica died.
    """
    probes = {name: _shortest_and_longest(tokens[name]) for name in plans}
    waiting = [replica.certify.remote(dict(plans), probes) for replica in replicas]
    try:
        certificates = ray.get(waiting)
    except ray.exceptions.RayTaskError as error:
        raise _own_error(error) from error
    except ray.exceptions.RayError as error:
        raise CaptureError(f"a replica died while it loaded the model: {_first_line(error)}") from error
    return dict(certificates[0])


def run_shards(
    replicas: Sequence[Any],
    work: Sequence[tuple[SetPlan, Shard]],
    tokens: Mapping[str, Sequence[TokenIds]],
    progress: Progress,
) -> None:
    """Give every shard to some replica, at most `IN_FLIGHT` at a time each, until all are committed.

    A shard whose replica died goes back to the queue; replicas restart by themselves.

    Raises:
        CaptureError: a shard failed `MAX_ATTEMPTS` times; names the shard.
    """
    waiting = deque(work)
    attempts: dict[str, int] = {}
    in_flight: dict[Any, tuple[Any, SetPlan, Shard]] = {}

    def give(replica: Any) -> None:
        if waiting:
            plan, shard = waiting.popleft()
            future = replica.capture.remote(plan, shard, list(tokens[shard.prompt_set][shard.start : shard.stop]))
            in_flight[future] = (replica, plan, shard)

    for _ in range(IN_FLIGHT):
        for replica in replicas:
            give(replica)
    while in_flight:
        ready, _ = ray.wait(list(in_flight), num_returns=1)
        replica, plan, shard = in_flight.pop(ready[0])
        try:
            progress(shard, ray.get(ready[0]))
        except ray.exceptions.RayTaskError as error:
            # The code raised: it would raise again.
            raise _own_error(error, shard) from error
        except ray.exceptions.RayError as error:
            attempts[shard.name] = attempts.get(shard.name, 0) + 1
            if attempts[shard.name] >= MAX_ATTEMPTS:
                raise CaptureError(
                    f"shard {shard.name} failed {MAX_ATTEMPTS} times, last because: {_first_line(error)}; "
                    "what was committed stays, run the survey again to go on"
                ) from error
            waiting.appendleft((plan, shard))
        give(replica)


def _shortest_and_longest(tokens: Sequence[TokenIds]) -> list[TokenIds]:
    return [min(tokens, key=len), max(tokens, key=len)]


def _own_error(error: ray.exceptions.RayTaskError, shard: Shard | None = None) -> TheodoliteError:
    """Return our own error where a replica raised one, and a CaptureError for anything else."""
    cause = error.cause
    if isinstance(cause, TheodoliteError):
        return type(cause)(str(cause))
    where = f"shard {shard.name}" if shard else "a replica"
    return CaptureError(f"{where} failed: {type(cause).__name__}: {_first_line(cause)}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
