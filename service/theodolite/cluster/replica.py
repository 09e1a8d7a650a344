"""A replica: an actor that pins one copy of the model and writes its own shards."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from theodolite.capture.plan import SetPlan, Shard
from theodolite.errors import ModelError
from theodolite.sites import Site
from theodolite.spec import ModelSpec, TokenIds
from theodolite.store.objects import Location, open_location

# Intel's math library otherwise sums in an order that depends on the number of threads: with strict reproducibility
# a run gives the same bits however many replicas share the machine, at no measurable cost.
REPLICA_ENVIRONMENT = {"MKL_CBWR": "AUTO,STRICT", "TOKENIZERS_PARALLELISM": "false"}


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


class Replica:
    """Loads the model on first use and proves it, also after a restart, which may be on another node."""

    def __init__(self, assignment: Assignment, plans: dict[str, SetPlan], probes: dict[str, list[TokenIds]]) -> None:
        """Take the assignment, and what parity is proven on; nothing heavy happens yet."""
        self.assignment = assignment
        self.plans = plans
        self.probes = probes
        self._engine: Any = None
        self._certificate: dict[str, Any] = {}

    def certify(self) -> dict[str, Any]:
        """Return the parity certificate; raises ParityError."""
        self._ready()
        return self._certificate

    def process_id(self) -> int:
        """Return the process that holds the model."""
        return os.getpid()

    def capture(self, plan: SetPlan, shard: Shard, tokens: list[TokenIds]) -> dict[str, Any]:
        """Capture a shard, write it and commit it; return the numbers of the attempt that counts."""
        from theodolite.store.activations import counted_units, encode_counts, encode_shard
        from theodolite.store.commits import Commit, commit_shard, new_attempt, sha256
        from theodolite.store.layout import MLP_POSITIVE

        engine = self._ready()
        location = self._location()
        # The store says whether units are counted: a run that was begun without goes on without, in all its shards.
        captured = engine.capture(plan, shard, tokens, counted_units(location, shard.prompt_set))
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
            oom_backoffs=captured.oom_backoffs,
            tokens=captured.tokens,
            computed_tokens=captured.computed_tokens,
            seconds=round(captured.seconds, 4),
            device=str(engine.model.device),
        )
        counts = commit_shard(location, commit, encoded)
        return {
            "prompts": counts.stop - counts.start,
            "tokens": counts.tokens,
            "quarantined": len(counts.quarantined),
        }

    def _location(self) -> Location:
        return open_location(self.assignment.run_url)

    def _ready(self) -> Any:
        if self._engine is None:
            from theodolite.capture.parity import certify

            engine = _load_engine(self.assignment)
            certificate = certify(engine.model, engine.sites, engine.layers, self.plans, self.probes)
            self._certificate = certificate.as_dict()
            self._engine = engine
        return self._engine


def _load_engine(assignment: Assignment) -> Any:
    """Load the model on this node and check that it is the one that was asked for."""
    import torch

    from theodolite.capture.engine import Engine
    from theodolite.models.anatomy import check_sites
    from theodolite.models.load import load_model
    from theodolite.models.source import fetch, resolve_source

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
        device_map=_device_map(assignment.gpus, torch.cuda.device_count()),
        trust_remote_code=assignment.model.trust_remote_code,
    )
    check_sites(model.anatomy, assignment.sites)
    return Engine(model, assignment.sites, assignment.layers)


def _device_map(gpus: int, visible: int) -> str | None:
    """Return one device, or `auto` to lay blocks one after the other over several; without CUDA, the CPU."""
    if gpus == 0 or visible == 0:
        return None
    return "auto" if gpus > 1 else "cuda"
