"""A replica: an actor that holds a copy of the model and writes shards, or one rank of a group that shares a copy."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from theodolite.digests import digest_of
from theodolite.errors import CaptureError, ClusterRefusedError, ModelError, RankOutOfStepError
from theodolite.sites import Site
from theodolite.spec import TokenIds
from theodolite.spec_parts import ModelSpec
from theodolite.store.activations import layers_of
from theodolite.store.checksums import sha256
from theodolite.store.commits import commit_shard, new_attempt
from theodolite.store.objects import open_location
from theodolite.store.records import Commit
from theodolite.version import __version__
from theodolite_jobs.capture.plan import SetLayout, ShardPlan, ShardTask, pieces
from theodolite_jobs.cluster.ranks import Rank, join
from theodolite_jobs.cluster.write_queue import WriteQueue
from theodolite_jobs.stages import Stage, listening
from theodolite_jobs.store_marker import StoreMarker, check_marker

# By default MKL's summation order depends on the number of threads. STRICT makes the results bit-identical for every
# number of replicas on the machine, at no measurable cost. The products of NumPy, which reduce shards, also differ by
# the number of threads of OpenBLAS, for vectors of more than 10,000 numbers.
REPLICA_ENVIRONMENT = {"MKL_CBWR": "AUTO,STRICT", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

GPU_WRITERS, CPU_WRITERS = 8, 1
"""Threads with which a replica writes shards. On a CPU the cores compute, and a second writer would take one of them;
beside a GPU the writers of a distant store mostly wait."""

GPU_BUFFER, CPU_BUFFER = 2**32, 2**29
"""Maximum number of bytes of the activations that are captured and not written; another such number may wait to be
reduced."""

Arithmetic = tuple[str, str, str, str]
"""dtype, attention kernel, device and number of ranks, which must be equal for all replicas of a run.

The device is its type; a GPU's name follows it, as in `cuda NVIDIA H200`, because kinds of GPUs round differently."""

LIBRARIES = ("torch", "transformers")
"""Libraries whose version can change a captured number."""


def arithmetic(certificate: Mapping[str, Any]) -> Arithmetic:
    """Return the arithmetic of a replica from its parity certificate."""
    device = str(certificate["device"]).partition(":")[0]
    if gpu := certificate.get("gpu"):  # absent on a CPU
        device = f"{device} {gpu}"
    return certificate["dtype"], certificate["attention"], device, f"{certificate['ranks']} rank(s)"


def full_arithmetic(certificate: Mapping[str, Any]) -> list[str]:
    """Return the arithmetic of a replica and the versions of this process: all that determines rounding errors."""
    return [*arithmetic(certificate), *(f"{name} {version(name)}" for name in LIBRARIES)]


@dataclass(frozen=True)
class Assignment:
    """The configuration that the driver sends to a replica."""

    run_id: str
    run_url: str  # the run's URL in the store
    model: ModelSpec  # its revision is pinned
    revision: str  # the revision that the model must have on the replica's node
    folder: Path  # base folder of relative model paths
    cache: Path  # folder of converted models on the node
    sites: tuple[Site, ...]  # sites to capture, `resid_final` included
    layers: tuple[int, ...]  # layers to capture the sites at
    shard_prompts: int  # prompts in one shard
    threads: int | None = None  # CPU threads of a process; None chooses them on the node
    gpus: int = 0  # GPUs of one replica
    version: str = __version__  # the driver's version of Theodolite, which the replica's version must match
    marker: StoreMarker | None = None  # in the driver's store; None skips the check that both stores are the same
    spot_checks: float = 0.0  # share of the prompts to compare with a plain run
    layouts: Mapping[str, SetLayout] = field(default_factory=dict)  # of each set
    probes: Mapping[str, Sequence[TokenIds]] = field(default_factory=dict)  # some prompts of each set, for the parity


class Replica:
    """A replica, which loads the model and checks its parity on first use, also after a restart on another node."""

    def __init__(self, assignment: Assignment, rank: Rank | None = None) -> None:
        """Store the arguments; the model is loaded later.

        `rank` is None if this process holds a whole copy of the model. All ranks of a group must get the same calls in
        the same order, and a group that lost a rank must be killed.
        """
        self.assignment, self.rank = assignment, rank
        self._out_of_step = False
        self._limits = (GPU_WRITERS, GPU_BUFFER) if assignment.gpus else (CPU_WRITERS, CPU_BUFFER)
        self._writes = WriteQueue(*self._limits)
        self._idle_since: float | None = None
        self._engine: Any = None
        self._reducer: Any = None
        self._certificate: dict[str, Any] = {}
        self._stage: Stage | None = None

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
        with self._in_step(), listening(self._listen):
            self._ready()
        own = arithmetic(self._certificate)
        if expected not in (None, own):
            raise CaptureError(
                f"this replica computes with {own} and the first replica with {expected}; use nodes of one kind"
            )
        return self._certificate

    def loading(self) -> Stage | None:
        """Return what `certify` counts at this moment, in another thread: converted tensors or downloaded megabytes."""
        return self._stage

    def _listen(self, stage: Stage | None) -> None:
        self._stage = stage

    def process_id(self) -> int:
        """Return the id of the process that holds the model."""
        return os.getpid()

    def capture(self, call: int, task: ShardTask) -> None:
        """Capture a shard, which other threads then write and commit; `written` with the same number waits for them.

        In a group, rank 0 writes the shard. If many captured shards are not written yet, the capture waits for them
        first.

        Raises:
            RankOutOfMemoryError: a rank of a group ran out of memory.
            RankOutOfStepError: an earlier call of this rank failed.
        """
        with self._writes.slot(call) as slot, self._in_step():
            engine = self._ready()
            # A part, because the results of a reduced shard are smaller, and the reducer bounds the parts in memory.
            self._writes.reserve(slot, engine.shard_bytes(pieces(task, self.assignment.shard_prompts)[0]))
            is_kept = self.rank is None or self.rank.index == 0
            if task.shard.is_reduced and is_kept:
                launch = partial(self._ready_to_reduce().launch, engine)
            else:
                launch = partial(engine.launch, is_kept=is_kept)
            with self._busy() as idle_seconds:
                finish = launch(task)
            if is_kept:
                slot.write = lambda: self._write(task, finish(), str(engine.model.device), idle_seconds)

    def written(self, call: int) -> dict[str, Any]:
        """Wait until the shard of a call is committed, and return the numbers of its commit record.

        Use it once for each call of `capture`, in another thread. It raises what the capture or the writing raised.
        """
        return dict(self._writes.result(call))

    def probe(self, task: ShardTask) -> None:
        """Capture a part of a shard and discard it; raises as `capture` does."""
        with self._in_step():
            engine = self._ready()
            with self._busy():
                for batch in task.shard.batches:  # its prompts are close to each other, so memory stays small
                    engine.capture(task.part(min(batch), max(batch) + 1, [batch]))

    @contextmanager
    def _busy(self) -> Iterator[float]:
        """Yield the seconds that this replica was idle since it last computed; it computes until the context ends."""
        now = time.perf_counter()
        try:
            yield 0.0 if self._idle_since is None else now - self._idle_since
        finally:
            self._idle_since = time.perf_counter()

    def _write(self, task: ShardTask, captured: Any, device: str, idle_seconds: float) -> dict[str, Any]:
        """Encode, write and commit a captured shard; return the numbers of its commit record and `commit_seconds`."""
        begin = time.perf_counter()
        encoded = _encode(task.shard, captured, self.assignment.shard_prompts)
        own = full_arithmetic(self._certificate) if self._certificate else []
        commit = commit_of(self.assignment.run_id, task, captured, encoded, device, own)
        encoded_at = time.perf_counter()
        timed = partial(replace, encode_seconds=round(encoded_at - begin, 4), idle_seconds=round(idle_seconds, 4))
        committed = commit_shard(open_location(self.assignment.run_url), timed(commit), encoded)
        seconds = round(time.perf_counter() - encoded_at, 4)
        if committed.attempt != commit.attempt:  # another attempt was first; its times are not those of this replica
            committed = timed(committed, store_seconds=seconds)
        return {**committed.numbers(), "commit_seconds": max(0.0, round(seconds - committed.store_seconds, 4))}

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
            from theodolite_jobs.capture.parity import certify_with_limits
            from theodolite_jobs.capture.spot_checks import CheckedEngine
            from theodolite_jobs.models.second_reading import held_against_source

            if self.rank is not None:
                join(self.rank)
            source = model_source(self.assignment)
            engine = _load_engine(self.assignment, self.rank, source)
            certificate, limits = certify_with_limits(
                engine.model, engine.sites, engine.layers, self.assignment.layouts, self.assignment.probes
            )
            held = held_against_source(source, self.assignment.cache)
            own = {"held_against_source": held} if held else {}
            self._certificate = {**asdict(certificate), **_gpu_name(engine.model.device), **own}
            if self.rank is None and self.assignment.spot_checks:
                engine = CheckedEngine(engine, self.assignment.spot_checks, limits)
            self._engine = engine
        return self._engine

    def _ready_to_reduce(self) -> Any:
        """Return the reducer, which needs run.json and the parameters of the norm layers."""
        if self._reducer is None:
            from theodolite.store.runs import open_run_at
            from theodolite_jobs.cluster.reduction import Reducer

            run = open_run_at(self.assignment.run_url)
            norms = _norm_layers(run, self.assignment)
            self._reducer = Reducer(run, norms, self.assignment.shard_prompts, *self._limits)
        return self._reducer


def _encode(shard: ShardPlan, captured: Any, shard_prompts: int) -> dict[str, bytes]:
    """Return the bytes of each array of a captured shard, by the array's name."""
    from theodolite.store.activations import encode_counts, encode_experts, encode_shard
    from theodolite.store.layout import EXPERTS, MLP_POSITIVE, REDUCED
    from theodolite_jobs.passes.reduced import encode_reduced

    if shard.is_reduced:
        encoded = {REDUCED: encode_reduced(captured.first)}
    else:
        encoded = {
            str(site): encode_shard(site, values, shard.start, shard_prompts)
            for site, values in captured.activations.items()
        }
    if captured.positive_counts is not None:
        encoded[MLP_POSITIVE.name] = encode_counts(captured.positive_counts, shard.index)
    if captured.experts is not None:
        encoded[EXPERTS.name] = encode_experts(captured.experts, shard.start, shard_prompts)
    return encoded


def commit_of(
    run_id: str, task: ShardTask, captured: Any, encoded: Mapping[str, bytes], device: str, arithmetic: list[str]
) -> Commit:
    """Return the commit record of a new attempt, without its times.

    Args:
        run_id: the run.
        task: the shard.
        captured: what was captured, a `CapturedShard`; its arrays are not read.
        encoded: the bytes of each array, by its name.
        device: the device that computed the shard.
        arithmetic: what determines rounding errors, see `full_arithmetic`.
    """
    shard = task.shard
    return Commit(
        run_id=run_id,
        prompt_set=shard.prompt_set,
        index=shard.index,
        start=shard.start,
        stop=shard.stop,
        attempt=new_attempt(),
        checksums={name: sha256(content) for name, content in encoded.items()},
        layers=layers_of(encoded),
        batches=[list(batch) for batch in captured.batches],
        quarantined=captured.quarantined,
        stored_bytes=sum(map(len, encoded.values())),
        token_ids_sha256=digest_of(task.tokens),
        device=device,
        arithmetic=arithmetic,
        **captured.counts.counts_by_name(),
    )


def _gpu_name(device: Any) -> dict[str, str]:
    """Return the GPU's name as the entry `gpu` of a certificate; nothing for a CPU."""
    if device.type != "cuda":
        return {}
    import torch

    return {"gpu": torch.cuda.get_device_name(device)}


def _norm_layers(run: Any, assignment: Assignment) -> Any:
    """Return the model's norm layers, or None if its weights cannot be read from their files."""
    from theodolite_jobs.models.load import load_config
    from theodolite_jobs.models.weights import Weights
    from theodolite_jobs.passes.norm_layers import norm_layers

    files = model_files(assignment)
    try:
        return norm_layers(run, Weights(files, load_config(files, assignment.model.trust_remote_code)))
    except ModelError:
        return None


def model_files(assignment: Assignment) -> Path:
    """Return the folder of the model on this node; raises as `model_source` does."""
    from theodolite_jobs.models.source import fetch

    return fetch(model_source(assignment), assignment.cache)


def model_source(assignment: Assignment) -> Any:
    """Return the source of the model on this node; raise ModelError if its revision differs from the planned one."""
    from theodolite_jobs.models.source import resolve_source

    source = resolve_source(assignment.model, assignment.folder)
    if source.revisions != assignment.revision:
        raise ModelError(
            f"{source.name} on this node has revision {source.revisions}, but the run was planned with "
            f"{assignment.revision}; give every node the same files"
        )
    return source


def _load_engine(assignment: Assignment, rank: Rank | None, source: Any) -> Any:
    """Load the model of a source on this node."""
    import torch

    from theodolite_jobs.capture.engine import Engine
    from theodolite_jobs.cluster.session import threads_here
    from theodolite_jobs.models.anatomy import check_sites
    from theodolite_jobs.models.load import load_model
    from theodolite_jobs.models.source import fetch

    ranks = rank.size if rank else 1
    torch.set_num_threads(assignment.threads or threads_here(assignment.gpus, ranks))
    model = load_model(
        fetch(source, assignment.cache),
        dtype=assignment.model.dtype,
        attention=assignment.model.attention,
        device_map=None if rank else _device_map(assignment.gpus, torch.cuda.device_count()),
        trust_remote_code=assignment.model.trust_remote_code,
        ranks=ranks,
    )
    check_sites(model.anatomy, assignment.sites)
    return Engine(model, assignment.sites, assignment.layers)


def _device_map(gpus: int, visible: int) -> str | None:
    """Return `cuda` for one GPU, `auto` for pipeline placement over several GPUs, or None for the CPU."""
    if gpus == 0 or visible == 0:
        return None
    return "auto" if gpus > 1 else "cuda"
