"""Connecting to Ray, and choosing what the replicas get of it."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # Ray's stub lacks it

from theodolite.errors import CaptureError
from theodolite.submission.ray_jobs import kept_token


@dataclass(frozen=True)
class Resources:
    """What the replicas get.

    Attributes:
        replicas: how many.
        gpus: GPUs of each.
        threads: threads of each, on a CPU.
        cpus: what Ray books for each.
        ranks: processes of one GPU each that share a replica's model in tensor parallel; 1 is one for all its GPUs.
    """

    replicas: int
    gpus: int
    threads: int
    cpus: float
    ranks: int = 1


@contextmanager
def ray_session(address: str | None) -> Iterator[None]:
    """Connect to a cluster, or start Ray inside this machine for as long as the context lasts.

    Raises:
        CaptureError: the cluster cannot be reached, does not take the token, or has another version of Ray or Python.
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
        how = "; install the same Ray and Python here and on every node" if "ersion mismatch" in str(error) else ""
        raise CaptureError(
            f"cannot connect to the Ray cluster at {address or 'this machine'}: {str(error).rstrip()}{how}"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def choose_resources(replicas: int | None, gpus_per_replica: int | None, *, grows: bool = False) -> Resources:
    """Choose how many replicas of which size the cluster gets: all GPUs where there are any.

    Args:
        replicas: how many are wanted; None is one for each place on GPUs, or one on a CPU.
        gpus_per_replica: GPUs of each; None is one where there are GPUs.
        grows: whether the cluster brings nodes for what is asked of it, so that what is lacking may come.

    Raises:
        CaptureError: no node has as many GPUs as one replica was asked to have, or there are too few in all.
    """
    nodes = _nodes()
    if not nodes and not grows:
        raise CaptureError("the cluster has no node that takes work: its head has none; start workers")
    gpus = [int(node.get("GPU", 0)) for node in nodes]
    each = gpus_per_replica if gpus_per_replica is not None else min(1, max(gpus, default=0))
    if grows and gpus_per_replica is None and not each:
        raise CaptureError("a cluster that grows must know what to bring; say --gpus-per-replica, 0 for none")
    places = sum(count // each for count in gpus) if each else len(nodes)
    wanted = replicas or max(1, places if each else 1)
    if each and wanted > places and not grows:
        raise CaptureError(
            f"{wanted} replicas of {each} GPUs find no place: the nodes of the cluster have {gpus} GPUs; "
            "change --replicas or --gpus-per-replica"
        )
    cpus = min((int(node["CPU"]) for node in nodes), default=1)
    on_one_node = -(-wanted // max(1, len(nodes)))
    threads = max(1, cpus // on_one_node)
    # A replica on GPUs computes there and needs one core; one without needs all that it is given.
    return Resources(wanted, each, threads, cpus=min(1.0 if each else float(threads), cpus / on_one_node))


def has_node_for(resources: Resources) -> bool:
    """Return whether some node could hold a replica, were it free."""
    return any(node.get("GPU", 0) >= resources.gpus and node["CPU"] >= resources.cpus for node in _nodes())


def said_free() -> str:
    """Return in words what of the cluster is free."""
    free, all_of_it = ray.available_resources(), ray.cluster_resources()
    parts = [f"{free.get(kind, 0):g} of {all_of_it.get(kind, 0):g} {kind}s" for kind in ("GPU", "CPU")]
    return f"free are {' and '.join(parts)} of the cluster"


def _nodes() -> list[dict[str, float]]:
    """Return what each node has that takes work."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]


def _refuse_unreachable(address: str) -> None:
    """Raise CaptureError where nothing listens, or where it wants another token; Ray would try for long."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not separator or not port.isdigit():  # "auto", or a name that Ray knows
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise CaptureError(f"cannot reach a Ray cluster at {address}: {error}") from error
    if address.startswith("ray://"):
        return
    how = (
        "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token) to the one that "
        "its nodes were started with"
    )
    if os.environ.get("RAY_AUTH_MODE") == "token" and not kept_token():  # of which Ray's client dies without a word
        raise CaptureError(f"there is no token for the Ray cluster at {address}; {how}")
    try:
        GcsClient(address=address)
    except ray.exceptions.AuthenticationError as error:
        raise CaptureError(f"the Ray cluster at {address} does not take our token; {how}") from error
    except ray.exceptions.RayError as error:
        raise CaptureError(
            f"what listens at {address} is no Ray cluster, or does not answer; is it the port of `ray start --port`, "
            f"6379 by default? {error}"
        ) from error
