"""Reducing shards part by part: which tokens run, what is in memory, and which bits result."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.each import each

from theodolite.spec_parts import ModelSpec
from theodolite_jobs.capture.plan import plan_set
from theodolite_jobs.cluster import reduction
from theodolite_jobs.cluster.poison import PoisonSearch, without
from theodolite_jobs.cluster.reduction import Reducer
from theodolite_jobs.cluster.replica import REPLICA_ENVIRONMENT, Assignment, Replica

SHARD_PROMPTS, THREADS, SECONDS = 4, 2, 60

TOKENS = [(*range(1 + 7 * n % 5), n) for n in range(44)]
"""The last token of each prompt is its sample."""


@pytest.fixture
def task():
    """The task of the only reduced shard, of ten parts."""
    options = {"shard_prompts": SHARD_PROMPTS, "batch_tokens": 9, "share_prefix": False}
    plan = plan_set("set", TOKENS, (-1,), **options, n_kept=4)
    batches = tuple(batch for one in plan.shards[1:] for batch in one.batches)
    return plan.task(replace(plan.shards[1], stop=44, batches=batches), TOKENS)


class Recorder:
    """An engine that notes which tokens it runs as which sample."""

    def __init__(self):
        self.ran = []

    def capture(self, task):
        part = task.shard
        assert len(task.tokens) == part.stop - part.start <= SHARD_PROMPTS
        self.ran += [(sample, task.tokens[sample - part.start][-1]) for batch in part.batches for sample in batch]


@each("poison", [4, 17, 23, 41, 43])
@each("quarantined", [(), (5,), (4, 5, 6, 9)])
def test_a_search_runs_each_suspected_prompt_as_itself(task, poison, quarantined):
    engine = Recorder()
    replica = Replica(Assignment("run", "", ModelSpec(id="x"), "", Path(), Path(), (), (), SHARD_PROMPTS, 1, 0))
    replica._engine = engine
    for sample in set(quarantined) - {poison}:
        task = without(task, sample, "poison")
    search = PoisonSearch(task)
    assert [len(batch) for batch in search.probe().shard.batches] == [1]  # the replica must survive a prompt first
    found = None
    while found is None:
        probe = search.probe()
        engine.ran = []
        replica.probe(probe)
        assert all(sample == token for sample, token in engine.ran)
        assert sorted(sample for sample, _ in engine.ran) == sorted(s for batch in probe.shard.batches for s in batch)
        found = search.narrow(died=poison in dict(engine.ran))
    assert found == poison


class Held:
    """An engine whose captured parts are in memory until they are released."""

    def __init__(self, part_bytes):
        self.part_bytes, self.launched, self.released = part_bytes, threading.Semaphore(0), threading.Semaphore(0)

    def shard_bytes(self, *_):
        return self.part_bytes

    def launch(self, part):
        self.launched.release()
        if part.shard.start == self.fails_at:
            raise RuntimeError("no memory")

        def finish():
            assert self.released.acquire(timeout=SECONDS)
            return SimpleNamespace(activations={}, quarantined={}, positive_counts=None, batches=[], counts=None)

        return finish

    fails_at = -1


@pytest.mark.parametrize(("part_bytes", "most"), [(1, THREADS + 1), (50, 2), (1000, 1)])
def test_few_parts_are_in_memory_at_the_same_time(task, monkeypatch, part_bytes, most):
    monkeypatch.setattr(reduction, "CapturedSamples", lambda *_: None)
    monkeypatch.setattr(reduction, "reduce_samples", lambda *_: None)
    monkeypatch.setattr(reduction.ReducedShard, "__add__", lambda self, _other: self)
    engine = Held(part_bytes)
    reducer = Reducer(None, None, SHARD_PROMPTS, THREADS, 100)
    with ThreadPoolExecutor(1) as pool:
        launching = pool.submit(reducer.launch, engine, task)
        for _ in range(most):
            assert engine.launched.acquire(timeout=SECONDS)
        assert not engine.launched.acquire(timeout=0.2)
        for _ in range(10):
            engine.released.release()
        launching.result(SECONDS)()


def test_a_part_that_fails_leaves_its_place_to_others(task, monkeypatch):
    monkeypatch.setattr(reduction, "CapturedSamples", lambda *_: None)
    monkeypatch.setattr(reduction, "reduce_samples", lambda *_: None)
    monkeypatch.setattr(reduction.ReducedShard, "__add__", lambda self, _other: self)
    engine = Held(1000)  # a single part fills the memory
    reducer = Reducer(None, None, SHARD_PROMPTS, THREADS, 100)
    for _ in range(40):
        engine.released.release()
    for engine.fails_at in (8, 4):
        with pytest.raises(RuntimeError, match="no memory"):
            reducer.launch(engine, task)
    engine.fails_at = -1
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: reducer.launch(engine, task)()).result(SECONDS)


def test_bits_do_not_depend_on_the_number_of_threads_of_a_replica():
    """OpenBLAS would divide vectors of this length among its threads."""
    code = (
        "import hashlib, numpy as np; from theodolite_jobs.statistics.moments import lengths; "
        "print(hashlib.sha256(lengths(np.random.default_rng(0).normal(size=(8, 20000)))).hexdigest())"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, **REPLICA_ENVIRONMENT, "OMP_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2", "4")
    }
    assert len(found) == 1
