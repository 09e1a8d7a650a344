"""Starting replicas on Ray and feeding them shards until all are committed."""

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ray

from theodolite.capture.plan import SetPlan, Shard, probe_prompts
from theodolite.cluster.replica import REPLICA_ENVIRONMENT, Assignment, Replica
from theodolite.errors import CaptureError, TheodoliteError
from theodolite.spec import TokenIds

IN_FLIGHT = 2
"""Shards given to a replica at a time: one computes, one waits, so that it never idles between two."""

MAX_ATTEMPTS = 3
"""Tries of a shard before the run gives up; a shard that kills its replica must not do so without end."""

MAX_RESTARTS = 4
"""Restarts of one replica."""

_SECONDS_TO_RESTART = 120

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
    if address:
        _refuse_unreachable(address)
    if ray.is_initialized():  # a notebook, or a test, that keeps Ray running between surveys
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    local: dict[str, Any] = {} if address else {"include_dashboard": False, "object_store_memory": 100 * 2**20}
    try:
        ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **local)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise CaptureError(f"cannot connect to the Ray cluster at {address or 'this machine'}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def choose_resources(replicas: int | None, gpus_per_replica: int | None) -> Resources:
    """Choose how many replicas of which size the cluster gets: all GPUs where there are any.

    Raises:
        CaptureError: no node has as many GPUs as one replica was asked to have, or there are too few in all.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = [int(node.get("GPU", 0)) for node in nodes]
    cpus = max(int(node.get("CPU", 1)) for node in nodes)
    each = gpus_per_replica if gpus_per_replica is not None else min(1, max(gpus))
    places = sum(count // each for count in gpus) if each else len(nodes)
    wanted = replicas or max(1, places if each else 1)
    if each and wanted > places:
        raise CaptureError(
            f"{wanted} replicas of {each} GPUs find no place: the nodes of the cluster have {gpus} GPUs; "
            "change --replicas or --gpus-per-replica"
        )
    on_one_node = -(-wanted // len(nodes))
    threads = max(1, cpus // on_one_node)
    # A replica on GPUs computes there and needs one core; one without needs all that it is given.
    return Resources(wanted, each, threads, cpus=min(1.0 if each else float(threads), cpus / on_one_node))


def start_replicas(
    assignment: Assignment,
    resources: Resources,
    plans: Mapping[str, SetPlan],
    tokens: Mapping[str, Sequence[TokenIds]],
) -> list[Any]:
    """Start replicas; on first use they load their model and prove it on a few prompts of each set."""
    probes = {name: probe_prompts(tokens[name]) for name in plans}
    few = {name: replace(plan, shards=()) for name, plan in plans.items()}
    actor = ray.remote(Replica).options(
        num_cpus=resources.cpus,
        num_gpus=resources.gpus,
        max_restarts=MAX_RESTARTS,
        max_task_retries=0,  # a lost call may have succeeded; the loop below decides what is done again
        runtime_env={"env_vars": {**REPLICA_ENVIRONMENT, "OMP_NUM_THREADS": str(resources.threads)}},
    )
    return [actor.remote(assignment, few, probes) for _ in range(resources.replicas)]


def certify_replicas(replicas: Sequence[Any]) -> dict[str, Any]:
    """Have every replica prove itself against plain Hugging Face; return the first one's certificate.

    Raises:
        ParityError: a replica differs by more than rounding.
        ModelError: a replica cannot load the model.
        CaptureError: a replica died, or they compute in different ways, which would mix in one run.
    """
    waiting = [replica.certify.remote() for replica in replicas]
    try:
        certificates = ray.get(waiting)
    except ray.exceptions.RayTaskError as error:
        raise _own_error(error) from error
    except ray.exceptions.RayError as error:
        raise CaptureError(f"a replica died while it loaded the model: {_first_line(error)}") from error
    ways = {arithmetic(certificate) for certificate in certificates}
    if len(ways) > 1:
        raise CaptureError(f"the replicas compute in different ways, {sorted(ways)}; use nodes of one kind")
    return dict(certificates[0])


def arithmetic(certificate: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return dtype, attention and kind of device: what must not be mixed in one run."""
    return certificate["dtype"], certificate["attention"], str(certificate["device"]).partition(":")[0]


def run_shards(
    replicas: Sequence[Any],
    work: Sequence[tuple[SetPlan, Shard]],
    tokens: Mapping[str, Sequence[TokenIds]],
    progress: Progress,
) -> None:
    """Give every shard to some replica, at most `IN_FLIGHT` at a time each, until all are committed.

    A shard whose replica died goes back to the queue; replicas restart by themselves, and one that does not is left
    out while others remain.

    Raises:
        CaptureError: a shard failed `MAX_ATTEMPTS` times, or no replica is left; names the shard.
    """
    waiting = deque(work)
    failures: dict[str, int] = {}
    free = [replica for _ in range(IN_FLIGHT) for replica in replicas]
    in_flight: dict[Any, tuple[Any, SetPlan, Shard]] = {}
    while waiting or in_flight:
        while waiting and free:
            replica, (plan, shard) = free.pop(0), waiting.popleft()
            of_shard = list(tokens[shard.prompt_set][shard.start : shard.stop])
            # The plan of the whole set would travel with every shard; this one's batches are enough.
            future = replica.capture.remote(replace(plan, shards=()), shard, of_shard)
            in_flight[future] = (replica, plan, shard)
        ready, _ = ray.wait(list(in_flight), num_returns=1)
        replica, plan, shard = in_flight.pop(ready[0])
        try:
            progress(shard, ray.get(ready[0]))
            free.append(replica)
        except ray.exceptions.RayTaskError as error:
            # The code raised: it would raise again.
            raise _own_error(error, shard) from error
        except ray.exceptions.RayError as error:
            waiting.appendleft((plan, shard))
            if _answers(replica):
                failures[shard.name] = failures.get(shard.name, 0) + 1
                free.append(replica)
            else:
                free = [other for other in free if other is not replica]
            if failures.get(shard.name, 0) >= MAX_ATTEMPTS or not (free or in_flight):
                tries = f"failed {failures.get(shard.name, 0)} times" if free else "has no replica left to run on"
                raise CaptureError(
                    f"shard {shard.name} {tries}, last because: {_first_line(error)}; "
                    "what was committed stays, run the survey again to go on"
                ) from error


def _answers(replica: Any) -> bool:
    """Return whether a replica that failed is back; a restart takes seconds."""
    try:
        ray.get(replica.process_id.remote(), timeout=_SECONDS_TO_RESTART)
    except ray.exceptions.RayError:
        return False
    return True


def _refuse_unreachable(address: str) -> None:
    """Raise CaptureError at once where nothing listens; Ray itself would try for minutes."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not separator or not port.isdigit():  # "auto", or a name that Ray knows
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise CaptureError(f"cannot reach a Ray cluster at {address}: {error}") from error


def _own_error(error: ray.exceptions.RayTaskError, shard: Shard | None = None) -> TheodoliteError:
    """Return our own error where a replica raised one, and a CaptureError for anything else."""
    cause = error.cause
    if isinstance(cause, TheodoliteError):
        return type(cause)(str(cause))
    where = f"shard {shard.name}" if shard else "a replica"
    return CaptureError(f"{where} failed: {type(cause).__name__}: {_first_line(cause)}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
