"""Connect to Ray and choose the resources of the replicas."""

import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # Ray's stub lacks it

from theodolite.errors import CaptureError, one_line
from theodolite.submission.ray_jobs import default_ray_token
from theodolite_jobs.cluster.left_behind import kill_left_behind, marked
from theodolite_jobs.cluster.reachable import check_reachable

JOIN_SECONDS, SETTLE_SECONDS = 60.0, 10.0
"""Time in which worker nodes join a cluster, for example after its head was restarted; and the time in which the others
follow the first one, if no number of replicas is requested."""

_STARTS, _PAUSE_SECONDS = 4, 5.0
"""Attempts to start Ray on this machine, or to connect to a busy cluster; and the pause between the latter."""

_SOCKET = "/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""The longest path of a socket of Ray, below the folder of temporary files."""

_SOCKET_BYTES = 107 if sys.platform == "linux" else 103
"""The largest number of bytes in the path of a socket."""

_SHORT_FOLDERS = ("/tmp/ray", "/var/tmp/ray", "/dev/shm/ray")


@dataclass(frozen=True)
class Resources:
    """The number of replicas, and the resources of each."""

    replicas: int
    gpus: int
    threads: int  # CPU threads
    cpus: float  # CPUs that Ray reserves
    ranks: int = 1  # tensor-parallel ranks, with one GPU each; 1 is one process for all GPUs of the replica


@contextmanager
def ray_session(address: str | None, message: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Connect to a Ray cluster, or start Ray on this machine, until the context ends.

    Args:
        address: the cluster; None starts Ray on this machine.
        message: called with a sentence if Ray's files are not in the folder of temporary files.

    Raises:
        CaptureError: the cluster cannot be reached, rejects the token, or has another version of Ray or Python.
    """
    if address:
        _refuse_unreachable(address)
    if ray.is_initialized():  # a notebook or a test runs Ray already
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        _connect_patiently(address, message) if address else _start(message)
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        is_mismatch = "ersion mismatch" in str(error)
        how = "; install the same Ray and Python on this machine and on every node" if is_mismatch else ""
        raise CaptureError(
            f"cannot connect to the Ray cluster at {address or 'this machine'}: {one_line(error)}{how}"
        ) from error
    _end_on_sigterm(before)
    try:
        yield
    finally:
        _disconnect()


def _end_on_sigterm(before: Any) -> None:
    """Let SIGTERM do what it did before or, instead of its default, raise SystemExit, also after the session.

    Ray would print the stack of its C++ code.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _end if before in (None, signal.SIG_DFL) else before)


def _end(_signal: int, _frame: Any) -> None:
    sys.exit(128 + signal.SIGTERM)


def _disconnect() -> None:
    """Disconnect from Ray without a garbage collection meanwhile.

    While Ray disconnects, it exits the process with status 1 if any thread drops a reference to one of its objects.
    Errors of replicas that died hold such references in cycles, which a collection in any thread would drop.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        if was_enabled:
            gc.enable()


def _connect_patiently(address: str, message: Callable[[str], None]) -> None:
    """Connect to a cluster; one that is busy may not name the driver's node in time."""
    for attempt in range(1, _STARTS + 1):
        try:
            _connect(address)
            return
        except ConnectionError as error:
            if attempt == _STARTS or not str(error).startswith("Failed to connect to Ray cluster"):
                raise
            message(f"the Ray cluster at {address} does not accept this process yet; connecting again")
            time.sleep(_PAUSE_SECONDS)


def _connect(address: str, **options: Any) -> None:
    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)


def temporary_folder(message: Callable[[str], None]) -> str | None:
    """Return the folder of Ray's files if its own choice has a too long path; None leaves the choice to Ray.

    Raises:
        CaptureError: no folder with a short path can be written.
    """
    variable = "RAY_TMPDIR" if "RAY_TMPDIR" in os.environ else "TMPDIR"
    folder = os.environ.get(variable, "/tmp")
    limit = _SOCKET_BYTES - len(_SOCKET)
    n_bytes = len(os.fsencode(folder))
    if n_bytes <= limit:
        return None
    too_long = f"{variable} has {n_bytes} bytes, but Ray's sockets allow at most {limit} ({folder})"
    for short in _SHORT_FOLDERS:
        if os.access(short if os.path.exists(short) else os.path.dirname(short), os.W_OK):
            message(f"{too_long}; Ray's files are in {short}")
            return short
    raise CaptureError(f"{too_long}; set RAY_TMPDIR to a shorter folder that you can write")


def _start(message: Callable[[str], None]) -> None:
    """Start Ray on this machine; raise RuntimeError if its processes do not start.

    Ray waits 30 seconds for them, a constant, and then raises a bare Exception. A busy machine may need longer.
    """
    folder = temporary_folder(message)
    if left := kill_left_behind():
        processes = "process" if left == 1 else "processes"
        message(f"killed {left} {processes} of Ray that a driver left on this machine when it died")
    for attempt in range(1, _STARTS + 1):
        try:
            with marked():
                _connect("local", include_dashboard=False, object_store_memory=100 * 2**20, _temp_dir=folder)
            return
        except Exception as error:
            if type(error) is not Exception:
                raise
            ray.shutdown()
            if attempt == _STARTS:
                raise RuntimeError(f"{error} {_STARTS} attempts failed; stop other work on this machine") from error


def choose_resources(
    replicas: int | None,
    gpus_per_replica: int | None,
    *,
    grows: bool = False,
    message: Callable[[str], None] = lambda _: None,
) -> Resources:
    """Return the number and size of the replicas; by default they use all GPUs of the cluster.

    Args:
        replicas: requested number; None is as many as fit on the GPUs, or 1 without GPUs.
        gpus_per_replica: GPUs of each replica; None is 1 if the cluster has GPUs, else 0.
        grows: whether the cluster adds nodes for requests that do not fit.
        message: called with a sentence if the function waits for the first worker node.

    Raises:
        CaptureError: no worker node joins the cluster, or its nodes have too few GPUs for the replicas.
    """
    nodes = _nodes() if grows else _joined_nodes(replicas, gpus_per_replica, message)
    if not nodes and not grows:
        raise CaptureError("the cluster has no node with CPUs for work; start worker nodes")
    gpus = [int(node.get("GPU", 0)) for node in nodes]
    each = _gpus_of_each(nodes, gpus_per_replica)
    if grows and gpus_per_replica is None and not each:
        raise CaptureError(
            "a cluster that grows needs the number of GPUs to request; set --gpus-per-replica, 0 for none"
        )
    slots = _slots(nodes, each)
    wanted = replicas or max(1, slots if each else 1)
    if each and wanted > slots and not grows:
        raise CaptureError(
            f"{wanted} replicas of {each} GPUs do not fit: the nodes of the cluster have {gpus} GPUs; "
            "change --replicas or --gpus-per-replica"
        )
    cpus = min((int(node["CPU"]) for node in nodes), default=1)
    on_one_node = -(-wanted // max(1, len(nodes)))
    threads = max(1, cpus // on_one_node)
    # A replica on GPUs needs one core. A replica on a CPU uses all its cores. Nodes that join later have cores enough.
    most = cpus / on_one_node if nodes else 1.0
    return Resources(wanted, each, threads, cpus=min(1.0 if each else float(threads), most))


def threads_here(gpus: int, ranks: int) -> int:
    """Return the CPU threads of a replica's process on this node, whose cores all replicas that fit on it share.

    Args:
        gpus: GPUs of the replica, at least 1.
        ranks: processes of the replica.
    """
    own = ray.get_runtime_context().get_node_id()
    resources = next(node["Resources"] for node in ray.nodes() if node["NodeID"] == own)
    replicas = max(1, int(resources.get("GPU", 0)) // gpus)
    return max(1, int(resources.get("CPU", 1)) // replicas // ranks)


def has_node_for(resources: Resources) -> bool:
    """Return whether the total resources of some node are enough for a replica."""
    return any(node.get("GPU", 0) >= resources.gpus and node["CPU"] >= resources.cpus for node in _nodes())


def describe_free() -> str:
    """Return the cluster's free resources, such as `0 of 4 GPUs and 2 of 16 CPUs are free`."""
    free, total = ray.available_resources(), ray.cluster_resources()
    parts = [f"{free.get(kind, 0):g} of {total.get(kind, 0):g} {kind}s" for kind in ("GPU", "CPU")]
    return f"{' and '.join(parts)} are free"


def _gpus_of_each(nodes: Sequence[Mapping[str, float]], requested: int | None) -> int:
    return requested if requested is not None else min(1, max((int(node.get("GPU", 0)) for node in nodes), default=0))


def _slots(nodes: Sequence[Mapping[str, float]], each: int) -> int:
    """Return how many replicas fit on the GPUs of the nodes; without GPUs, each node has one."""
    return sum(int(node.get("GPU", 0)) // each for node in nodes) if each else len(nodes)


def _joined_nodes(
    replicas: int | None, gpus_per_replica: int | None, message: Callable[[str], None]
) -> list[dict[str, float]]:
    """Return the resources of the worker nodes; if there are none yet, wait for them."""
    if nodes := _nodes():
        return nodes
    message(f"waiting up to {JOIN_SECONDS:.0f} s for worker nodes to join the cluster")
    deadline, first = time.monotonic() + JOIN_SECONDS, None
    while time.monotonic() < deadline:
        if nodes := _nodes():
            first = first or time.monotonic()
            slots = _slots(nodes, _gpus_of_each(nodes, gpus_per_replica))
            if slots >= replicas if replicas else time.monotonic() >= first + SETTLE_SECONDS:
                break
        time.sleep(1)
    return nodes


def _nodes() -> list[dict[str, float]]:
    """Return the resources of each live node that has CPUs; a head without CPUs runs no work."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]


def _refuse_unreachable(address: str) -> None:
    """Raise CaptureError if the address does not respond or rejects the token; Ray itself would retry for minutes."""
    check_reachable("Ray cluster", address, "--ray (THEODOLITE_RAY_ADDRESS)")
    if "://" in address or address in ("auto", "local"):
        return
    how = (
        "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token) to the token that "
        "the nodes were started with"
    )
    # Ray's client would exit without a message.
    if os.environ.get("RAY_AUTH_MODE") == "token" and not default_ray_token():
        raise CaptureError(f"no token is set for the Ray cluster at {address}; {how}")
    try:
        GcsClient(address=address)
    except ray.exceptions.AuthenticationError as error:
        raise CaptureError(f"the Ray cluster at {address} rejects the token; {how}") from error
    except ray.exceptions.RayError as error:
        raise CaptureError(
            f"{address} is not the port of a Ray cluster, or the cluster does not respond; use the port of "
            f"`ray start --port` (6379 by default): {error}"
        ) from error
