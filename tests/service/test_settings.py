"""Wrong values in the environment are refused in one line that names the variable."""

import pytest
from support.each import each

from theodolite.errors import SpecError
from theodolite.settings import read_settings

WRONG = {
    "REPLICAS": ["x", "-1", "1.5", "0"],
    "PARALLELISM": ["both"],
    "NODES_WAIT_SECONDS": ["nan", "inf", "-1", "1e300"],
    "REPLICAS_WAIT_SECONDS": ["nan", "inf", "0"],
    "SPOT_CHECKS": ["nan", "inf", "2"],
    "METRICS_PORT": ["99999", "-1"],
    "METRICS_LINGER_SECONDS": ["nan", "inf"],
    "JOBS_URL": [
        "http://",
        "http://[::1",
        "http://:8265",
        "http://head:99999999",
        "http://head:x",
        "ftp://head:1",
        "head",
    ],
    "DRIVER_MEMORY": ["0", str(10**30)],
    "MODELS_ALLOWED": ["a,b", "[1", "{}"],
    "PROXIES": ['["x"]'],
    "STORE": [" ", "/"],
}


@each("name, value", [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_is_refused_by_name(monkeypatch, name, value):
    monkeypatch.setenv(f"THEODOLITE_{name}", value)
    with pytest.raises(SpecError, match=f"^THEODOLITE_{name}(: |\n)") as error:
        read_settings()
    assert len(str(error.value).splitlines()) == 1


@each("url", ["http://head:8265", "http://[::1]:8265", "https://user:word@head/ray"])
def test_the_urls_of_clusters_are_accepted(monkeypatch, url):
    monkeypatch.setenv("THEODOLITE_JOBS_URL", url)
    assert read_settings().jobs_url == url
