"""The kind of device for which a survey is planned."""

from contextlib import nullcontext

import pytest
import torch

from theodolite.settings import Settings
from theodolite_jobs.cluster import session
from theodolite_jobs.prepare import device_of


def silent(_message):
    pass


@pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (1, "gpu"), (4, "gpu")])
def test_the_settings_decide(gpus, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", pytest.fail)
    assert device_of(Settings(gpus_per_replica=gpus, ray_address="head:6379"), silent) == device


@pytest.mark.parametrize(("has_gpu", "device"), [(False, "cpu"), (True, "gpu")])
def test_without_a_cluster_it_is_that_of_this_machine(has_gpu, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert device_of(Settings(), silent) == device


@pytest.mark.parametrize(("gpus", "device"), [([0, 0], "cpu"), ([0, 2], "gpu")])
def test_a_cluster_has_the_devices_of_its_nodes(gpus, device, monkeypatch):
    nodes = [{"CPU": 2.0, **({"GPU": float(one)} if one else {})} for one in gpus]
    monkeypatch.setattr(session, "ray_session", lambda *_: nullcontext())
    monkeypatch.setattr(session, "_nodes", lambda: nodes)
    assert device_of(Settings(ray_address="head:6379"), silent) == device
