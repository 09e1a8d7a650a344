"""Check the limit of requests: who is counted, how often, and what a refused request returns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from support.each import each
from support.serving import SPEC, assert_problem, bearer, client_of, configured, copied

from theodolite.api.credentials import create_credential
from theodolite.api.problems import Problem
from theodolite.api.rate_limits import RateLimit
from theodolite.errors import SpecError
from theodolite.metrics import HTTP_REQUESTS
from theodolite.settings import Settings, read_settings


class Clock:
    def __init__(self, now: float = 1e6) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def limit_of(per_minute):
    limit, clock = RateLimit(per_minute), Clock()
    limit.clock = clock
    return limit, clock


def is_accepted(limit, caller="a"):
    try:
        limit.count(caller)
    except Problem:
        return False
    return True


@each("per_minute", [1, 2, 7, 60, 1000])
def test_a_bucket_holds_a_minute_and_fills_in_a_minute(per_minute):
    limit, clock = limit_of(per_minute)
    assert [is_accepted(limit) for _ in range(per_minute + 2)] == [True] * per_minute + [False] * 2
    clock.now += 60 / per_minute
    assert [is_accepted(limit), is_accepted(limit)] == [True, False]
    clock.now += 1000
    assert sum(is_accepted(limit) for _ in range(per_minute + 2)) == per_minute


def test_each_caller_has_a_bucket():
    limit, _ = limit_of(2)
    accepted = [is_accepted(limit, caller) for caller in "aababb"]
    assert accepted == [True, True, True, False, True, False]


def test_a_request_is_accepted_after_the_stated_time_and_not_a_second_earlier():
    limit, clock = limit_of(4)
    for _ in range(4):
        limit.count("a")
    clock.now += 1.5
    with pytest.raises(Problem, match="4 requests in a minute; wait 14 s") as refused:
        limit.count("a")
    assert refused.value.headers == {"Retry-After": "14"}
    clock.now += 13
    assert not is_accepted(limit)
    clock.now += 1
    assert is_accepted(limit)


@given(st.integers(1, 20), st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 40)), max_size=60))
def test_the_accepted_requests_are_those_of_a_token_bucket(per_minute, requests):
    """Compare with buckets that count their tokens."""
    limit, clock = limit_of(per_minute)
    tokens, filled_at = dict.fromkeys("abc", float(per_minute)), dict.fromkeys("abc", clock.now)
    for caller, pause in requests:
        clock.now += pause
        passed, filled_at[caller] = clock.now - filled_at[caller], clock.now
        tokens[caller] = min(per_minute, tokens[caller] + passed * per_minute / 60)
        if abs(tokens[caller] - 1) < 1e-4:  # the two ways round differently
            return
        assert is_accepted(limit, caller) == (tokens[caller] >= 1)
        tokens[caller] -= tokens[caller] >= 1


def test_full_buckets_take_no_memory():
    limit, clock = limit_of(10)
    for number in range(1000):
        limit.count(f"caller {number}")
        clock.now += 1
    assert len(limit._full_at) <= 10


@pytest.fixture
def store(library, tmp_path):
    return copied(library, tmp_path, "tiny-0")


def test_a_refused_request_is_a_problem_that_says_when_to_retry(store):
    client = client_of(store, requests_per_minute=2)
    assert [client.get("/v1/runs").status_code for _ in range(2)] == [200, 200]
    answer = client.get("/v1/runs")
    assert_problem(answer, 429, "2 requests in a minute", "wait 30 s")
    assert answer.headers["retry-after"] == "30"
    assert answer.json()["type"] == "urn:theodolite:rate-limit"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_default_limit_is_ten_times_the_requests_of_the_page():
    """The page sends about 110 requests in a minute while the tests of the browser open its views one after another."""
    limit, _ = limit_of(Settings().requests_per_minute)
    accepted = sum(is_accepted(limit) for _ in range(10_000))
    assert 1100 <= accepted < 10_000


def test_each_token_and_each_address_without_a_valid_token_is_counted(store):
    first, _ = create_credential(store, ["read"])
    second, _ = create_credential(store, ["read"])
    client = client_of(store, requests_per_minute=1)

    def status(*token):
        return client.get("/v1/runs", headers=bearer(*token) if token else {}).status_code

    assert [status(first), status(first), status(second)] == [200, 429, 200]
    assert [status(), status(), status("unknown"), status(second)] == [401, 429, 429, 429]


def test_each_client_address_is_counted_but_not_what_a_header_claims(store):
    near, far = (client_of(store, requests_per_minute=1, client=(name, 1)) for name in ("10.0.0.1", "10.0.0.2"))
    far.app = near.app
    path = "/v1/spec.schema.json"
    assert near.get(path).status_code == 200
    for header in ("X-Forwarded-For", "Forwarded", "X-Real-IP"):
        assert near.get(path, headers={header: "10.9.9.9"}).status_code == 429


def test_the_address_that_a_trusted_proxy_states_is_counted(store, monkeypatch):
    create_credential(store, ["read"])
    for proxies, expected in ([], [200, 429]), (["10.0.0.0/8"], [200, 200]):
        settings = Settings(store=store, requests_per_minute=1, proxies=proxies)
        app = configured(settings, monkeypatch).loaded_app
        client = TestClient(app, "http://localhost", client=("10.0.0.1", 1))
        path = "/v1/spec.schema.json"
        statuses = [client.get(path, headers={"X-Forwarded-For": name}).status_code for name in ("1.1.1.1", "2.2.2.2")]
        assert statuses == expected
        if proxies:
            assert client.get(path, headers={"X-Forwarded-For": "9.9.9.9, 2.2.2.2"}).status_code == 429


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_a_request_is_counted_once(store, method):
    """The guard and the route both authenticate the caller of a body."""
    token, _ = create_credential(store, ["read", "submit"])
    client = client_of(store, requests_per_minute=3)
    path, content = ("/v1/spec/check", {"json": SPEC}) if method == "POST" else ("/v1/runs", {})
    statuses = [client.request(method, path, headers=bearer(token), **content).status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 429]


def test_probes_metrics_and_the_page_are_not_counted(store):
    client = client_of(store, requests_per_minute=1, client=("127.0.0.1", 1))
    for path in ("/healthz", "/readyz", "/metrics", "/", "/static/main.js"):
        assert [client.get(path).status_code for _ in range(3)] == [200] * 3, path


def test_a_body_above_the_limit_is_not_read(store, monkeypatch):
    client = client_of(store, requests_per_minute=1)
    assert client.post("/v1/spec/check", json=SPEC).status_code == 200
    monkeypatch.setattr("theodolite.api.guards.read_body", None)
    answer = client.post("/v1/spec/check", json=SPEC)
    assert answer.status_code == 429
    assert answer.headers["connection"] == "close"


def test_the_metrics_count_refused_requests(store):
    counter = HTTP_REQUESTS.labels("none", "429")
    before, client = counter._value.get(), client_of(store, requests_per_minute=1)
    for _ in range(3):
        client.get("/v1/runs")
    assert counter._value.get() - before == 2


def test_a_limit_and_proxies_are_checked(monkeypatch):
    monkeypatch.setenv("THEODOLITE_REQUESTS_PER_MINUTE", "0")
    with pytest.raises(SpecError, match=r"THEODOLITE_REQUESTS_PER_MINUTE: .*greater than or equal to 1"):
        read_settings()
    monkeypatch.setenv("THEODOLITE_REQUESTS_PER_MINUTE", "60")
    monkeypatch.setenv("THEODOLITE_PROXIES", '["proxy"]')
    with pytest.raises(SpecError, match="THEODOLITE_PROXIES: "):
        read_settings()
    monkeypatch.setenv("THEODOLITE_PROXIES", '["127.0.0.1", "10.0.0.0/8", "fd00::/8"]')
    settings = read_settings()
    assert settings.requests_per_minute == 60
    assert [str(network) for network in settings.proxies] == ["127.0.0.1/32", "10.0.0.0/8", "fd00::/8"]
