"""Check exported files: the bytes of the command line, media types, names, ETags and errors."""

import json

from support.each import each
from support.serving import assert_problem
from typer.testing import CliRunner

from theodolite.api.encoding import JSON
from theodolite.api.exports import BINARY
from theodolite.export import FORMATS
from theodolite_jobs.cli import app

PATH = "/v1/runs/tiny-0/export/refusal"


@each("format", FORMATS)
@each("layers", [[], [3], [3, 2]])
def test_a_file_has_the_bytes_of_the_command_line(client, library, tmp_path, monkeypatch, format, layers):
    monkeypatch.chdir(tmp_path)
    choices = {"site": "resid_pre", "position": -2, "format": format, "layer": layers}
    answer = client.get(PATH, params=choices)
    assert answer.status_code == 200, answer.text
    options = ["--contrast", "refusal", "--site", "resid_pre", "--position", "-2", "--format", format]
    options += [word for layer in layers for word in ("--layer", str(layer))]
    command = CliRunner().invoke(app, ["run", "export", "tiny-0", *options, "--store", library])
    assert command.exit_code == 0, command.output
    name = command.output.strip()
    assert (tmp_path / name).read_bytes() == answer.content
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    assert answer.headers["content-type"] == (JSON if name.endswith(".json") else BINARY)
    if format == "npy":
        metadata = client.get(PATH, params={**choices, "format": "json"})
        assert (tmp_path / f"{name}.json").read_bytes() == metadata.content


def test_the_defaults_are_those_of_the_command_line(client):
    whole = client.get(PATH, params={"format": "json"}).json()
    assert (whole["site"], whole["position"], whole["layer"]) == ("resid_pre", -1, [0, 1, 2, 3])
    assert client.get(PATH).content[8:].startswith(b'{"__metadata__"')  # safetensors


@each("format", FORMATS)
def test_a_file_that_the_client_has_is_not_sent_again(client, format):
    answer = client.get(PATH, params={"format": format}, headers={"Accept-Encoding": "gzip"})
    etag = answer.headers["etag"]
    assert etag.endswith(f'-{format}"')
    assert not etag.startswith("W/")  # the bytes are those of the file, also for a client that accepts gzip
    again = client.get(PATH, params={"format": format}, headers={"If-None-Match": etag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    other = next(one for one in FORMATS if one != format)
    assert client.get(PATH, params={"format": other}, headers={"If-None-Match": etag}).status_code == 200


def test_the_etag_depends_on_every_group_that_is_read(client, library, monkeypatch):
    etag = client.get(PATH).headers["etag"]
    with open(f"{library}/runs/tiny-0/COMPLETE") as file:
        groups = json.load(file)["groups"]
    for name in ("curves", "directions", "moments"):
        changed = {**groups, name: "other"}
        monkeypatch.setattr("theodolite.api.run_lookup.finished_groups", lambda _run, changed=changed: changed)
        assert client.get(PATH, headers={"If-None-Match": etag}).status_code != 304, name


def test_head_has_the_headers_of_get(client):
    got, head = client.get(PATH), client.head(PATH)
    names = ("content-disposition", "content-type", "etag", "content-length")
    assert [head.headers[name] for name in names] == [got.headers[name] for name in names]
    assert head.content == b""


@each(
    "path, status, part",
    [
        (
            f"{PATH}?format=onnx",
            422,
            "format: given 'onnx'; input should be 'safetensors', 'npy', 'gguf', 'vllm-lens' or 'json'",
        ),
        (f"{PATH}?site=attn_out", 422, "site: tiny-0 has no 'attn_out'; it has resid_pre, resid_mid"),
        (f"{PATH}?layer=4", 422, "layer: tiny-0 has no 4; it has 0 to 3"),
        (f"{PATH}?layer=first", 422, "layer.0: given 'first'"),
        (f"{PATH}?layer=-1", 422, "layer.0: given '-1'"),
        (f"{PATH}?position=-3", 422, "position: tiny-0 has no -3; it has -2, -1"),
        (f"{PATH}?position=0", 422, "position: given '0'"),
        (f"{PATH}?layers=1", 422, "layers: there is no such parameter; allowed: site, layer, position, format"),
        (f"{PATH}?format=gguf&layer=1", 422, "allowed at resid_pre: layer 2 and above"),
        (f"{PATH}?format=gguf&site=resid_mid", 422, "allowed: resid_pre and resid_post"),
        ("/v1/runs/tiny-0/export/other", 422, "contrast: tiny-0 has no 'other'; it has refusal, subject"),
        ("/v1/runs/tiny-0/export/subject?position=-2", 422, "subject has no direction at resid_pre of any layer"),
        ("/v1/runs/tiny-9/export/refusal", 404, "there is no run 'tiny-9'"),
        ("/v1/runs/captured-0/export/refusal", 409, "captured-0 is not complete"),
    ],
)
def test_an_invalid_request_returns_a_problem(client, path, status, part):
    answer = client.get(path)
    assert_problem(answer, status, part)
    assert "content-disposition" not in answer.headers
