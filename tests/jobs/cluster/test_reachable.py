"""A cluster that does not listen is refused before anything else takes seconds."""

import socket

import pytest
from support.each import each

from theodolite.errors import ClusterError
from theodolite_jobs.cluster.reachable import check_reachable


def test_a_cluster_that_listens_is_accepted():
    with socket.create_server(("127.0.0.1", 0)) as server:
        for protocol in ("", "tcp://", "ray://"):
            check_reachable("cluster", f"{protocol}127.0.0.1:{server.getsockname()[1]}", "--option")


@each("address", [None, "auto", "local"])
def test_no_cluster_and_one_that_ray_finds_are_not_checked(address):
    check_reachable("cluster", address, "--option")


@each("address", ["127.0.0.1:1", "tcp://127.0.0.1:1", "127.0.0.1:99999999", "no.such.host:1"])
def test_a_cluster_that_does_not_listen_is_refused(address):
    with pytest.raises(ClusterError, match=rf"^cannot reach a Dask scheduler at {address}: .*; .* correct --dask$"):
        check_reachable("Dask scheduler", address, "--dask")


@each("address", ["nonsense", "head:", ":6379", "head:port", "http://head", ""])
def test_an_address_without_a_port_is_refused(address):
    with pytest.raises(ClusterError, match=r"^--ray: given .*; allowed: the address of a Ray cluster, HOST:PORT$"):
        check_reachable("Ray cluster", address, "--ray")
