"""Requests to a Ray cluster that cannot be sent are errors of one line."""

import pytest

from theodolite.errors import ClusterError
from theodolite.settings import Settings
from theodolite.submission.ray_jobs import cluster_states

SETTINGS = Settings(jobs_url="http://198.51.100.1:8265")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "NO_PROXY", "no_proxy", "RAY_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("proxy", ["ftp://proxy:1", "socks5://proxy:1"])
def test_a_proxy_of_an_unknown_kind_is_named(monkeypatch, proxy):
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(ClusterError, match=r"no request can be sent to http://198\.51.*; check the variables"):
        cluster_states(SETTINGS)


def test_a_token_that_is_not_ascii_is_named_and_not_shown(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secreté")
    with pytest.raises(ClusterError, match="the token has characters that are not ASCII") as error:
        cluster_states(SETTINGS)
    assert "é" not in str(error.value)


def test_a_token_file_that_cannot_be_read_is_named(monkeypatch, tmp_path):
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(ClusterError, match=rf"cannot read Ray's token in {tmp_path}/token: UnicodeDecodeError"):
        cluster_states(SETTINGS)
