"""Replicas that are ranks of a group: rank 0 writes, and the failure of a rank never corrupts the written shards."""

import json
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import replace

import numpy as np
import pytest
import torch
import zarr
from support import tiny
from support.rank_group import SECONDS, Group

from theodolite.errors import CaptureError, RankOutOfMemoryError
from theodolite.shard_bounds import ShardBounds
from theodolite.sites import Site
from theodolite.spec_parts import ModelSpec
from theodolite.store.descriptions import encode_descriptions
from theodolite.store.objects import keys, open_location, put
from theodolite_jobs.capture.parity import FLOAT32_EXPECTED
from theodolite_jobs.capture.plan import plan_set, probe_prompts
from theodolite_jobs.cluster.replica import Assignment, Replica
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.reference import relative_errors
from theodolite_jobs.models.source import resolve_source

SITES = (Site.RESID_PRE, Site.RESID_MID, Site.HEAD_OUT, Site.RESID_FINAL)
LAYERS = (0, 2, 4)
TOKENS = tiny.random_tokens([12, 19, 14, 12, 17, 13], prefix=9)
PLAN = plan_set("set", TOKENS, (-3, -1), shard_prompts=3, batch_tokens=60, share_prefix=True)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    tiny.tiny_model("llama").save_pretrained(folder)
    return folder


def created_run(model_folder, store):
    """Create a run's arrays, and return the assignment of its replicas."""
    coordinates = {"position": PLAN.layout.positions, "layer": LAYERS, "d_model": range(48), "unit": range(80)}
    coordinates |= {"head": range(4), "d_head": range(16)}
    location = open_location(str(store), create=True)
    bounds = ShardBounds(len(TOKENS), len(TOKENS), 3)
    for key, content in encode_descriptions("set", bounds, SITES, coordinates).items():
        put(location, key, content)
    model = ModelSpec(id=str(model_folder))
    return Assignment(
        run_id="run-0",
        run_url=str(store),
        model=model,
        revision=resolve_source(model, model_folder).revision,
        folder=model_folder,
        cache=model_folder,
        sites=SITES,
        layers=LAYERS,
        shard_prompts=3,
        threads=1,
        layouts={"set": PLAN.layout},
        probes={"set": probe_prompts(TOKENS)},
    )


def replica_of(assignment, rank=None):
    return Replica(assignment, rank)


def capture(replica, index, halvings=0):
    task = PLAN.task(PLAN.shards[index], TOKENS, units=80)
    replica.capture(index, replace(task, halvings=halvings))
    return replica.written(index) if replica.rank is None or replica.rank.index == 0 else None


@pytest.fixture(scope="module")
def whole(model_folder, tmp_path_factory):
    """The store of a run by one process."""
    store = tmp_path_factory.mktemp("whole")
    replica = replica_of(created_run(model_folder, store))
    for shard in PLAN.shards:
        capture(replica, shard.index)
    return store


def assert_same_results(store, whole):
    for name in ("resid_pre", "resid_mid", "head_out", "resid_final", "mlp_positive"):
        ours, theirs = (
            zarr.open_array(f"{folder}/activations.zarr/set/{name}", mode="r")[:] for folder in (store, whole)
        )
        if name == "mlp_positive":
            np.testing.assert_array_equal(ours, theirs)
        else:
            assert relative_errors(ours, theirs).max() < FLOAT32_EXPECTED


# Functions that the processes run; each process stores its replica in REPLICA.

REPLICA: list[Replica] = []


def begin(rank, assignment):
    REPLICA[:] = [replica_of(assignment, rank)]
    return REPLICA[0].certify()


def capture_shard(rank, index, halvings=0):
    return capture(REPLICA[0], index, halvings)


def committed(folder):
    """Return the commit records of the set by shard index, as they are stored."""
    files = (folder / "shards/set").glob("*.json")
    return {int(file.stem): json.loads(file.read_bytes()) for file in sorted(files)}


def run_out_of_memory(rank):
    """Limit the memory of the second rank to one prompt."""
    run = LoadedModel.run

    def run_one(self, **inputs):
        if rank.index == 1 and len(inputs["input_ids"]) > 1:
            raise torch.OutOfMemoryError("no memory left")
        return run(self, **inputs)

    LoadedModel.run = run_one


def test_the_first_rank_writes_each_shard_once(model_folder, whole, tmp_path):
    group = Group(2, joined=False)
    first, second = group.run(begin, created_run(model_folder, tmp_path))
    assert first == second
    assert first["ranks"] == 2
    for shard in PLAN.shards:
        numbers, nothing = group.run(capture_shard, shard.index)
        assert numbers["prompts"] == 3
        assert nothing is None
    group.close()
    assert committed(tmp_path).keys() == {0, 1}
    assert not list(keys(open_location(str(tmp_path)), "pending"))
    assert_same_results(tmp_path, whole)


def test_a_rank_out_of_memory_ends_its_group_and_the_next_one_halves_the_batches(model_folder, whole, tmp_path):
    assignment = created_run(model_folder, tmp_path)
    group = Group(2, joined=False)
    group.run(begin, assignment)
    group.run(run_out_of_memory)
    waiting, failed = group.submit(capture_shard, 0)
    assert wait([waiting, failed], SECONDS, FIRST_COMPLETED).done == {failed}
    with pytest.raises(RankOutOfMemoryError, match="batch of 3 prompts of set, with up to 19 tokens each"):
        failed.result()
    # The other rank waits for this shard, and would mistake messages of the next shard for it.
    _, next_one = group.submit(capture_shard, 1)
    with pytest.raises(CaptureError, match="out of step"):
        next_one.result(SECONDS)
    group.end(1)
    with pytest.raises(RuntimeError, match=r"(closed|reset) by peer"):
        waiting.result(SECONDS)
    group.close()
    assert not committed(tmp_path)

    group = Group(2, joined=False)
    group.run(begin, assignment)
    group.run(run_out_of_memory)
    for shard in PLAN.shards:
        group.run(capture_shard, shard.index, 2)
    group.close()
    commits = committed(tmp_path)
    assert [sample for commit in commits.values() for batch in commit["batches"] for sample in batch] == [
        sample for shard in PLAN.shards for batch in shard.batches for sample in batch
    ]
    assert {len(batch) for commit in commits.values() for batch in commit["batches"]} == {1}
    assert [commit["oom_backoffs"] for commit in commits.values()] == [2, 2]
    assert_same_results(tmp_path, whole)
