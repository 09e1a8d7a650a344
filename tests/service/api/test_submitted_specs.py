"""Check the limits and allow-lists for specs over HTTP, and the errors for rejected specs."""

import gzip
import json
from pathlib import Path

import orjson
import pytest
from support.each import each
from support.serving import SPEC, assert_problem, client_of

from theodolite.spec_file import parse_spec
from theodolite.spec_parts import PromptSetSpec
from theodolite_jobs.prompts.sources import read_prompts

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def checking(tmp_path):
    """Return a function that validates a spec on a service with some settings, without submitting it."""

    def check(spec, **settings):
        content = spec if isinstance(spec, bytes) else json.dumps(spec).encode()
        return client_of(tmp_path, **settings).post("/v1/spec/check", content=content, headers=JSON)

    return check


def model(name, **more):
    return {**SPEC, "model": {"id": name, **more}}


def source(address, **more):
    prompts = {**SPEC["prompts"], "more": {"source": address, "limit": 8, **more}}
    return {**SPEC, "prompts": prompts}


def test_a_valid_spec_is_returned_in_full_with_its_id(checking):
    answer = checking({**SPEC, "name": "label"})
    assert answer.status_code == 200
    content = answer.json()
    assert (content["valid"], content["has_cluster"]) == (True, False)
    assert checking(SPEC, jobs_url="http://head:8265").json()["has_cluster"]
    assert content["id"] == parse_spec(SPEC).digest() == parse_spec(content["spec"]).digest()


@each(
    "name",
    [
        "../x",
        "./x",
        "/models/x",
        "~/x",
        "~root/x",
        "x.gguf",
        "org/x.gguf",
        "org/name/x.gguf",
        "a/../b",
        "a/b/c",
        "folder",
        "file:///etc",
        "",
        ".",
        "..",
        "a/..",
        "a/.",
        "a/",
        "org/x.GGUF",
        "org/x.gguf ",
        " /etc",
        "\\x/y",
        "C:/x",
        "a b/c",
        "a/b\n",
        "a/b\x00",
    ],
)
def test_a_model_outside_the_hub_is_rejected(checking, name):
    answer = checking(model(name))
    assert answer.status_code in (403, 422), answer.text
    assert_problem(answer, answer.status_code, "model")


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "all-minilm-l6-v2"])
def test_aliases_are_accepted_by_default(checking, name):
    assert checking(model(name)).status_code == 200


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-7B-Instruct", "a/b_c-d.e", "runs/x", "gpt2"])
def test_no_other_model_is_accepted_by_default(checking, name):
    answer = checking(model(name))
    assert_problem(answer, 403, "model.id", name, "allowed: all-minilm-l6-v2, smollm2-135m-instruct;")
    assert "its operator can add the model to THEODOLITE_MODELS_ALLOWED" in answer.text


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "org/a", "runs/x", "/models/a"])
def test_a_deployment_that_allows_no_models_allows_none(checking, name):
    assert_problem(checking(model(name), models_allowed=[]), 403, "model.id", name, "allowed: none;")


@each("name", ["/etc/x", "./x", "~/x", "../x", ".", "~root/x", "a/../b"])
def test_a_pattern_for_every_model_of_the_hub_allows_no_path(checking, name):
    assert_problem(checking(model(name), models_allowed=["*", "*/*", "~*", ".*"]), 403, "model.id", name)


@each(
    "name, allowed, status",
    [
        ("org/a", ["org/*"], 200),
        ("org/a", ["other/*"], 403),
        ("ORG/a", ["org/*"], 403),
        ("/models/a", ["/models/*"], 200),
        ("/models/a.gguf", ["/models/*.gguf"], 200),
        ("/elsewhere/a.gguf", ["/models/*.gguf"], 403),
        ("smollm2-135m-instruct", ["org/*"], 403),
        ("smollm2-135m-instruct", ["org/*", "smollm2-135m-instruct"], 200),
        ("org/a", ["*"], 200),
        ("Qwen/Qwen2.5-7B", ["org/*"], 403),
        ("org/../../secret", ["org/*"], 403),
        ("/models/../etc/secret", ["/models/*"], 403),
        ("/models/../../x.gguf", ["/models/*.gguf"], 403),
    ],
)
def test_only_models_on_the_allow_list_are_accepted(checking, name, allowed, status):
    answer = checking(model(name), models_allowed=allowed)
    assert answer.status_code == status
    if status == 403:
        assert_problem(answer, 403, "model.id", name, f"allowed: {allowed[0]};")


@each(
    "name, allowed, status",
    [
        ("org/lora", ["org/a"], 403),
        ("/adapters/lora", ["org/*"], 403),
        ("lora", ["org/*"], 403),
        ("org/lora", ["org/*"], 200),
        ("other/lora", ["org/*"], 403),
        ("/adapters/lora", ["org/*", "/adapters/*"], 200),
        ("/adapters/../etc/lora", ["org/*", "/adapters/*"], 403),
    ],
)
def test_an_adapter_has_the_allow_list_of_models(checking, name, allowed, status):
    answer = checking(model("org/a", adapter=name), models_allowed=allowed)
    assert answer.status_code == status
    if status == 403:
        assert_problem(answer, 403, "model.adapter", name)


def test_remote_code_needs_the_allow_list(checking):
    spec, models = model("org/a", trust_remote_code=True), {"models_allowed": ["org/*"]}
    assert_problem(checking(spec, **models), 403, "model.trust_remote_code", "org/a")
    assert_problem(checking(spec, remote_code_allowed=["org/b", "org/*"], **models), 403, "trust_remote_code")
    assert checking(spec, remote_code_allowed=["org/a"], **models).status_code == 200


@each(
    "address, allowed, status",
    [
        ("hub:tatsu-lab/alpaca", [], 403),
        ("hub:tatsu-lab/alpaca", ["tatsu-lab/alpaca"], 200),
        ("hub:tatsu-lab/alpaca", ["tatsu-lab/*"], 200),
        ("hub:tatsu-lab/alpaca", ["tatsu/*"], 403),
        ("hub:../secret", ["tatsu-lab/*"], 422),
        ("hub:tatsu-lab/../../secret", ["tatsu-lab/*"], 422),
    ],
)
def test_only_datasets_on_the_allow_list_are_accepted(checking, address, allowed, status):
    answer = checking(source(address), datasets_allowed=allowed)
    assert answer.status_code == status
    if status == 403:
        assert_problem(answer, 403, "prompts.more.source", ", ".join(allowed) or "none")


def test_only_files_below_the_allowed_folder_are_accepted(checking, tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "inside-not"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "a.csv").write_text("goal\nx\n")
    (inside / "out").symlink_to(outside)
    (inside / "link.csv").symlink_to(outside / "a.csv")
    assert checking(source(f"file:{inside}/a.csv"), files_allowed=inside).status_code == 200
    assert checking(source(f"file:{inside}/x/../a.csv"), files_allowed=inside).status_code == 200
    refused = [
        f"{outside}/a.csv",
        f"{inside}/../inside-not/a.csv",
        f"{inside}/out/a.csv",
        f"{inside}/link.csv",
        "a.csv",
        "inside/a.csv",
        "../inside/a.csv",
        f"~/{inside}/a.csv",
        "/etc/passwd",
        f" {inside}/a.csv",
        f"file://{inside}/a.csv",
    ]
    for address in refused:
        answer = checking(source(f"file:{address}"), files_allowed=inside)
        assert_problem(answer, 403, "prompts.more.source", str(inside))
        assert_problem(checking(source(f"file:{address}")), 403, "allowed: none")


def test_a_file_name_with_nul_is_rejected(checking, tmp_path):
    answer = checking(source(f"file:{tmp_path}/a\x00.csv"), files_allowed=tmp_path)
    assert answer.status_code in (403, 422)


def test_too_many_prompts_and_unlimited_sources_are_rejected(checking, tmp_path):
    assert checking(SPEC, job_prompts=16).status_code == 200
    assert_problem(checking(SPEC, job_prompts=15), 413, "16 requested", "allows 15", "`limit`")
    unlimited = {**SPEC, "prompts": {name: {"source": f"builtin:{name}"} for name in SPEC["prompts"]}}
    assert checking(unlimited, job_prompts=512).status_code == 200
    assert_problem(checking(unlimited, job_prompts=511), 413)
    for address, settings in (
        ("hub:a/b", {"datasets_allowed": ["a/b"]}),
        (f"file:{tmp_path}/a.csv", {"files_allowed": tmp_path}),
    ):
        assert_problem(checking(source(address, limit=None), **settings), 413, "prompts.more.limit", "is needed")
        assert_problem(checking(source(address, limit=10**9), **settings), 413, "1000000016")


def test_the_assumed_size_of_a_built_in_set_is_its_real_size(checking):
    """The assumed number of prompts without a limit must not be smaller than the real one."""
    for name in ("harmful", "harmless", "nouns"):
        n = len(read_prompts(name, PromptSetSpec(source=f"builtin:{name}"), Path()))
        spec = {**SPEC, "prompts": {"some": {"source": f"builtin:{name}"}}, "contrasts": {}}
        assert checking(spec, job_prompts=n).status_code == 200
        assert_problem(checking(spec, job_prompts=n - 1), 413)


def test_the_number_of_sentences_is_limited(checking):
    sentences = [f"sentence {number}" for number in range(65)]
    assert checking({**SPEC, "words": {"sentences": sentences[:64]}}).status_code == 200
    assert_problem(checking({**SPEC, "words": {"sentences": sentences}}), 413, "words.sentences: 65 given, 64 allowed")


@each(
    "change, message",
    [
        ({"unknown": 1}, "unknown: unknown field, given 1; allowed: name, model, prompts"),
        ({"store": "/elsewhere"}, "store: unknown field"),
        ({"model": {"id": "a/b", "place": "x"}}, "model.place: unknown field"),
        ({"model": 1}, "model"),
        ({"model": None}, "model"),
        ({"prompts": []}, "prompts"),
        ({"prompts": {"Bad Name": {"source": "builtin:nouns"}}}, "a name begins with a letter from a to z"),
        ({"prompts": {"../x": {"source": "builtin:nouns"}}}, "a name begins with a letter from a to z"),
        ({"prompts": {"a\n": {"source": "builtin:nouns"}}}, "a name begins with a letter from a to z"),
        ({"prompts": {"more": {"source": "words:sentences"}}}, "the kind `words` is reserved"),
        ({"prompts": {"more": {"source": "http://evil.com/x.csv"}}}, "source"),
        ({"analyses": ["nobody"]}, "allowed: separation"),
        ({"analyses": []}, "analyses"),
        ({"contrasts": {"refusal": {"positive": "nobody", "negative": "harmless"}}}, "harmful, harmless"),
        ({"gram": {"samples": 10**30}}, "gram.samples"),
        ({"gram": {"samples": -1}}, "gram.samples"),
        ({"capture": {"layers": [-1]}}, "capture.layers"),
        ({"capture": {"sites": ["nowhere"]}}, "capture.sites"),
        ({"capture": {"positions": [0]}}, "positions count from the end"),
        ({"heads": {"vectors": 1.5}}, "heads.vectors"),
    ],
)
def test_the_error_for_an_invalid_spec_names_field_value_and_allowed_values(checking, change, message):
    assert_problem(checking({**SPEC, **change}), 422, message)


@each(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"text"',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"model": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"\xff\xfe{}",
        b'{"name": "\xff"}',
        b'{"model": {"id": "a/b"}, "prompts": {}, "name": ' + b"9" * 5000 + b"}",
        b'{"\\ud800": 1}',
        b'{"model": {"id": "\\ud800/b"}, "prompts": {}}',
        b'{"model": {"id": "a/b"}, "prompts": {"\\ud800": {"source": "builtin:nouns"}}}',
        b'{"model": {"id": "a/b"}, "prompts": {"a": {"source": "builtin:nouns", "where": [1]}}}',
        b'{"model": NaN, "prompts": Infinity}',
        b'{"model": {"id": "a/b"}, "prompts": {"a": {"source": "builtin:nouns", "limit": NaN}}}',
        b'{"model": {"id": "a/b"}, "prompts": {"a": {"source": "builtin:nouns", "limit": 1e400}}}',
        b'{"model": {"id": "a/b"}, "prompts": {"a": {"source": "builtin:nouns", "limit": 1e30}}}',
        b'{"model": {"id": "a/b"}, "prompts": {"a": {"source": "builtin:nouns",'
        b' "draw": {"test_size": NaN, "random_state": 0}}}}',
    ],
)
def test_a_body_that_is_not_a_spec_is_rejected(checking, content):
    answer = checking(content)
    assert answer.status_code in (400, 413, 422), answer.text
    assert_problem(answer, answer.status_code)


@pytest.mark.parametrize(
    "content",
    [
        orjson.dumps(SPEC).replace(b'"model"', b'"model": {"id": "/etc"}, "model"', 1),
        orjson.dumps(SPEC)[:-1] + b', "analyses": ["gram"]}',
        orjson.dumps(SPEC).replace(b'"limit":8', b'"limit":8,"where":{"a":NaN}', 1),
        orjson.dumps(SPEC).replace(b'"limit":8', b'"limit":8,"where":{"a":-Infinity}', 1),
    ],
)
def test_an_ambiguous_spec_is_rejected(checking, content):
    """JSON stores NaN as null, so the job would run another spec than the one with its digest."""
    assert_problem(checking(content), 422)


def test_a_label_that_is_not_unicode_is_rejected(checking):
    assert_problem(checking(json.dumps({**SPEC, "name": "\ud800"}).encode()), 422)


@pytest.mark.parametrize("where", ['{"\\ud800": 1}', '{"a": "\\ud800"}'])
def test_a_filter_that_is_not_unicode_is_rejected(checking, where):
    content = json.dumps(SPEC).replace('"limit": 8', f'"limit": 8, "where": {where}', 1)
    assert_problem(checking(content.encode()), 422)


def test_a_huge_limit_is_rejected(checking):
    prompts = {name: {"source": f"builtin:{name}", "limit": int("9" * 4300)} for name in ("harmful", "harmless")}
    content = json.dumps({**SPEC, "prompts": prompts}).encode()
    assert_problem(checking(content), 422, "prompts.harmful.limit", "less than or equal to 1000000000")


def test_the_schema_of_specs_describes_every_field(checking, tmp_path):
    schema = client_of(tmp_path).get("/v1/spec.schema.json").json()
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) >= {"name", "model", "prompts", "capture", "contrasts", "analyses"}
    for definition in schema["$defs"].values():
        for field, of_field in definition.get("properties", {}).items():
            assert of_field.get("description"), field


def test_the_time_for_many_unknown_keys_is_bounded(checking):
    """Comparing each key with all other keys would take minutes for a body of this length."""
    content = json.dumps({f"key{number}": 1 for number in range(60_000)}).encode()
    answer = checking(content)
    assert_problem(answer, 422, "and 59", "more")
    assert len(answer.content) < 10_000


@pytest.mark.parametrize(
    "changes",
    [
        {"heads": {"offsets": list(range(1, 100))}},
        {"heads": {"vectors": 1000}},
        {"words": {"tokens": 1000}},
        {"capture": {"batch_tokens": 10**9}},
    ],
)
def test_excessive_sizes_are_rejected(checking, changes):
    assert_problem(checking({**SPEC, **changes}), 413, "are allowed over HTTP")


@pytest.mark.parametrize("address", ["hub:/etc/secret", "hub:./secret", "hub:~/secret"])
def test_a_local_folder_is_no_dataset_of_the_hub(checking, address):
    assert_problem(checking(source(address), datasets_allowed=["*"]), 422, "a file or folder here is file:PATH")


UPLOAD = {"Content-Type": "application/octet-stream"}


def uploaded(client, content, kind="txt"):
    answer = client.post("/v1/uploads", params={"type": kind}, content=content, headers=UPLOAD)
    assert answer.status_code == 201, answer.text
    assert answer.json()["bytes"] == len(content)
    return answer.json()["source"]


def checked(client, address, **more):
    return client.post(
        "/v1/spec/check", json={**SPEC, "prompts": {**SPEC["prompts"], "more": {"source": address, **more}}}
    )


def test_an_uploaded_file_is_a_source_and_its_lines_are_counted(tmp_path):
    client = client_of(tmp_path, job_prompts=600)
    few, many = uploaded(client, b"one\ntwo\n"), uploaded(client, b"x\n" * 600)
    assert checked(client, few).status_code == 200
    assert read_prompts("mine", PromptSetSpec(source=few), Path(), str(tmp_path)) == ["one", "two"]
    assert_problem(checked(client, many), 413, "allows 600")
    assert checked(client, many, limit=5).status_code == 200
    listed = uploaded(client, json.dumps(["a, b, c"] * 80).encode(), "json")
    assert checked(client, listed).status_code == 200
    assert_problem(checked(client, uploaded(client, b"{", "json")), 422, "is not a JSON list")
    for table in (uploaded(client, b"PAR1", "parquet"), uploaded(client, gzip.compress(b"x\n" * 600), "txt.gz")):
        assert_problem(checked(client, table), 413, "prompts.more.limit: not given")
        assert checked(client, table, limit=9).status_code == 200
    assert read_prompts("mine", PromptSetSpec(source=table, limit=2), Path(), str(tmp_path)) == ["x", "x"]


def test_a_large_json_file_is_not_parsed_by_the_service_and_needs_a_limit(tmp_path):
    client = client_of(tmp_path)
    lists = uploaded(client, b"[" + b"[]," * 2**19 + b"[]]", "json")  # as Python's lists, 34 MB
    assert_problem(checked(client, lists), 413, "prompts.more.limit: not given, but it is needed", "large .json file")
    assert checked(client, lists, limit=9).status_code == 200


def test_an_upload_that_the_store_lacks_is_refused(tmp_path):
    client = client_of(tmp_path)
    assert_problem(checked(client, f"upload:{'0' * 64}.csv"), 422, "has no upload 000000000000…; upload the file again")
    for name in ("../run.json", f"{'0' * 64}.exe", f"{'0' * 63}.csv", f"{'0' * 64}.csv/x"):
        assert_problem(checked(client, f"upload:{name}"), 422, "the name that the service returned")


def test_uploads_are_limited_in_size_type_and_content(tmp_path):
    client = client_of(tmp_path, upload_bytes=10)

    def send(content, headers=UPLOAD, **params):
        return client.post("/v1/uploads", params=params, content=content, headers=headers)

    assert_problem(send(b"x" * 11, type="csv"), 413, "longer than the limit of 10 bytes; split the file")
    assert_problem(send(b"", type="csv"), 422, "the body is empty")
    assert_problem(send(b"x", type="exe"), 422, "type")
    assert_problem(send(b"x"), 422, "type")
    assert_problem(send(b"{}", headers=JSON, type="csv"), 415, "allowed: application/octet-stream")
    assert not (tmp_path / "uploads").exists()
    assert_problem(
        client_of(tmp_path, upload_bytes=0).post("/v1/uploads?type=csv", content=b"x", headers=UPLOAD), 413, "0"
    )


def test_prompts_in_a_spec_are_counted_and_its_id_is_that_of_the_upload(tmp_path):
    client = client_of(tmp_path, job_prompts=600)
    texts = ["a, b", "c"]
    inline = checked(client, "inline", texts=texts)
    assert inline.status_code == 200
    source = uploaded(client, json.dumps(texts, ensure_ascii=False).encode(), "json")
    assert inline.json()["id"] == checked(client, source).json()["id"]
    assert_problem(checked(client, "inline", texts=["x"] * 601), 413, "allows 600")
    assert_problem(checked(client, "inline"), 422, "texts must list the prompts")
    assert_problem(checked(client, source, texts=texts), 422, "set source: inline")
