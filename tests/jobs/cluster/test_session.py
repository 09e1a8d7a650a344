"""The resources that a survey takes of a cluster's nodes."""

import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
import ray

from theodolite.errors import CaptureError
from theodolite_jobs.cluster import session
from theodolite_jobs.cluster.session import (
    Resources,
    choose_resources,
    has_node_for,
    ray_session,
    temporary_folder,
    threads_here,
)


@pytest.fixture
def nodes(monkeypatch):
    """Set the resources of the nodes; a node without CPUs, such as the head, runs no work."""

    def are(*resources):
        everyone = [{"Alive": True, "Resources": {}}, {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}]
        everyone += [{"Alive": True, "Resources": one} for one in resources]
        monkeypatch.setattr(ray, "nodes", lambda: everyone)

    return are


def test_replicas_take_all_gpus_of_the_cluster(nodes):
    nodes({"CPU": 16.0, "GPU": 4.0}, {"CPU": 8.0, "GPU": 3.0})
    assert choose_resources(None, None) == Resources(replicas=7, gpus=1, threads=2, cpus=1.0)
    assert choose_resources(None, 2).replicas == 3, "a replica fits on one node"


def test_without_gpus_one_replica_takes_a_node(nodes):
    nodes({"CPU": 8.0})
    assert choose_resources(None, None) == Resources(replicas=1, gpus=0, threads=8, cpus=8.0)
    assert choose_resources(4, None) == Resources(replicas=4, gpus=0, threads=2, cpus=2.0)


def test_a_request_that_does_not_fit_is_refused_unless_the_cluster_grows(nodes, monkeypatch):
    nodes({"CPU": 8.0, "GPU": 1.0})
    with pytest.raises(CaptureError, match=r"2 replicas of 2 GPUs do not fit: the nodes of the cluster have \[1\]"):
        choose_resources(2, 2)
    assert choose_resources(2, 2, grows=True).replicas == 2
    nodes()
    monkeypatch.setattr(session, "JOIN_SECONDS", 0.0)
    with pytest.raises(CaptureError, match="no node with CPUs for work"):
        choose_resources(None, None)
    assert choose_resources(4, 2, grows=True) == Resources(replicas=4, gpus=2, threads=1, cpus=1.0)
    with pytest.raises(CaptureError, match="set --gpus-per-replica, 0 for none"):
        choose_resources(4, None, grows=True)


def test_the_first_worker_node_is_waited_for(nodes, monkeypatch):
    """After its head was restarted, a cluster has no nodes for some seconds."""
    nodes()
    monkeypatch.setattr(session, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(session.time, "sleep", lambda _seconds: nodes({"CPU": 8.0}))
    messages = []
    assert choose_resources(None, None, message=messages.append).threads == 8
    assert messages == ["waiting up to 60 s for worker nodes to join the cluster"]


@pytest.mark.parametrize("replicas", [3, None])
def test_all_nodes_that_a_request_needs_are_waited_for(nodes, monkeypatch, replicas):
    """Without a requested number, the others have some seconds to follow the first node."""
    monkeypatch.setattr(session, "SETTLE_SECONDS", 0.2)
    joining = [{"CPU": 8.0}, {"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 2.0}]
    count = iter(range(1, 100))
    sleep = session.time.sleep

    def join(_seconds):
        nodes(*joining[: next(count)])
        sleep(0.05)

    nodes()
    monkeypatch.setattr(session.time, "sleep", join)
    assert choose_resources(replicas, None) == Resources(replicas=3, gpus=1, threads=8, cpus=1.0)


@pytest.mark.parametrize(("gpus", "ranks", "threads"), [(1, 1, 16), (2, 1, 32), (4, 4, 16), (8, 1, 128), (16, 1, 128)])
def test_a_replica_takes_its_share_of_the_cores_of_its_node(monkeypatch, gpus, ranks, threads):
    own = {"NodeID": "own", "Resources": {"CPU": 128.0, "GPU": 8.0}}
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "other", "Resources": {"CPU": 2.0}}, own])
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "own"))
    assert threads_here(gpus, ranks) == threads


def test_a_replica_fits_on_a_node_with_its_gpus_and_cores(nodes):
    nodes({"CPU": 2.0, "GPU": 1.0})
    assert has_node_for(Resources(1, 1, 1, 1.0))
    assert not has_node_for(Resources(1, 2, 1, 1.0))
    assert not has_node_for(Resources(1, 0, 4, 4.0))


@pytest.fixture
def without_ray(monkeypatch):
    """Let sessions begin and end without Ray, which other tests of this process may use."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(session, "_end_on_sigterm", lambda _before: None)


@pytest.fixture
def slow_starts(without_ray, monkeypatch):
    """Let the first starts of Ray fail as on a busy machine; the list has the addresses of all starts."""
    starts = []

    def fail(times):
        def init(address, **_options):
            starts.append(address)
            if len(starts) <= times:
                raise Exception("The current node timed out during startup.")

        monkeypatch.setattr(ray, "init", init)
        return starts

    return fail


def test_ray_is_started_again_if_a_busy_machine_needs_more_than_30_seconds(slow_starts):
    starts = slow_starts(2)
    with ray_session(None):
        assert starts == ["local"] * 3


def test_a_busy_cluster_is_connected_to_again(without_ray, monkeypatch):
    addresses, pauses, said = [], [], []

    def connect(address, **_):
        addresses.append(address)
        if len(addresses) < 3:
            raise ConnectionError(f"Failed to connect to Ray cluster at {address}")

    monkeypatch.setattr(session, "_refuse_unreachable", lambda _address: None)
    monkeypatch.setattr(ray, "init", connect)
    monkeypatch.setattr(session.time, "sleep", pauses.append)
    with ray_session("head:6379", said.append):
        assert (len(addresses), len(pauses)) == (3, 2)
    assert said == ["the Ray cluster at head:6379 does not accept this process yet; connecting again"] * 2


def test_a_cluster_with_tokens_is_not_called_without_one(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with (
        socket.create_server(("127.0.0.1", 0)) as head,
        pytest.raises(CaptureError, match=r"no token is set for the Ray cluster at 127\.0\.0\.1:"),
        ray_session(f"127.0.0.1:{head.getsockname()[1]}"),
    ):
        pass


def test_ray_that_never_starts_ends_the_survey_in_one_line(slow_starts):
    starts = slow_starts(100)
    with (
        pytest.raises(CaptureError, match=r"^cannot connect to the Ray cluster at this machine: .* stop other work"),
        ray_session(None),
    ):
        pass
    assert starts == ["local"] * 4


@pytest.fixture
def temporary(monkeypatch):
    """Set the variables of the folder of temporary files."""

    def are(**variables):
        for name in ("TMPDIR", "RAY_TMPDIR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return are


def test_ray_chooses_its_folder_itself_if_its_sockets_fit(temporary):
    for variables in ({}, {"TMPDIR": "/" + 38 * "a"}, {"TMPDIR": 100 * "a", "RAY_TMPDIR": "/tmp"}):
        temporary(**variables)
        assert temporary_folder(pytest.fail) is None


@pytest.mark.parametrize("name", ["TMPDIR", "RAY_TMPDIR"])
def test_a_short_folder_takes_the_place_of_one_that_is_too_long(temporary, monkeypatch, tmp_path, name):
    temporary(**{name: "/" + 20 * "é"})
    (tmp_path / "file").write_text("")
    messages = []
    monkeypatch.setattr(session, "_SHORT_FOLDERS", (f"{tmp_path}/missing/ray", f"{tmp_path}/ray"))
    assert temporary_folder(messages.append) == f"{tmp_path}/ray"
    (message,) = messages
    assert message.startswith(f"{name} has 41 bytes, but Ray's sockets allow at most 39 (/é")
    assert message.endswith(f"; Ray's files are in {tmp_path}/ray")


def test_no_short_folder_is_an_error_in_one_line(temporary, monkeypatch):
    temporary(TMPDIR="/" + 90 * "a")
    monkeypatch.setattr(session, "_SHORT_FOLDERS", ("/missing/ray",))
    with pytest.raises(CaptureError, match=r"^TMPDIR has 91 bytes, .*; set RAY_TMPDIR to a shorter folder .*$"):
        temporary_folder(pytest.fail)


SURVEY = """
import gc, os, signal
import ray
from theodolite_jobs import cli
from theodolite_jobs.cluster.session import ray_session

class Cycle:
    def __init__(self):
        self.itself, self.reference = self, ray.put(0)

class SlowToShutDown:
    def __init__(self, core_worker):
        self.core_worker = core_worker
    def __getattr__(self, name):
        return getattr(self.core_worker, name)
    def shutdown_driver(self):
        self.core_worker.shutdown_driver()
        gc.set_threshold(10, 1, 1)
        kept = [[] for _ in range(10_000)]  # so many objects start collections

def survey():
    gc.set_threshold(10**9)
    with ray_session(None, print):
        print(ray.get(ray.remote(lambda: 6 * 7).remote()))
        Cycle()
        worker = ray._private.worker.global_worker
        worker.core_worker = SlowToShutDown(worker.core_worker)
        os.kill(os.getpid(), signal.SIGTERM)

cli.app = survey
try:
    cli.main()
finally:
    print(gc.isenabled())
"""


def test_sigterm_ends_a_survey_with_a_line_and_no_stack_or_collection(tmp_path):
    """Ray starts below a long folder, and beside a proxy that refuses everything.

    A collection while the process disconnects from Ray would end it at once.
    """
    long = tmp_path / (100 * "a")
    long.mkdir()
    proxy = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:1")
    environment = {**os.environ, **proxy, "TMPDIR": str(long)}
    run = subprocess.run([sys.executable, "-c", SURVEY], env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 143
    assert run.stderr == "interrupted; committed shards are kept, run the same command to resume\n"
    said, *_, answer, collects = run.stdout.splitlines()  # between them, what another test left may be killed
    assert said.startswith("TMPDIR has ")
    assert said.endswith("; Ray's files are in /tmp/ray")
    assert (answer, collects) == ("42", "True")
