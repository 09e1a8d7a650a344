"""Check that the metrics of requests have the patterns of routes as labels, and no name that a user chose."""

import re

import pytest
from support.serving import client_of, copied


@pytest.fixture
def near(library, tmp_path):
    return client_of(copied(library, tmp_path, "tiny-0"), client=("127.0.0.1", 1))


def counted(client):
    text = client.get("/metrics").text
    pattern = r'theodolite_http_requests_total\{route="([^"]*)",status="(\d+)"\} (\S+)'
    return {(route, status): float(value) for route, status, value in re.findall(pattern, text)}, text


def test_requests_are_counted_by_pattern_and_status(near):
    before, _ = counted(near)
    routes_and_statuses = {
        "/v1/runs": ("/v1/runs", "200"),
        "/v1/runs/tiny-0/curves?statistic=auroc": ("/v1/runs/{run_id}/curves", "200"),
        "/v1/runs/nobody-0/curves": ("/v1/runs/{run_id}/curves", "404"),
        "/v1/runs/tiny-0/heads/3/4": ("/v1/runs/{run_id}/heads/{layer}/{head}", "404"),
        "/v1/runs/tiny-0/tables/growth": ("/v1/runs/{run_id}/tables/{name}", "200"),
        "/v1/runs/tiny-0/objects/tables/growth.parquet": ("/v1/runs/{run_id}/objects/{key}", "200"),
        "/static/nobody.js": ("/static/{name}", "404"),
        "/nobody-at-all": ("none", "404"),
    }
    for path in routes_and_statuses:
        near.get(path)
    after, _ = counted(near)
    for key in set(routes_and_statuses.values()):
        assert after[key] - before.get(key, 0) == list(routes_and_statuses.values()).count(key)


def test_no_name_of_a_user_becomes_a_label(near):
    secret = "chosen-by-somebody"
    for path in (f"/v1/runs/{secret}", f"/{secret}", f"/static/{secret}.js", f"/v1/runs/tiny-0/figures/{secret}"):
        near.get(path)
        near.request(secret.upper(), path)
    near.get("/v1/runs", headers={"Host": secret})
    near.get(f"/v1/runs?model={secret}")
    _, text = counted(near)
    assert secret not in text.lower()
    assert "tiny-0" not in text
    routes = set(re.findall(r'route="([^"]*)"', text))
    known = {path for path in near.get("/openapi.json").json()["paths"]}
    own = {"none", "/", "/docs", "/static/{name}", "/openapi.json", "/docs/oauth2-redirect"}
    assert routes <= known | own


def test_requests_that_the_guard_rejects_are_counted(near):
    before, _ = counted(near)
    near.get("/v1/runs", headers={"Host": "evil.com"})
    after, _ = counted(near)
    assert after[("none", "421")] == before.get(("none", "421"), 0) + 1


def test_times_are_in_seconds_with_the_route_as_the_only_label(near):
    near.get("/healthz")
    _, text = counted(near)
    assert re.search(r'theodolite_http_request_seconds_count\{route="/healthz"\} [1-9]', text)
    assert 'theodolite_build_info{version="' in text
    labels = set(re.findall(r"(\w+)=\"", text)) - {"le"}
    assert labels <= {"route", "status", "version", "model", "reason", "analysis"}
