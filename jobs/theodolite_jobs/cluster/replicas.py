"""Start the replicas of a capture or of an analysis of effects on Ray, and certify them."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from theodolite.errors import CaptureError
from theodolite.metrics import CaptureMetrics
from theodolite.query.parity import parity_notes
from theodolite.settings import Settings
from theodolite.spec import SurveySpec, TokenIds
from theodolite.store.objects import absolute
from theodolite.store.runs import run_url
from theodolite_jobs.capture.plan import HALF_PROBES, SetLayout, probe_prompts
from theodolite_jobs.cluster.replica import Assignment, Replica, arithmetic
from theodolite_jobs.cluster.scheduling import DIED, ReplicaDiedError, restart_pause
from theodolite_jobs.cluster.session import Resources, choose_resources, describe_free, has_node_for, ray_session
from theodolite_jobs.cluster.workers import RayWorker
from theodolite_jobs.models.sharding import choose_ranks
from theodolite_jobs.models.source import ModelSource, on_every_node
from theodolite_jobs.progress import Bar, Console
from theodolite_jobs.stages import Stage
from theodolite_jobs.store_marker import marked_store

_POLL_SECONDS = 2.0
"""Time between two questions how far the replicas are that load the model."""


def assignment_of(
    run_id: str, spec: SurveySpec, layers: Sequence[int], source: ModelSource, folder: Path, settings: Settings
) -> Assignment:
    """Return the configuration of the replicas of a run, before their resources and their probes are known.

    Args:
        run_id: the run.
        spec: its spec, whose sizes are numbers.
        layers: the captured layers.
        source: the model at its pinned revision.
        folder: the folder of relative paths in the spec.
        settings: the store and the cluster.
    """
    return Assignment(
        run_id=run_id,
        run_url=run_url(absolute(settings.store), run_id),
        model=on_every_node(spec.model, source, folder),
        revision=source.revisions,
        folder=folder.absolute(),
        cache=settings.cache,
        sites=spec.capture.all_sites,
        layers=tuple(layers),
        shard_prompts=spec.capture.sizes.shard_prompts,
        spot_checks=settings.spot_checks,
    )


@contextmanager
def certified_workers(
    assignment: Assignment,
    config: Any,
    sets: Mapping[str, tuple[SetLayout, Sequence[TokenIds]]],
    settings: Settings,
    console: Console,
    metrics: CaptureMetrics,
    replica_class: type[Replica] = Replica,
) -> Iterator[tuple[list[RayWorker], dict[str, Any]]]:
    """Start replicas, and yield them with their parity certificate; stop them at the end.

    Args:
        assignment: the configuration of the replicas, as `assignment_of` returns it.
        config: the model's configuration.
        sets: layout and token ids of each set, from which the parity check takes its prompts.
        settings: the store and the cluster.
        console: prints messages.
        metrics: gets the number of requested replicas.
        replica_class: class of the actors.

    Raises as `choose_resources` and `certify_workers` do.
    """
    console.say(f"starting replicas on {settings.ray_address or 'this machine'}")
    with ray_session(settings.ray_address, console.say), marked_store(settings.store) as marker:
        grows = settings.nodes_wait_seconds > 0
        resources = choose_resources(settings.replicas, settings.gpus_per_replica, grows=grows, message=console.say)
        ranks = choose_ranks(settings.parallelism, config, resources.gpus)
        resources = replace(resources, ranks=ranks, threads=max(1, resources.threads // ranks))
        # A node that joins later can have other cores than those that are there now.
        threads = None if grows and resources.gpus else resources.threads
        assignment = replace(assignment, threads=threads, gpus=resources.gpus, marker=marker, **_probes(sets))
        metrics.wanted(resources.replicas)
        workers = [RayWorker(assignment, resources, replica_class) for _ in range(resources.replicas)]
        try:
            shared = f" of {ranks} ranks each" if ranks > 1 else ""
            console.say(
                f"{resources.replicas} replica(s){shared} load the model and check parity with plain Hugging Face"
            )
            with console.bar("loading the model", unit="s") as bar:
                parity = certify_workers(
                    workers, resources, settings.nodes_wait_seconds, console.say, settings.replicas_wait_seconds, bar
                )
            console.say(
                f"parity: largest error {parity['max_error']:.1e}{_allowed(parity)}, "
                f"{parity['dtype']}, {parity['attention']} attention, {parity['device']}"
            )
            for note in parity_notes(parity):
                console.say(f"parity: {note}")
            if resources.gpus and parity["device"] == "cpu":
                console.say(
                    f"each replica has {resources.gpus} GPU(s) and computes on the CPU, because torch finds no CUDA "
                    "device there; install a torch that the node's driver supports"
                )
            yield workers, parity
        finally:
            for worker in workers:
                worker.kill()
            metrics.wanted(0)
            metrics.replicas(0)


def _allowed(parity: Mapping[str, Any]) -> str:
    """Return the bound of a certificate for the message; nothing in half precision, which has another rule."""
    return "" if parity["bound"] is None else f" (allowed {parity['bound']:.0e})"


def _probes(sets: Mapping[str, tuple[SetLayout, Sequence[TokenIds]]]) -> dict[str, Any]:
    """Return the fields of an assignment from which the parity check takes its prompts."""
    n_probes = math.ceil(HALF_PROBES / max(1, len(sets)))  # the replica knows whether it needs as many
    probes = {name: probe_prompts(tokens, n_probes) for name, (_, tokens) in sets.items()}
    layouts = {name: layout.of_prompts(probes[name]) for name, (layout, _) in sets.items()}
    return {"layouts": layouts, "probes": probes}


def certify_workers(
    workers: Sequence[RayWorker],
    resources: Resources,
    wait_seconds: float,
    message: Callable[[str], None],
    gather_seconds: float,
    bar: Bar,
) -> dict[str, Any]:
    """Check the parity of the replicas with plain Hugging Face; return the first replica's certificate.

    Replicas that get no resources within `gather_seconds` join later. Otherwise two surveys that share a cluster could
    wait forever for each other's resources. `message` is called with sentences about what the survey waits for. Within
    `wait_seconds` the cluster may add a node with the `resources` of a replica. `bar` shows what replicas count while
    they load the model, or else for how many seconds they have loaded it.

    If all replicas that have started die while they load the model, they restart, after pauses.

    Raises:
        ParityError: activations of a replica differ by more than rounding.
        ModelError: a replica cannot load the model.
        CaptureError: no node fits a replica, all replicas died too often, or their arithmetic differs.
    """
    for n_deaths in count(1):
        placed = _placed(workers, resources, wait_seconds, message, gather_seconds)
        certificates, died = _certificates(placed, bar)
        if certificates:
            break
        time.sleep(restart_pause(n_deaths))
        if not any([worker.restart(DIED) for worker in placed]):  # a list, so that all of them restart
            raise CaptureError(f"all started replicas died while they loaded the model: {died[0]}") from died[0]
        message(f"all started replicas died while they loaded the model, and start again: {died[0]}")
    different = {arithmetic(certificate) for certificate in certificates}
    if len(different) > 1:
        raise CaptureError(f"the replicas have different arithmetic, {sorted(different)}; use nodes of one kind")
    for worker in workers:
        (worker.expected,) = different
        if worker not in placed and (not worker.ready.done() or worker.ready.exception() is None):
            worker.certify()
    return dict(certificates[0])


def _certificates(placed: Sequence[RayWorker], bar: Bar) -> tuple[list[dict[str, Any]], list[ReplicaDiedError]]:
    """Wait until replicas are certified; return their certificates, and the errors of those that died."""
    certificates, died = [], []
    begin, asked = time.monotonic(), dict[RayWorker, Future[Stage | None]]()
    for worker in placed:
        while wait([worker.ready], _POLL_SECONDS).not_done:
            bar.step_to(*(_stage(placed, asked) or ("loading the model", int(time.monotonic() - begin), None, "s")))
        try:
            certificates.append(worker.ready.result())
        except ReplicaDiedError as error:  # the scheduling loop restarts it
            died.append(error)
    return certificates, died


def _stage(placed: Sequence[RayWorker], asked: dict[RayWorker, Future[Stage | None]]) -> Stage | None:
    """Return what the first replica counts that converts or downloads the model; the others may wait for it.

    Args:
        placed: the replicas.
        asked: the question to each replica that has not been answered; changed.
    """
    for worker in placed:
        if not worker.ready.done() and worker not in asked:
            asked[worker] = worker.loading()
    wait(asked.values(), _POLL_SECONDS)
    answered = {worker: call for worker, call in asked.items() if call.done()}
    for worker in answered:
        del asked[worker]
    stages = [call.result() for call in answered.values() if call.exception() is None]
    return next((stage for stage in stages if stage is not None), None)


def _placed(
    workers: Sequence[RayWorker],
    resources: Resources,
    wait_seconds: float,
    message: Callable[[str], None],
    gather_seconds: float,
) -> list[RayWorker]:
    """Wait until some replicas have started, and return them; raise CaptureError if no node fits a replica."""
    by_future = {worker.placed: worker for worker in workers}
    placed, missing = wait(by_future, gather_seconds)
    waited = gather_seconds
    while not placed:
        if waited >= wait_seconds and not has_node_for(resources):
            raise CaptureError(
                f"no node with {resources.gpus} GPUs and {resources.cpus:g} CPUs joined the cluster in {waited:.0f} s; "
                "change --gpus-per-replica or --replicas, or let the cluster grow (THEODOLITE_NODES_WAIT_SECONDS)"
            )
        message(f"waiting for resources: {describe_free()}")
        placed, missing = wait(by_future, gather_seconds, FIRST_COMPLETED)
        waited += gather_seconds
    if missing:
        message(f"{len(placed)} of {len(workers)} replicas have started; the others join when resources are free")
    return [by_future[future] for future in placed]
