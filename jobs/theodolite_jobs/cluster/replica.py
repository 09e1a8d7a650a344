"""A replica: an actor that pins one copy of the model and writes its own shards, or one of several that share it."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from theodolite import __version__
from theodolite.errors import CaptureError, ClusterRefusedError, ModelError, RankOutOfStepError
from theodolite.sites import Site
from theodolite.spec import ModelSpec, TokenIds
from theodolite.store.objects import Location, open_location
from theodolite_jobs.capture.plan import SetPlan, ShardPlan
from theodolite_jobs.cluster.ranks import Rank, join
from theodolite_jobs.cluster.store_marker import StoreMarker, check_marker

# Intel's math library otherwise sums in an order that depends on the number of threads: with strict reproducibility
# a run gives the same bits however many replicas share the machine, at no measurable cost.
REPLICA_ENVIRONMENT = {"MKL_CBWR": "AUTO,STRICT", "TOKENIZERS_PARALLELISM": "false"}

Arithmetic = tuple[str, str, str, str]
"""dtype, attention, kind of device, ranks: what must not be mixed in one run."""


def arithmetic(certificate: Mapping[str, Any]) -> Arithmetic:
    """Return how a replica computes, by its parity certificate."""
    device = str(certificate["device"]).partition(":")[0]
    return certificate["dtype"], certificate["attention"], device, f"{certificate.get('ranks', 1)} rank(s)"


@dataclass(frozen=True)
class Assignment:
    """Everything a replica must know, small enough to travel; activations never do.

    Attributes:
        run_url: the run's place in the store.
        model: the model's spec, its revision pinned.
        revision: what the source must turn out to be on the replica's node.
        folder: where relative model paths start.
        cache: where converted models are kept on the node.
        sites: block sites to keep.
        layers: layers to keep them at.
        shard_prompts: prompts in one shard.
        threads: threads of a replica on a CPU.
        gpus: GPUs of one replica.
        version: the driver's version of Theodolite; another version may understand the rest differently.
        marker: what the driver put into the store, so that the replica can tell that its store is the same; None where
            no driver started the replica.
    """

    run_url: str
    model: ModelSpec
    revision: str
    folder: Path
    cache: Path
    sites: tuple[Site, ...]
    layers: tuple[int, ...]
    shard_prompts: int
    threads: int
    gpus: int
    version: str = __version__
    marker: StoreMarker | None = None


class Replica:
    """Loads the model on first use and proves it, also after a restart, which may be on another node."""

    def __init__(
        self,
        assignment: Assignment,
        plans: dict[str, SetPlan],
        probes: dict[str, list[TokenIds]],
        rank: Rank | None = None,
    ) -> None:
        """Take the assignment, what parity is proven on, and the place in a group; nothing heavy happens yet.

        All ranks of a group must be given the same calls in the same order, and a group that lost one must end.
        """
        self.assignment = assignment
        self.plans = plans
        self.probes = probes
        self.rank = rank
        self._out_of_step = False
        self._engine: Any = None
        self._certificate: dict[str, Any] = {}

    def certify(self, expected: Arithmetic | None = None) -> dict[str, Any]:
        """Return the parity certificate.

        Raises:
            ParityError: it differs from plain Hugging Face by more than rounding.
            CaptureError: it computes in another way than expected, where something is.
            ClusterRefusedError: this node has another version of Theodolite, or does not share the driver's store.
        """
        asked, here = self.assignment.version, __version__
        if asked != here:
            raise ClusterRefusedError(
                f"a node of the cluster has Theodolite {here}, and {asked} drives this survey; install the same on both"
            )
        if self.assignment.marker is not None:
            check_marker(self.assignment.marker)
        with self._in_step():
            self._ready()
        found = arithmetic(self._certificate)
        if expected not in (None, found):
            raise CaptureError(f"this replica computes with {found}, and others with {expected}; use nodes of one kind")
        return self._certificate

    def process_id(self) -> int:
        """Return the process that holds the model."""
        return os.getpid()

    def capture(
        self, plan: SetPlan, shard: ShardPlan, tokens: list[TokenIds], halvings: int = 0
    ) -> dict[str, Any] | None:
        """Capture a shard, write it and commit it; return the numbers of the attempt that counts.

        Of a group, the first rank does so, and the others return None. Each batch is halved `halvings` times before it
        is run: a group that ran out of memory cannot do so by itself, and raises RankOutOfMemoryError.
        """
        from theodolite.store.activations import counted_units

        with self._in_step():
            engine = self._ready()
            location = self._location()
            # The store says whether units are counted: a run that was begun without goes on without, in all its shards.
            captured = engine.capture(plan, shard, tokens, counted_units(location, shard.prompt_set), halvings)
        if self.rank is not None and self.rank.index > 0:
            return None
        return self._write(location, shard, captured, str(engine.model.device))

    def _write(self, location: Location, shard: ShardPlan, captured: Any, device: str) -> dict[str, Any]:
        from theodolite.store.activations import encode_counts, encode_shard
        from theodolite.store.commits import Commit, commit_shard, new_attempt, sha256
        from theodolite.store.layout import MLP_POSITIVE

        encoded = {
            str(site): encode_shard(site, values, shard.start, self.assignment.shard_prompts)
            for site, values in captured.activations.items()
        }
        if captured.positive_counts is not None:
            encoded[MLP_POSITIVE.name] = encode_counts(captured.positive_counts, shard.index)
        commit = Commit(
            prompt_set=shard.prompt_set,
            index=shard.index,
            start=shard.start,
            stop=shard.stop,
            attempt=new_attempt(),
            checksums={name: sha256(content) for name, content in encoded.items()},
            batches=[list(batch) for batch in captured.batches],
            quarantined=captured.quarantined,
            device=device,
            **captured.counts.counts_by_name(),
        )
        return commit_shard(location, commit, encoded).numbers()

    def _location(self) -> Location:
        return open_location(self.assignment.run_url)

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """Refuse all calls after one that failed halfway, which left the other ranks waiting.

        What this rank sends next would be taken for what they wait for, and they would go on with wrong numbers.
        """
        if self._out_of_step:
            raise RankOutOfStepError(
                "this rank failed before and is out of step with its group, which must start again"
            )
        self._out_of_step = self.rank is not None
        yield
        self._out_of_step = False

    def _ready(self) -> Any:
        if self._engine is None:
            from theodolite_jobs.capture.parity import certify

            if self.rank is not None:
                join(self.rank)
            engine = _load_engine(self.assignment, self.rank)
            certificate = certify(engine.model, engine.sites, engine.layers, self.plans, self.probes)
            self._certificate = certificate.as_dict()
            self._engine = engine
        return self._engine


def _load_engine(assignment: Assignment, rank: Rank | None) -> Any:
    """Load the model on this node and check that it is the one that was asked for."""
    import torch

    from theodolite_jobs.capture.engine import Engine
    from theodolite_jobs.models.anatomy import check_sites
    from theodolite_jobs.models.load import load_model
    from theodolite_jobs.models.source import fetch, resolve_source

    torch.set_num_threads(assignment.threads)
    source = resolve_source(assignment.model, assignment.folder)
    if source.revision != assignment.revision:
        raise ModelError(
            f"{source.place} on this node is not the model the run was planned with "
            f"({source.revision}, not {assignment.revision}); give every node the same files"
        )
    model = load_model(
        fetch(source, assignment.cache),
        dtype=assignment.model.dtype,
        attention=assignment.model.attention,
        device_map=None if rank else _device_map(assignment.gpus, torch.cuda.device_count()),
        trust_remote_code=assignment.model.trust_remote_code,
        ranks=rank.size if rank else 1,
    )
    check_sites(model.anatomy, assignment.sites)
    return Engine(model, assignment.sites, assignment.layers)


def _device_map(gpus: int, visible: int) -> str | None:
    """Return one device, or `auto` to lay blocks one after the other over several; without CUDA, the CPU."""
    if gpus == 0 or visible == 0:
        return None
    return "auto" if gpus > 1 else "cuda"
