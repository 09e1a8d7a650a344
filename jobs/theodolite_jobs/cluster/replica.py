"""A replica: an actor that holds a copy of the model and writes shards, or one rank of a group that shares a copy."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from theodolite.errors import CaptureError, ClusterRefusedError, ModelError, RankOutOfStepError
from theodolite.sites import Site
from theodolite.spec import ModelSpec, TokenIds
from theodolite.store.objects import Location, open_location
from theodolite.version import __version__
from theodolite_jobs.capture.plan import SetPlan, ShardPlan
from theodolite_jobs.cluster.ranks import Rank, join
from theodolite_jobs.cluster.store_marker import StoreMarker, check_marker

# By default MKL's summation order depends on the number of threads. STRICT makes the results bit-identical for every
# number of replicas on the machine, at no measurable cost.
REPLICA_ENVIRONMENT = {"MKL_CBWR": "AUTO,STRICT", "TOKENIZERS_PARALLELISM": "false"}

Arithmetic = tuple[str, str, str, str]
"""dtype, attention kernel, device type and number of ranks, which must be equal for all replicas of a run."""


def arithmetic(certificate: Mapping[str, Any]) -> Arithmetic:
    """Return the arithmetic of a replica from its parity certificate."""
    device = str(certificate["device"]).partition(":")[0]
    return certificate["dtype"], certificate["attention"], device, f"{certificate.get('ranks', 1)} rank(s)"


@dataclass(frozen=True)
class Assignment:
    """The configuration that the driver sends to a replica."""

    run_id: str
    run_url: str  # the run's URL in the store
    model: ModelSpec  # its revision is pinned
    revision: str  # the revision that the model must have on the replica's node
    folder: Path  # base folder of relative model paths
    cache: Path  # folder of converted models on the node
    sites: tuple[Site, ...]  # block sites to capture
    layers: tuple[int, ...]  # layers to capture the sites at
    shard_prompts: int  # prompts in one shard
    threads: int  # CPU threads of a replica
    gpus: int  # GPUs of one replica
    version: str = __version__  # the driver's version of Theodolite, which the replica's version must match
    marker: StoreMarker | None = None  # in the driver's store; None skips the check that both stores are the same


class Replica:
    """A replica, which loads the model and checks its parity on first use, also after a restart on another node."""

    def __init__(
        self,
        assignment: Assignment,
        plans: dict[str, SetPlan],
        probes: dict[str, list[TokenIds]],
        rank: Rank | None = None,
    ) -> None:
        """Store the arguments; the model is loaded later.

        The parity check captures the `probes` of each set by the set's plan. `rank` is None if this process holds a
        whole copy of the model. All ranks of a group must get the same calls in the same order, and a group that lost a
        rank must be killed.
        """
        self.assignment, self.plans, self.probes, self.rank = assignment, plans, probes, rank
        self._out_of_step = False
        self._engine: Any = None
        self._certificate: dict[str, Any] = {}

    def certify(self, expected: Arithmetic | None = None) -> dict[str, Any]:
        """Load the model if needed and return the parity certificate.

        Raises:
            ParityError: captured activations differ from plain Hugging Face by more than rounding.
            CaptureError: the arithmetic differs from `expected`.
            ClusterRefusedError: this node has another version of Theodolite, or does not share the driver's store.
        """
        if self.assignment.version != __version__:
            raise ClusterRefusedError(
                f"a node of the cluster has Theodolite {__version__} and the driver has {self.assignment.version}; "
                "install the same version on both"
            )
        if self.assignment.marker is not None:
            check_marker(self.assignment.marker)
        with self._in_step():
            self._ready()
        own = arithmetic(self._certificate)
        if expected not in (None, own):
            raise CaptureError(
                f"this replica computes with {own} and the first replica with {expected}; use nodes of one kind"
            )
        return self._certificate

    def process_id(self) -> int:
        """Return the id of the process that holds the model."""
        return os.getpid()

    def capture(
        self, plan: SetPlan, shard: ShardPlan, tokens: list[TokenIds], halvings: int = 0
    ) -> dict[str, Any] | None:
        """Capture, write and commit a shard; return the numbers of its commit record.

        In a group, rank 0 writes the shard and the other ranks return None. Each batch is halved `halvings` times
        before it runs, because a group cannot split a batch itself.

        Raises:
            RankOutOfMemoryError: a rank of a group ran out of memory.
            RankOutOfStepError: an earlier call of this rank failed.
        """
        from theodolite.store.activations import counted_units

        with self._in_step():
            engine, location = self._ready(), open_location(self.assignment.run_url)
            # The store decides whether active neurons are counted, so that all shards of a run have the same arrays.
            captured = engine.capture(plan, shard, tokens, counted_units(location, shard.prompt_set), halvings)
        if self.rank is not None and self.rank.index > 0:
            return None
        return self._write(location, shard, captured, str(engine.model.device))

    def probe(self, plan: SetPlan, shard: ShardPlan, tokens: list[TokenIds], halvings: int = 0) -> None:
        """Capture a part of a shard and discard it; raises as `capture` does."""
        from theodolite.store.activations import counted_units

        with self._in_step():
            engine, location = self._ready(), open_location(self.assignment.run_url)
            engine.capture(plan, shard, tokens, counted_units(location, shard.prompt_set), halvings)

    def _write(self, location: Location, shard: ShardPlan, captured: Any, device: str) -> dict[str, Any]:
        from theodolite.store.activations import encode_counts, encode_shard
        from theodolite.store.checksums import sha256
        from theodolite.store.commits import commit_shard, new_attempt
        from theodolite.store.layout import MLP_POSITIVE
        from theodolite.store.records import Commit

        encoded = {
            str(site): encode_shard(site, values, shard.start, self.assignment.shard_prompts)
            for site, values in captured.activations.items()
        }
        if captured.positive_counts is not None:
            encoded[MLP_POSITIVE.name] = encode_counts(captured.positive_counts, shard.index)
        commit = Commit(
            run_id=self.assignment.run_id,
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

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """Refuse all calls after a failed call, during which the other ranks still wait for this one.

        The other ranks would take the next message of this rank for the missing one, and compute wrong numbers.
        """
        if self._out_of_step:
            raise RankOutOfStepError(
                "an earlier call of this rank failed, so it is out of step with its group; restart the group"
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
            self._certificate = asdict(certify(engine.model, engine.sites, engine.layers, self.plans, self.probes))
            self._engine = engine
        return self._engine


def _load_engine(assignment: Assignment, rank: Rank | None) -> Any:
    """Load the model on this node; raise ModelError if its revision differs from the planned one."""
    import torch

    from theodolite_jobs.capture.engine import Engine
    from theodolite_jobs.models.anatomy import check_sites
    from theodolite_jobs.models.load import load_model
    from theodolite_jobs.models.source import fetch, resolve_source

    torch.set_num_threads(assignment.threads)
    source = resolve_source(assignment.model, assignment.folder)
    if source.revision != assignment.revision:
        raise ModelError(
            f"{source.location} on this node has revision {source.revision}, but the run was planned with "
            f"{assignment.revision}; give every node the same files"
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
    """Return `cuda` for one GPU, `auto` for pipeline placement over several GPUs, or None for the CPU."""
    if gpus == 0 or visible == 0:
        return None
    return "auto" if gpus > 1 else "cuda"
