"""A replica, a worker of Dask or a survey job whose store is not the driver's store refuses before any work."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from support import tiny
from support.analysing import context_of
from support.result_cases import draw
from support.stored import store_run

from theodolite.errors import ClusterRefusedError, SpecError, StoreError
from theodolite.settings import Settings
from theodolite.sites import Site
from theodolite.spec_file import parse_spec
from theodolite.spec_parts import ModelSpec
from theodolite.store.runs import run_url
from theodolite.submission.job_store import End, create_attempt, end_attempt, store_spec
from theodolite_jobs.capture.plan import plan_set
from theodolite_jobs.cluster.replica import Assignment, Replica
from theodolite_jobs.job import run_job
from theodolite_jobs.results import context
from theodolite_jobs.store_marker import StoreMarker, check_marker, marked_store

REFUSED = (
    r"the store .*/store on node .+ is not the driver's store: share this folder with every node at the same path, or"
)


@pytest.fixture
def store(tmp_path):
    """The driver's folder."""
    return tmp_path / "store"


def move_away(store):
    """Move the driver's store away, as on a node that does not share the path."""
    store.rename(store.with_name("of-the-driver"))


def replica_of(store, marker, engine=None):
    nowhere = Path("nowhere")
    assignment = Assignment(
        run_id="run-0",
        run_url=run_url(str(store), "run-0"),
        model=ModelSpec(id="x"),
        revision="",
        folder=nowhere,
        cache=nowhere,
        sites=(Site.RESID_PRE,),
        layers=(0,),
        shard_prompts=2,
        threads=1,
        gpus=0,
        marker=marker,
    )
    replica = Replica(assignment)
    replica._engine = engine or object()
    replica._certificate = {"dtype": "float32", "attention": "sdpa", "device": "cpu", "ranks": 1}
    return replica


def test_a_replica_that_shares_the_store_continues_and_the_driver_removes_the_marker(store):
    with marked_store(str(store)) as marker:
        assert replica_of(store, marker).certify()["device"] == "cpu"
        assert [path.name for path in store.iterdir()] == [marker.key]
    assert list(store.iterdir()) == []


@pytest.mark.parametrize("node_has_the_folder", [False, True])
def test_a_replica_that_does_not_share_the_store_refuses_to_work(store, node_has_the_folder):
    with marked_store(str(store)) as marker:
        move_away(store)
        if node_has_the_folder:
            store.mkdir()
        with pytest.raises(ClusterRefusedError, match=REFUSED) as caught:
            replica_of(store, marker).certify()
        assert "\n" not in str(caught.value)
        assert not list(store.glob("**/*"))


def test_a_marker_of_an_earlier_driver_is_refused(store):
    with marked_store(str(store)) as marker:
        shutil.copytree(store, store.with_name("copy"))
    with pytest.raises(ClusterRefusedError):
        check_marker(marker)


@pytest.fixture
def dask():
    """A scheduler and one worker, in this process."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, processes=False, dashboard_address=":0", silence_logs=50) as cluster:
        yield cluster.scheduler_address


def test_a_worker_of_dask_that_does_not_share_the_store_refuses_to_work(tmp_path, dask, monkeypatch):
    run = store_run(tmp_path / "store", {"bad": draw(6, positions=1), "good": draw(7, positions=1, seed=1)})
    elsewhere = StoreMarker(str(tmp_path / "store"), "of-another-driver")
    monkeypatch.setattr(context, "marked_store", lambda _store: nullcontext(elsewhere))
    with context_of(run, {}).tasks():
        pass  # threads of the driver need no check
    with pytest.raises(ClusterRefusedError, match=REFUSED), context_of(run, {}, dask).tasks():
        pass


def test_workers_of_dask_that_share_the_store_are_checked_once(tmp_path, dask, monkeypatch):
    run = store_run(tmp_path / "store", {"bad": draw(6, positions=1), "good": draw(7, positions=1, seed=1)})
    checked = []
    monkeypatch.setattr(context, "call_on_each_worker", lambda function, *_: checked.append(function))
    analysis = context_of(run, {}, dask)
    for _ in range(2):
        with analysis.tasks():
            pass
    assert checked == [check_marker]
    assert not list((tmp_path / "store").glob(".driver-*"))


def test_a_shard_is_never_committed_to_a_missing_store(store):
    from theodolite_jobs.capture.engine import Engine
    from theodolite_jobs.models.load import wrap

    tokens = tiny.random_tokens([5, 6])
    plan = plan_set("set", tokens, (-1,), shard_prompts=2, batch_tokens=100, share_prefix=False)
    engine = Engine(wrap(tiny.tiny_model("llama")), [Site.RESID_PRE], [0])
    replica = replica_of(store, None, engine)
    replica.capture(0, plan.task(plan.shards[0], tokens))
    with pytest.raises(StoreError, match=r"cannot write pending/set/.*: there is no folder .*run-0 on node"):
        replica.written(0)


def test_the_end_of_a_survey_job_is_never_written_to_another_store(tmp_path):
    spec = parse_spec({"model": {"id": "x"}, "prompts": {}})
    job_id = store_spec(str(tmp_path / "store"), spec)
    create_attempt(str(tmp_path / "store"), job_id, 1, "local")
    (tmp_path / "other").mkdir()
    for elsewhere in ("other", "missing"):
        with pytest.raises(
            StoreError, match=rf"the store .*{elsewhere} on node .+ has no survey job {job_id}: share this"
        ):
            end_attempt(str(tmp_path / elsewhere), job_id, 1, End("succeeded"))
        with pytest.raises(
            SpecError, match=rf"the store .*{elsewhere} on node .+ has no survey job {job_id}: share this"
        ):
            run_job(job_id, 1, Settings(store=str(tmp_path / elsewhere)))
    assert not (tmp_path / "missing").exists()
    assert list((tmp_path / "other").iterdir()) == []
