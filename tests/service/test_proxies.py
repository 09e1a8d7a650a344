"""Local services, buckets and clusters are reached directly, also beside a proxy that refuses everything."""

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from support.faulty_bucket import faulty_bucket

from theodolite.client import Client
from theodolite.errors import ServiceError
from theodolite.proxies import reach_local_addresses_directly
from theodolite.settings import Settings
from theodolite.store.objects import get, open_location, put
from theodolite.submission.ray_jobs import cluster_states

PROXIES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


class Refusing(BaseHTTPRequestHandler):
    """A proxy that refuses all requests, and a server that answers an empty list."""

    def do_GET(self):
        is_proxied = self.path.startswith("http://")
        self.send_response(403 if is_proxied else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    do_PUT = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """Run a local server; the environment names it as the proxy for everything."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    for name in PROXIES:
        monkeypatch.setenv(name, url)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    yield url
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_client_of_a_local_service_uses_no_proxy(server, host):
    assert httpx.get(server).status_code == 403, "the proxy refuses"
    assert Client(server.replace("127.0.0.1", host)).send("GET", "/v1/runs").json() == []


def test_a_client_of_a_distant_service_uses_the_proxy(server):
    with pytest.raises(ServiceError, match="403"):
        Client("http://service.example.org").send("GET", "/v1/runs")


def test_a_local_bucket_and_a_local_cluster_use_no_proxy(server, monkeypatch):
    with faulty_bucket() as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        location = open_location("s3://surveys/proxies")
        put(location, "key", b"bytes")
        assert get(location, "key") == b"bytes"
    assert cluster_states(Settings(jobs_url=server)) == {}


def test_the_exceptions_of_the_environment_remain(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8, .example.org")
    monkeypatch.setenv("no_proxy", "localhost")
    for _ in range(2):
        reach_local_addresses_directly()
        for name in ("NO_PROXY", "no_proxy"):
            assert dict(os.environ)[name] == "10.0.0.0/8,.example.org,localhost,127.0.0.1,::1"


def test_an_environment_that_excludes_every_address_stays_as_it_is(monkeypatch):
    """`*` has this meaning only alone."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "*")
    reach_local_addresses_directly()
    assert os.environ["NO_PROXY"] == "*"


def test_an_environment_without_a_proxy_stays_as_it_is(monkeypatch):
    for name in (*PROXIES, "NO_PROXY", "no_proxy", "ftp_proxy"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    reach_local_addresses_directly()
    assert dict(os.environ) == before
