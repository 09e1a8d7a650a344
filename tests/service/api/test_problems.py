"""Check that a problem is short, however many errors a request has, and that it says how many are left out."""

import json
import threading

import pytest
from support.each import each
from support.serving import SPEC, assert_problem, client_of, copied

from theodolite.api import json_bodies

JSON = {"Content-Type": "application/json"}
KEYS = {f"k{number}": 0 for number in range(60_000)}
FEW_KEYS = dict(list(KEYS.items())[:900])
LONG = "x" * 60_000
RUN = "/v1/runs/tiny-0"


@pytest.fixture(scope="module")
def own(library, tmp_path_factory):
    return client_of(copied(library, tmp_path_factory.mktemp("store"), "tiny-0"))


@each(
    "method, path, content, parts",
    [
        ("PATCH", RUN, KEYS, ["k0: extra inputs are not permitted", "k19: ", "and 59980 more"]),
        ("PATCH", RUN, {"tags": [1] * 300_000}, ["tags.0: given 1; input should be a valid string"]),
        ("PATCH", RUN, {LONG: 1}, ["xxx: given 1"]),
        ("PATCH", RUN, {"\0" * 60_000: 1}, ["extra inputs"]),
        ("POST", "/v1/spec/parse", KEYS, ["text: field required", "and 59981 more"]),
        ("POST", f"{RUN}/sentence-spec", KEYS, ["sentence: field required", "and 59981 more"]),
        ("POST", "/v1/spec/check", {**SPEC, **KEYS}, ["k0: extra inputs are not", "k19: ", "and 59980 more"]),
        (
            "POST",
            "/v1/spec/check",
            {**SPEC, **dict(list(KEYS.items())[:900])},
            ["k0: unknown field, given 0", "880 more"],
        ),
        ("POST", "/v1/spec/check", {**SPEC, **{f"{number}{LONG}": 1 for number in range(15)}}, ["0xxx", "14xxx"]),
        ("POST", "/v1/spec/check", {**SPEC, **{f"{number}" + "\0" * 9000: 1 for number in range(15)}}, ["more char"]),
        ("POST", "/v1/spec/check", {**SPEC, "prompts": KEYS}, ["prompts.k0: ", "and 59980 more"]),
    ],
)
def test_a_problem_with_a_body_is_short(own, method, path, content, parts):
    answer = own.request(method, path, content=json.dumps(content), headers=JSON)
    assert_problem(answer, 422, *parts)
    assert len(answer.content) <= 10_000


@each(
    "path", [f"/{LONG}", f"/v1/runs/{LONG}", f"/v1/runs?{LONG}=1", f"/v1/runs?cursor={LONG}", f"/v1/runs?limit={LONG}"]
)
def test_a_problem_with_an_address_is_short(own, path):
    answer = own.get(path)
    assert_problem(answer, answer.status_code)
    assert 400 <= answer.status_code < 500
    assert len(answer.content) <= 10_000


def test_a_problem_with_many_parameters_names_the_first(own):
    layers = "&".join(f"layer=a{number}" for number in range(3000))
    answer = own.get(f"{RUN}/export/refusal?{layers}")
    assert_problem(answer, 422, "layer.0: given 'a0'", "layer.19: ", "and 2980 more")
    assert "layer.20" not in answer.text


@each(
    "method, path, content",
    [
        ("PATCH", RUN, {"name": "one"}),
        ("POST", "/v1/spec/parse", {"text": "model: {id: a}"}),
        ("POST", "/v1/spec/check", SPEC),
        ("POST", f"{RUN}/sentence-spec", {"sentence": "Two birds"}),
    ],
)
def test_a_body_is_read_in_a_thread(own, monkeypatch, method, path, content):
    """The loop of events serves all callers."""
    threads, parse = [], json_bodies.parse_json

    def noted(body):
        threads.append(threading.current_thread().name)
        return parse(body)

    monkeypatch.setattr(json_bodies, "parse_json", noted)
    assert own.request(method, path, content=json.dumps(content), headers=JSON).status_code in (200, 403)
    assert [name for name in threads if "worker" in name] == threads != []


@each("content", [b"[1]", b"", b"{", b"[" * 100_000, b'{"name": 1, "name": 2}', b'{"name": NaN}'])
def test_a_body_that_is_no_object_of_json_is_refused(own, content):
    assert_problem(own.patch(RUN, content=content, headers=JSON), 422, "the body")
