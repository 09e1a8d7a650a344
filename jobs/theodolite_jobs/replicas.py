"""Start the replicas of a capture or of an analysis of effects, and certify them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from theodolite.metrics import CaptureMetrics
from theodolite.query.parity import parity_notes
from theodolite.settings import Settings
from theodolite.spec import TokenIds
from theodolite_jobs.capture.plan import SetLayout
from theodolite_jobs.cluster.replica import Assignment, Replica
from theodolite_jobs.cluster.session import choose_resources, ray_session
from theodolite_jobs.cluster.workers import RayWorker, certify_workers, start_workers
from theodolite_jobs.models.sharding import choose_ranks
from theodolite_jobs.progress import Console
from theodolite_jobs.store_marker import marked_store


@contextmanager
def certified_workers(
    assignment: Assignment,
    config: Any,
    layouts: Mapping[str, SetLayout],
    tokens: Mapping[str, Sequence[TokenIds]],
    settings: Settings,
    console: Console,
    metrics: CaptureMetrics,
    replica_class: type[Replica] = Replica,
) -> Iterator[tuple[list[RayWorker], dict[str, Any]]]:
    """Start replicas, and yield them with their parity certificate; stop them at the end.

    Args:
        assignment: the configuration of the replicas, before their resources are known.
        config: the model's configuration.
        layouts: layout of each set.
        tokens: token ids of each set, from which the parity check takes its prompts.
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
        assignment = replace(assignment, threads=threads, gpus=resources.gpus, marker=marker)
        metrics.wanted(resources.replicas)
        workers = start_workers(assignment, resources, layouts, tokens, replica_class)
        try:
            shared = f" of {ranks} ranks each" if ranks > 1 else ""
            console.say(
                f"{resources.replicas} replica(s){shared} load the model and check parity with plain Hugging Face"
            )
            parity = certify_workers(
                workers, resources, settings.nodes_wait_seconds, console.say, settings.replicas_wait_seconds
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
