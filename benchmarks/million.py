"""Measure a survey of a million prompts with the shape of a 32B model, which keeps the activations of few of them.

The driver is real: it reads, tokenises and plans the prompts, runs the scheduling loop, and finishes the capture; the
statistics are real too. The replicas only pretend to compute: they write and commit generated activations, or the
moments of generated activations, repeated for each part of a shard. All shards of a set have the same numbers, so the
files have the number and size of a real survey's, but the statistics mean nothing. Ray takes no part.

`loop_seconds` is the processor time of the scheduling loop, `resume_seconds` the time to find the capture finished.
`stored` are the bytes of each kind of object. The store is in TMPDIR and takes 15 GB. The last line is one JSON object.
Usage: python benchmarks/million.py --help
"""

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, reduce
from importlib import resources
from itertools import islice, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import measuring  # first: it prepares the process before torch is imported
import numpy as np
from generated import D_MODEL, generated_shard, llama_norms, qwen_config
from numpy.typing import NDArray
from replicas import assignment_to

from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.sites import Site
from theodolite.spec_file import parse_spec
from theodolite.store.runs import Run, list_run_ids, open_run, open_run_at, run_url
from theodolite_jobs import capture_run
from theodolite_jobs.analysis import compute_groups
from theodolite_jobs.capture.engine import CapturedShard
from theodolite_jobs.capture.plan import ShardTask, count_tokens
from theodolite_jobs.cluster import replicas
from theodolite_jobs.cluster.reduction import ReducedShard
from theodolite_jobs.cluster.replica import Assignment, Replica
from theodolite_jobs.cluster.scheduling import Dispatched
from theodolite_jobs.passes.one_shard import FirstPass
from theodolite_jobs.passes.reduced import CapturedSamples, reduce_samples
from theodolite_jobs.prepare import prepare
from theodolite_jobs.prepared import Prepared
from theodolite_jobs.progress import Console
from theodolite_jobs.requested import requested_groups
from theodolite_jobs.results.context import Context

LAYERS, VOCABULARY = 64, 152_064
REPLICAS = 2
SETS = ("first", "second")
CONTRASTS = {"difference": {"positive": "first", "negative": "second", "paired": False}}
ANALYSES = ["curves", "sphere", "separation", "travel"]
PARITY = {
    "attention": "sdpa",
    "dtype": "bfloat16",
    "device": "pretended",
    "ranks": 1,
    "branches_add": True,
    "max_error": 0.0,
    "bound": 0.0,
}


class PretendedReplica:
    """A replica that writes and commits shards when the scheduling loop sends them, without a model."""

    def __init__(self, assignment: Assignment) -> None:
        """Draw the activations of a stored shard."""
        self.assignment, self.writer = assignment, Replica(assignment)
        self.thread = ThreadPoolExecutor(1)
        self.ready: Future[Any] = Future()
        self.ready.set_result(None)
        self.rng = np.random.default_rng(0)
        self.drawn = generated_shard(self.rng, assignment.shard_prompts, LAYERS, D_MODEL)
        self.first_passes: dict[int, FirstPass] = {}  # by number of prompts

    def capture(self, task: ShardTask) -> Dispatched:
        """Write and commit a shard in the replica's thread."""
        committed = self.thread.submit(self._write, task)
        return Dispatched(captured=committed, committed=committed)

    def kill(self) -> None:
        """End the thread."""
        self.thread.shutdown()

    @cached_property
    def _run(self) -> Run:
        return open_run_at(self.assignment.run_url)

    def _write(self, task: ShardTask) -> dict[str, Any]:
        n_prompts, batches = len(task.tokens), list(task.shard.batches)
        positive = self.rng.integers(0, n_prompts, (1, LAYERS, task.units), dtype=np.int32)
        counts = count_tokens(task, batches)
        captured = (
            ReducedShard({}, positive, batches, {}, counts, first=self._first_pass(n_prompts))
            if task.shard.is_reduced
            else CapturedShard(self._activations(n_prompts), positive, batches, {}, counts)
        )
        return self.writer._write(task, captured, "pretended", idle_seconds=0.0)

    def _activations(self, n_prompts: int) -> dict[Site, NDArray[np.float32]]:
        return {site: values[:n_prompts] for site, values in self.drawn.items()}

    def _first_pass(self, n_prompts: int) -> FirstPass:
        """Return the outputs of the first pass over a shard whose parts have the same activations."""
        if n_prompts not in self.first_passes:
            full, rest = divmod(n_prompts, self.assignment.shard_prompts)
            parts = [self._reduce(self.assignment.shard_prompts)] * full + [self._reduce(rest)] * (rest > 0)
            self.first_passes[n_prompts] = reduce(FirstPass.merged, parts)
        return self.first_passes[n_prompts]

    def _reduce(self, n_prompts: int) -> FirstPass:
        samples = CapturedSamples(self._activations(n_prompts), 0, ())
        return reduce_samples(self._run, samples, llama_norms(self._run))


def main() -> None:
    options = measuring.read_options(
        "Measure a survey of many prompts with the shape of a 32B model and pretended replicas; print JSON.",
        prompts=(1_000_000, "prompts of both sets together"),
        keep=(2048, "prompts of each set whose activations are stored"),
    )
    with tempfile.TemporaryDirectory(prefix="theodolite-million-") as temporary:
        folder = Path(temporary)
        (folder / "store").mkdir()
        write_model(folder / "shape-32b")
        write_prompts(folder, options.prompts // len(SETS))
        result = {"prompts": options.prompts, "keep": options.keep, "replicas": REPLICAS}
        result["drive"] = measuring.in_new_process(drive, folder, options.keep)
        measuring.say(f"drive: {result['drive']}")
        result["analyse"] = measuring.in_new_process(analyse, folder)
        measuring.say(f"analyse: {result['analyse']}")
        result["stored"] = stored_bytes(folder / "store")
    measuring.publish(result, options.out)


def write_model(folder: Path) -> None:
    """Write the configuration of a model with the shape of Qwen2.5-32B, and the tokenizer of the chat model."""
    shutil.copytree(measuring.chat_model(), folder, ignore=shutil.ignore_patterns("*.safetensors*", "config.json"))
    qwen_config(LAYERS, VOCABULARY).save_pretrained(folder)


def write_prompts(folder: Path, n_prompts: int) -> None:
    """Write a file of different prompts for each set."""
    nouns = (resources.files("theodolite_jobs.prompts") / "data" / "nouns.txt").read_text("utf-8").split()
    for name, order in zip(SETS, (nouns, nouns[::-1]), strict=True):
        lines = [f"Write one sentence about {a}, {b} and {c}." for a, b, c in product(order, repeat=3)]
        (folder / f"{name}.txt").write_text("\n".join(islice(lines, n_prompts)), encoding="utf-8")


def survey_of(folder: Path, keep: int) -> tuple[Prepared, Settings]:
    """Return the prepared survey, and the settings of its store."""
    request = {
        "model": {"id": "shape-32b", "weights": "random"},  # no file of weights is read
        "prompts": {name: {"source": f"file:{name}.txt"} for name in SETS},
        "contrasts": CONTRASTS,
        "capture": {"keep": keep},
        "analyses": ANALYSES,
        "words": {"sentences": []},
    }
    settings = Settings(store=str(folder / "store"))
    return prepare(parse_spec(request), folder, settings), settings


def drive(folder: Path, keep: int) -> dict[str, Any]:
    """Capture the survey with pretended replicas, and resume it when it is finished."""
    seconds: dict[str, float] = {}
    with timed(seconds, "prepare"):
        prepared, settings = survey_of(folder, keep)
    with timed(seconds, "run_id"):
        _ = prepared.run_id

    @contextmanager
    def workers(*_: Any) -> Iterator[Any]:
        assignment = assignment_to(
            run_url(settings.store, prepared.run_id), prepared.layers, prepared.spec.capture.sizes.shard_prompts
        )
        pretended = [PretendedReplica(assignment) for _ in range(REPLICAS)]
        yield pretended, PARITY
        for replica in pretended:
            replica.kill()

    run_shards = capture_run.run_shards

    def timed_loop(*arguments: Any) -> None:
        with timed(seconds, "loop", time.thread_time):
            run_shards(*arguments)

    console = Console()
    with (
        patch.object(replicas, "certified_workers", workers),
        patch.object(capture_run, "run_shards", timed_loop),
        timed(seconds, "capture"),
    ):
        capture_run.capture_run(prepared, settings, console)
    with timed(seconds, "resume"):
        capture_run.capture_run(prepared, settings, console)
    shards = {name: len(plan.shards) for name, plan in prepared.plans.items()}
    return {**measured(seconds), "shards": shards}


def analyse(folder: Path) -> dict[str, Any]:
    """Compute the statistics, and verify the run."""
    seconds: dict[str, float] = {}
    store = str(folder / "store")
    run = open_run(store, *list_run_ids(store))
    context = Context(run, run.record.spec, CONTRASTS, progress=lambda *_: None)
    context.norms = llama_norms(run)  # instead of those of a model
    with timed(seconds, "statistics"):
        compute_groups(context, requested_groups(run, run.record.spec, CONTRASTS))
    with timed(seconds, "verify"):
        damage = list(verify(run))
    return {**measured(seconds), "damage": damage}


@contextmanager
def timed(seconds: dict[str, float], name: str, clock: Callable[[], float] = time.perf_counter) -> Iterator[None]:
    """Add the seconds of a context."""
    started = clock()
    yield
    seconds[name] = clock() - started


def measured(seconds: dict[str, float]) -> dict[str, Any]:
    """Return the seconds of each step and the peak memory of this process."""
    return {f"{name}_seconds": value for name, value in seconds.items()} | {"peak_bytes": measuring.peak_memory_bytes()}


def stored_bytes(folder: Path) -> dict[str, int]:
    """Return the bytes below a run's folder by the first part of the path, and in all."""
    sizes: Counter[str] = Counter()
    run = next((folder / "runs").iterdir())
    for path in run.rglob("*"):
        if path.is_file():
            sizes[path.relative_to(run).parts[0]] += path.stat().st_size
    return {**sizes, "total": sizes.total()}


if __name__ == "__main__":
    main()
