"""What the metrics of a capture say of the replicas that it requests; Ray and the replicas are replaced."""

from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from theodolite.errors import CaptureError
from theodolite.metrics import REGISTRY
from theodolite.settings import Settings
from theodolite.spec_parts import ModelSpec
from theodolite.store import removal
from theodolite_jobs import capture_run
from theodolite_jobs.cluster import replicas as replicas_module
from theodolite_jobs.cluster.replica import Assignment
from theodolite_jobs.cluster.session import Resources
from theodolite_jobs.progress import Console

PARITY = {"max_error": 0.0, "bound": 1.0, "dtype": "float32", "attention": "eager", "device": "cpu"}


def replicas(name):
    wanted = REGISTRY.get_sample_value("theodolite_replicas_wanted", {"model": name})
    return wanted, REGISTRY.get_sample_value("theodolite_replicas", {"model": name})


@pytest.fixture
def capture(monkeypatch, tmp_path):
    """Let a capture of a model run without a cluster; `at` has functions that it calls at its stages."""

    def capture_model(name, settings, **at):
        def choose(*_, **__):
            at.get("chosen", lambda: None)()
            return Resources(3, gpus=0, threads=1, cpus=1)

        def certify(*_):
            at.get("certified", lambda: None)()
            return PARITY

        def run_shards(_workers, _tasks, callbacks):
            callbacks.replicas(2)
            at.get("captured", lambda: None)()

        assignment = Assignment("run-0", "", ModelSpec(id="m"), "", tmp_path, tmp_path, (), (), 1)
        of_capture = {"_check_space": lambda *_: None, "run_shards": run_shards}
        of_replicas = {
            "ray_session": lambda _address, _message: nullcontext(),
            "marked_store": lambda _store: nullcontext(),
            "choose_resources": choose,
            "choose_ranks": lambda *_: 1,
            "assignment_of": lambda *_: assignment,
            "RayWorker": MagicMock(),
            "certify_workers": certify,
        }
        for module, replaced in ((capture_run, of_capture), (replicas_module, of_replicas)):
            for function, other in replaced.items():
                monkeypatch.setattr(module, function, other)
        prepared = MagicMock()
        prepared.source.name, prepared.run_id, prepared.plans = name, "run-0", {}
        record = SimpleNamespace(sets={"set": SimpleNamespace(n_samples=4)})
        run = SimpleNamespace(record=record, location=None)
        monkeypatch.setattr(removal, "version", lambda *_: "1")  # the run is in its store
        console = Console()
        with capture_run.capture_replicas(prepared, [], settings, console) as (workers, _):
            capture_run.capture_shards(workers, run, prepared, [], console)

    return capture_model


def test_replicas_are_requested_before_they_are_certified_and_none_after_the_capture(capture, tmp_path):
    seen = {}
    stages = {stage: (lambda stage=stage: seen.update({stage: replicas("m")})) for stage in ("certified", "captured")}
    capture("m", Settings(store=str(tmp_path)), **stages)
    assert seen == {"certified": (3, 0), "captured": (3, 2)}
    assert replicas("m") == (0, 0)


@pytest.mark.parametrize(("requested", "expected"), [(None, 1), (5, 5)])
def test_a_survey_that_cannot_reach_its_cluster_requests_replicas_too(capture, tmp_path, requested, expected):
    seen = []

    def fail():
        seen.append(replicas("alone"))
        raise CaptureError("no cluster")

    with pytest.raises(CaptureError):
        capture("alone", Settings(store=str(tmp_path), replicas=requested), chosen=fail)
    assert seen == [(expected, 0)]
