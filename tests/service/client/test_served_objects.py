"""Check how the client reads the objects of a run: how many requests, and what damage, deletion and new results do."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from support.analysing import analyse
from support.each import each
from support.listening import served
from support.serving import CONTRASTS, copied

import theodolite
from theodolite.api.credentials import create_credential
from theodolite.client import Client
from theodolite.errors import (
    ResultsNotFoundError,
    RunDamagedError,
    RunNotFoundError,
    ServiceError,
    StoreError,
    StoreVersionError,
)
from theodolite.run_reader import RunReader
from theodolite.store.removal import remove_run
from theodolite.store.runs import open_run

AUROC = "results.zarr/separation/auroc/c"


@pytest.fixture
def own(shelf, tmp_path):
    """A client of a service over its own store, and the folder of the run `tiny-0`, which the test changes."""
    store = copied(shelf, tmp_path, "tiny-0", with_activations=True)
    with served(store) as url, closing(Client(url)) as client:
        yield client, tmp_path / "runs" / "tiny-0"


@pytest.fixture
def asked(monkeypatch):
    """The paths of all requests of clients, below the run, in order."""
    paths = []
    send = Client._send

    def counted(client, method, path, request):
        paths.append(path.partition("/tiny-0")[2].removeprefix("/"))
        return send(client, method, path, request)

    monkeypatch.setattr(Client, "_send", counted)
    return paths


def test_both_readers_are_one(service, shelf):
    assert isinstance(service.run("tiny-0"), RunReader)
    assert dir(service.run("tiny-0")) == dir(theodolite.open_run(shelf, "tiny-0"))


QUESTIONS = {
    "curve": (lambda run: run.curves("auroc"), 45),
    "direction": (lambda run: run.direction("refusal", "resid_pre", 1), 45),
    "labels": (lambda run: run.labels(), 30),
    "group": (lambda run: run.group("gram"), 80),
    "table": (lambda run: run.table("growth"), 3),
}


@each("question", list(QUESTIONS))
def test_a_result_takes_few_requests_and_then_one(service, asked, question):
    ask, most = QUESTIONS[question]
    asked.clear()
    run = service.run("tiny-0")
    assert asked == ["objects/run.json"]
    ask(run)
    first = [path for path in asked if path.startswith("objects/")]
    assert len(first) <= most
    fetched = [path for path in first if path != "objects/COMPLETE"]
    assert len(fetched) == len(set(fetched)) > 1
    asked.clear()
    ask(run)
    assert [path for path in asked if path] == ["objects/COMPLETE"]


def test_a_statistic_is_read_with_its_group_but_without_the_vectors(service, asked):
    run = service.run("tiny-0")
    run.curves("norm_mean")
    assert any("/moments/norm_mean/" in path for path in asked)
    assert not any(f"/moments/{name}/" in path for path in asked for name in ("mean", "m2", "minimum", "maximum"))
    asked.clear()
    run.curves("norm_std")
    assert asked == ["objects/COMPLETE"]


@each(
    "ask",
    [
        lambda run: run.head(0, 0),
        lambda run: run.figure("curves.refusal.-1"),
        lambda run: run.sections(),
        lambda run: run.section("curves"),
        lambda run: run.conclusion(),
        lambda run: run.prompts("harmful"),
        lambda run: run.prompt("harmful", 3),
        lambda run: run.describe(),
    ],
)
def test_what_the_service_draws_takes_one_request(service, shelf, asked, ask, tmp_path):
    run = service.run("heads-0" if ask.__code__.co_names == ("head",) else "tiny-0")
    asked.clear()
    ask(run)
    assert len(asked) == 1
    assert not asked[0].startswith("objects/")


def test_an_export_asks_for_the_file_and_its_metadata(service, asked, tmp_path):
    run = service.run("tiny-0")
    asked.clear()
    run.export("refusal", output=tmp_path / "vector.safetensors")
    assert asked == ["export/refusal"] * 2


def test_an_object_that_is_damaged_on_its_way_raises(service, monkeypatch):
    """The service compares what it reads, and the client compares what arrives."""
    run, send = service.run("tiny-0"), Client._send

    def flipped(client, method, path, request):
        response = send(client, method, path, request)
        if AUROC in path:
            response._content = response.content[:-1] + bytes([response.content[-1] ^ 1])
        return response

    monkeypatch.setattr(Client, "_send", flipped)
    with pytest.raises(RunDamagedError, match=f"tiny-0: {AUROC}.* its bytes are not those that were written"):
        run.curves("auroc")
    assert run.curves("cosine_of_means")["value"].size


@each("record", ["run.json", "COMPLETE"])
def test_a_record_that_is_damaged_on_its_way_raises(service, monkeypatch, record):
    send = Client._send

    def flipped(client, method, path, request):
        response = send(client, method, path, request)
        if path.endswith(record):
            response._content = response.content.replace(b"tiny-0", b"tiny-1")
        return response

    monkeypatch.setattr(Client, "_send", flipped)
    with pytest.raises(RunDamagedError, match=f"tiny-0: {record} differs from its own checksum"):
        service.run("tiny-0").curves()


def test_a_damaged_store_raises_the_same_errors_as_without_a_service(own):
    client, folder = own
    run, near = client.run("tiny-0"), theodolite.open_run(folder.parents[1], "tiny-0")
    chunk = next(path for path in (folder / AUROC).rglob("*") if path.is_file())
    chunk.write_bytes(chunk.read_bytes()[:-1])
    texts = []
    for one in (run, near):
        with pytest.raises(RunDamagedError, match="theodolite run analyse tiny-0") as raised:
            one.curves("auroc")
        texts.append(str(raised.value))
    assert texts[0] == texts[1]
    (folder / "run.json").write_text("{}")
    with pytest.raises(RunDamagedError, match=r"tiny-0: run\.json has no checksum"):
        run.curves("cosine_of_means")


def test_results_that_are_computed_later_are_read(own):
    client, folder = own
    run = client.run("tiny-0")
    before = run.curves("cosine_of_means")
    assert before["contrast"].values.tolist() == ["refusal", "subject"]
    more = {**CONTRASTS, "more": {"positive": "nouns", "negative": "harmful", "paired": False}}
    analyse(open_run(str(folder.parents[1]), "tiny-0"), more, None, lambda *_: None, {"separation", "travel"})
    after = run.curves("cosine_of_means")
    assert after["contrast"].values.tolist() == ["refusal", "subject", "more"]
    np.testing.assert_array_equal(after["value"][:2], before["value"])


def test_results_that_are_computed_again_between_two_objects_are_not_called_damaged(own, monkeypatch):
    client, folder = own
    run, send = client.run("tiny-0"), Client._send
    more = {**CONTRASTS, "more": {"positive": "nouns", "negative": "harmful", "paired": False}}

    def computing(client, method, path, request):
        response = send(client, method, path, request)
        if path.endswith("COMPLETE"):
            monkeypatch.undo()
            analyse(open_run(str(folder.parents[1]), "tiny-0"), more, None, lambda *_: None, {"separation"})
        return response

    monkeypatch.setattr(Client, "_send", computing)
    with pytest.raises(StoreError, match="results 'curves' are being computed again; retry"):
        run.curves("cosine_of_means")
    assert "more" in run.curves("cosine_of_means")["contrast"].values.tolist()


def test_a_run_that_is_removed_while_it_is_read_raises(own):
    client, folder = own
    run = client.run("tiny-0")
    run.curves("auroc")
    remove_run(open_run(str(folder.parents[1]), "tiny-0"))
    for ask in (lambda: run.curves("auroc"), lambda: run.table("growth"), run.describe):
        with pytest.raises(RunNotFoundError, match="there is no run 'tiny-0'"):
            ask()


def test_a_run_that_is_removed_between_two_objects_raises(own, monkeypatch):
    client, folder = own
    run, send = client.run("tiny-0"), Client._send

    def removing(client, method, path, request):
        response = send(client, method, path, request)
        if path.endswith("COMPLETE"):
            remove_run(open_run(str(folder.parents[1]), "tiny-0"))
        return response

    monkeypatch.setattr(Client, "_send", removing)
    with pytest.raises(RunNotFoundError, match="there is no run 'tiny-0'"):
        run.curves("auroc")


def test_results_of_another_version_raise(service, monkeypatch):
    from theodolite.groups import GROUPS

    run = service.run("tiny-0")
    monkeypatch.setattr("theodolite.store.result_reader.GROUPS", {**GROUPS, "gram": replace(GROUPS["gram"], version=2)})
    with pytest.raises(StoreVersionError, match="results 'gram' are of version"):
        run.group("gram")


def test_a_token_without_the_scope_reads_nothing(shelf, tmp_path):
    store = copied(shelf, tmp_path, "tiny-0")
    tokens = [create_credential(store, [scope])[0] for scope in ("read", "submit")]
    with served(store, tokenless=False) as url:
        with closing(Client(url, tokens[0])) as client:
            assert client.run("tiny-0").direction("refusal", "resid_pre", 1).size == 8
        for token in (tokens[1], None):
            with closing(Client(url, token)) as client, pytest.raises(ServiceError, match=r"Client\(url, token=…\)"):
                client.run("tiny-0")


def test_activations_are_read_and_verified_in_ranges(shelf, tmp_path, asked, monkeypatch):
    store = copied(shelf, tmp_path, "tiny-0", with_activations=True)
    near = theodolite.open_run(store, "tiny-0")
    token, other = create_credential(store, ["read", "activations"])[0], create_credential(store, ["read"])[0]
    with served(store, tokenless=False) as url, closing(Client(url, token)) as client:
        run = client.run("tiny-0")
        for site in ("resid_mid", "resid_final"):
            xr.testing.assert_identical(run.activations("harmful", site), near.activations("harmful", site))
        for far, own in zip(run.batches("nouns", layer=2, size=4), near.batches("nouns", layer=2, size=4), strict=True):
            np.testing.assert_array_equal(far, own)
        asked.clear()
        one = run.activations("harmful", layer=1)
        assert not any("/resid_pre/" in path for path in asked)
        one.load()
        assert sum("/resid_pre/" in path for path in asked) == 3  # a range of each shard
        send = Client._send

        def flipped(client, method, path, request):
            response = send(client, method, path, request)
            if "/resid_pre/" in path:
                response._content = response.content[:-1] + bytes([response.content[-1] ^ 1])
            return response

        monkeypatch.setattr(Client, "_send", flipped)
        with pytest.raises(RunDamagedError, match="shard harmful/00000, resid_pre"):
            run.activations("harmful", layer=1).load()
        with closing(Client(url, other)) as refused, pytest.raises(ServiceError, match="need the scope activations"):
            refused.run("tiny-0").activations("harmful")


def test_a_run_without_results_says_so(service):
    with pytest.raises(ResultsNotFoundError, match="captured-0 has no finished results 'curves'; it has none"):
        service.run("captured-0").curves()
