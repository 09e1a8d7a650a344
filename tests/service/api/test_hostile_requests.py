"""Check that any text in a path or parameter gives a 4xx status, never 500, and reads nothing outside the store."""

import pytest
from support.each import each
from support.serving import assert_problem, client_of, copied

RUN = "/v1/runs/tiny-0"

NAMES = [
    "..%2f..%2fsecret",
    "%2e%2e/secret",
    "%2e%2e%2fsecret",
    "..%5c..%5csecret",
    "..\\secret",
    "%2fetc%2fpasswd",
    "%252e%252e%252fsecret",
    "....%2f%2fsecret",
    "secret%00",
    "%00",
    "a%0Ab",
    "%0d%0aX-Evil:%201",
    "tiny-0%0a",
    "%ff%fe",
    "%ed%a0%80",
    "%f0%9f%92%a9",
    "é" * 40,
    "a" * 3000,
    "~root",
    "file:%2f%2f%2fetc%2fpasswd",
    "s3:%2f%2fbucket",
    "<script>alert(1)</script>",
    "%3Cscript%3E",
    "COMPLETE",
    "run.json",
    "null",
    "-1",
    " ",
    "*",
    "tiny-0%2f..%2ftiny-1",
]
PATHS = [
    "/v1/runs/{}",
    "/v1/runs/{}/curves",
    "/v1/runs/{}/tables/growth",
    "/v1/runs/tiny-0/{}",
    "/v1/runs/tiny-0/tables/{}",
    "/v1/runs/tiny-0/figures/{}",
    "/v1/runs/tiny-0/sections/{}",
    "/v1/runs/tiny-0/directions/{}?site=resid_pre&layer=0",
    "/v1/runs/tiny-0/heads/{}/0",
    "/v1/runs/tiny-0/heads/0/{}",
    "/v1/jobs/{}",
    "/v1/jobs/{}/logs",
    "/static/{}",
    "/{}",
]


@pytest.fixture(scope="module")
def guarded(library, tmp_path_factory):
    """A client of a service whose store is surrounded by secret files; the tests request the names of these files."""
    folder = tmp_path_factory.mktemp("guarded")
    for parent in (".", "store", "store/runs"):
        (folder / parent).mkdir(exist_ok=True)
        (folder / parent / "secret").mkdir()
        for name in ("run.json", "COMPLETE", "growth.parquet", "secret.parquet", "index.html"):
            (folder / parent / "secret" / name).write_text("SECRET-OF-THE-DISK")
        (folder / parent / "secret.parquet").write_text("SECRET-OF-THE-DISK")
    return client_of(copied(library, folder / "store", "tiny-0", "tiny-1"))


@each("path", PATHS)
def test_no_name_in_a_path_reads_outside_the_store(guarded, path):
    for name in NAMES:
        answer = guarded.get(path.format(name))
        assert 400 <= answer.status_code < 500, (path, name, answer.status_code)
        assert answer.headers["content-type"] == "application/problem+json", (path, name)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "SECRET-OF-THE-DISK" not in answer.text
        assert "x-evil" not in answer.headers


def test_the_content_of_a_folder_that_is_not_a_run_is_not_shown(guarded):
    answer = guarded.get("/v1/runs/secret")
    assert_problem(answer, 409, "secret: run.json is not JSON")
    assert "SECRET-OF-THE-DISK" not in answer.text


VALUES = [
    "",
    "x",
    "-1",
    "0.5",
    "1e3",
    "9" * 30,
    "9" * 5000,
    "-" + "9" * 30,
    "NaN",
    "Infinity",
    "\x00",
    "a\nb",
    "resid_pre\n",
    "../../etc/passwd",
    "💩" * 50,
    "\u202e",
    "<script>",
    "'; drop table runs; --",
    "None",
    "[]",
]
PARAMETERS = [
    ("/v1/runs", "limit"),
    ("/v1/runs", "cursor"),
    ("/v1/runs", "incomplete"),
    ("/v1/runs", "model"),
    ("/v1/runs", "contrast"),
    *((f"{RUN}/curves", name) for name in ("statistic", "set", "contrast", "site", "position", "limit", "cursor")),
    *((f"{RUN}/directions/refusal?site=resid_pre&layer=0", name) for name in ("site", "layer", "position")),
    *((f"{RUN}/tables/growth", name) for name in ("layer", "head", "limit", "cursor")),
    *((f"{RUN}/heads/0/0", name) for name in ("circuit", "offset")),
    *(
        ("/v1/compare?run=tiny-0", name)
        for name in ("run", "statistic", "contrast", "set", "site", "position", "bound")
    ),
    ("/v1/jobs", "limit"),
    ("/v1/jobs", "cursor"),
]


@each("path, name", PARAMETERS)
def test_no_value_of_a_parameter_makes_the_service_fail(client, path, name):
    for value in VALUES:
        base, _, query = path.partition("?")
        given = dict(pair.split("=") for pair in query.split("&") if pair)
        answer = client.get(base, params={**given, name: value})
        assert answer.status_code in (200, 404, 422), (path, name, value, answer.status_code)
        if answer.status_code != 200:
            assert_problem(answer, answer.status_code)


@each(
    "path, message",
    [
        ("curves?statistic=nobody", "'nobody', which is not a curve along depth; allowed: norm_mean, "),
        ("curves?contrast=nobody", "contrast: tiny-0 has no 'nobody'; it has: refusal, subject"),
        ("curves?set=nobody", "set: tiny-0 has no 'nobody'; it has: harmful, harmless, nouns"),
        ("curves?site=attn_out", "site: tiny-0 has no 'attn_out'; it has: resid_pre, resid_mid"),
        ("curves?position=-3", "position: tiny-0 has no -3; it has: -2, -1"),
        ("curves?position=last", "position"),
        ("curves?set=harmful&contrast=refusal", "none of the requested statistics has set and contrast; leave one out"),
        ("curves?statistic=auroc&set=harmful", "none of the requested statistics has set"),
        ("directions/nobody?site=resid_pre&layer=0", "contrast: tiny-0 has no 'nobody'; it has refusal, subject"),
        ("directions/refusal?site=resid_final&layer=0", "resid_pre, resid_mid"),
        ("directions/refusal?site=resid_pre&layer=4", "layer: tiny-0 has no 4; it has 0 to 3"),
        ("directions/refusal?site=resid_pre&layer=-1", "layer: given '-1'"),
        ("directions/refusal?site=resid_pre&layer=0&position=-9", "-2, -1"),
        ("directions/refusal?site=resid_pre&layer=0&position=0", "position"),
        ("directions/refusal?layer=0", "site: field required"),
        ("directions/refusal?site=resid_pre", "layer: field required"),
    ],
)
def test_the_error_for_an_unknown_label_lists_the_existing_labels(client, path, message):
    assert_problem(client.get(f"{RUN}/{path}"), 422, message)


def test_the_error_for_the_first_layer_out_of_range_names_the_range(client):
    answer = client.get("/v1/runs/tiny-1/directions/refusal", params={"site": "resid_pre", "layer": 6})
    assert_problem(answer, 422, "it has 0 to 5")


@each("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE"])
@each("kind", ["application/json", "text/plain"])
def test_a_method_that_is_not_allowed_returns_405_with_the_allowed_ones(client, method, kind):
    for path in ("/v1/runs", f"{RUN}/curves", "/healthz", "/"):
        answer = client.request(method, path, headers={"Content-Type": kind}, content=b"{}")
        assert_problem(answer, 405, method, "GET, HEAD, OPTIONS")
        assert answer.headers["allow"] == "GET, HEAD, OPTIONS"
    answer = client.request("PUT" if method == "POST" else method, "/v1/jobs", headers={"Content-Type": kind})
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS, POST"


def test_options_names_the_methods_of_a_path(client):
    for path, allowed in {"/v1/jobs": "GET, HEAD, OPTIONS, POST", f"{RUN}/curves": "GET, HEAD, OPTIONS"}.items():
        answer = client.options(path)
        assert (answer.status_code, answer.content, answer.headers["allow"]) == (204, b"", allowed)
    assert client.options("/nobody").status_code == 404


@each("path", ["/v1/runs", f"{RUN}/curves", f"{RUN}/tables/growth", "/healthz", "/", "/v1/runs/no"])
def test_head_has_the_headers_of_get_and_no_body(client, path):
    got, head = client.get(path), client.head(path)
    assert head.content == b""
    assert head.status_code == got.status_code
    same = ("content-type", "etag", "vary", "cache-control", "content-security-policy")
    assert {name: head.headers.get(name) for name in same} == {name: got.headers.get(name) for name in same}


@each("path", ["/v1/runs?models=x", f"{RUN}/curves?statistics=auroc", "/v1/analyses?page=2"])
def test_a_parameter_that_does_not_exist_is_refused(client, path):
    name = path.partition("?")[2].partition("=")[0]
    assert_problem(client.get(path), 422, f"{name}: there is no such parameter; allowed: ")


def test_the_message_about_an_unknown_parameter_lists_those_that_exist(client):
    assert_problem(client.get(f"{RUN}/heads/0/0?circuits=qk"), 422, "allowed: circuit, offset")
    assert_problem(client.get("/v1/analyses?page=2"), 422, "allowed: none")


@each("path", ["/nobody", "/v1", "/v1/", "/v1/runs/tiny-0/", "/v2/runs", "/static/", "/.git/config"])
def test_an_unknown_path_returns_a_problem(client, path):
    answer = client.get(path, follow_redirects=False)
    assert answer.status_code in (307, 404, 422)
    if answer.status_code != 307:
        assert_problem(answer, answer.status_code)


def test_unknown_file_names_are_not_cached(client):
    from theodolite.api.page import _contents

    for number in range(50):
        assert client.get(f"/static/nobody-{number}.js").status_code == 404
    before = _contents.cache_info().currsize
    for number in range(50, 100):
        assert client.get(f"/static/nobody-{number}.js").status_code == 404
    assert _contents.cache_info().currsize == before


def test_duplicate_labels_are_merged_or_rejected(client):
    once = client.get(f"{RUN}/curves?statistic=cosine_of_means&contrast=refusal&site=resid_pre&position=-1").json()
    twice = client.get(
        f"{RUN}/curves?statistic=cosine_of_means&contrast=refusal&contrast=refusal&site=resid_pre&position=-1"
    )
    assert len(once["items"]) == 1
    assert twice.status_code == 422 or twice.json()["items"] == once["items"]


def test_the_page_and_the_checks_accept_parameters_of_other_programs(client):
    for path in ("/?utm_source=x", "/healthz?x=1", "/static/main.js?v=1"):
        assert client.get(path).status_code == 200


def test_methods_of_the_schema_are_known_too(client):
    answer = client.post("/openapi.json", json={})
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


@each("method", ["HEAD", "OPTIONS"])
def test_head_and_options_are_guarded_like_get(client, library, method):
    assert client.request(method, RUN, headers={"Host": "evil.example"}).status_code == 421
    assert client.request(method, RUN, headers={"Origin": "http://evil.example"}).status_code == 403
    assert client_of(library, tokenless=False).head(RUN).status_code == 401


def test_health_is_answered_while_all_threads_compute(library, monkeypatch):
    import anyio.to_thread

    monkeypatch.setattr(anyio.to_thread, "run_sync", None)  # a route or a dependency that needs a thread fails
    assert client_of(library).get("/healthz").status_code == 200
