"""The switch of the rehearsal on several hosts: it cuts a host off in the middle of a write to a bucket."""

import importlib.util
import json
import re
import socket
import threading
from pathlib import Path

import pytest
from support.faulty_bucket import ENVIRONMENT

from theodolite.store.commits import commit_shard
from theodolite.store.objects import open_location
from theodolite.store.records import Commit

PROGRAM = Path(__file__).parents[2] / "deploy/rehearsal/switch.py"
HEADERS = b"\x00" * 66
"""As many bytes as the headers of Ethernet, IP and TCP in front of a frame's data."""

SEGMENT_BYTES = 1448
CONTENT = bytes(100_000)
DELETED = "<DeleteResult><Deleted><Key>x</Key></Deleted></DeleteResult>"
COPIED = '<CopyObjectResult><ETag>"1"</ETag></CopyObjectResult>'


@pytest.fixture
def cut(tmp_path):
    specification = importlib.util.spec_from_file_location("switch", PROGRAM)
    switch = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(switch)
    return switch.Cut(tmp_path / "order")


def order(cut, tmp_path, interface="t-host2"):
    (tmp_path / "order").write_text(interface)
    cut.look()


def frames(request: bytes) -> list[bytes]:
    return [HEADERS + request[at : at + SEGMENT_BYTES] for at in range(0, len(request), SEGMENT_BYTES)]


class Bucket:
    """Accept each request; keep its bytes."""

    def __init__(self):
        self.requests = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            connection, _ = self._server.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection):
        received = b""
        while data := connection.recv(65_536):
            received += data
            head, found, body = received.partition(b"\r\n\r\n")
            if not found:
                continue
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            if len(body) >= (int(length[1]) if length else 0):
                self.requests.append(received)
                text = DELETED if received.startswith(b"POST") else COPIED
                received = b""
                connection.sendall(
                    f'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: {len(text)}\r\n\r\n{text}'.encode()
                )


@pytest.fixture(scope="module")
def requests():
    """The requests with which a replica commits a shard to a bucket, in order."""
    bucket = Bucket()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT": bucket.url}.items():
            patch.setenv(name, value)
        location = open_location("s3://surveys/store/runs/a-1")
        bounds = {"index": 3, "start": 12, "stop": 16, "batches": [[12, 13, 14, 15]]}
        commit = Commit(run_id="a-1", prompt_set="set", **bounds, attempt="f00", checksums={"resid_mid": "0"})
        commit_shard(location, commit, {"resid_mid": CONTENT})
    return bucket.requests


def test_a_host_is_cut_off_behind_the_first_frame_of_a_write(cut, tmp_path, requests):
    order(cut, tmp_path)
    first, *others = frames(requests[0])
    assert cut.passes("t-host2", first), "the bucket sees the request"
    assert others
    assert not any(cut.passes("t-host2", frame) for frame in others)
    assert not cut.reaches("t-host2")
    said = json.loads((tmp_path / "order.cut").read_text())
    assert said["path"] == "/surveys/store/runs/a-1/pending/set/00003.f00/resid_mid"
    assert 0 <= said["arrived_bytes"] < said["body_bytes"] == len(CONTENT)


def test_other_hosts_and_other_requests_cut_nothing(cut, tmp_path, requests):
    order(cut, tmp_path)
    for request in requests:
        assert all(cut.passes("t-host1", frame) for frame in frames(request))
    assert len(requests) > 2
    for request in requests[1:]:  # the commit record, and the move
        assert all(cut.passes("t-host2", frame) for frame in frames(request))
    assert cut.reaches("t-host2")
    assert not (tmp_path / "order.cut").exists()


def test_a_write_that_is_one_frame_cuts_nothing(cut, tmp_path, requests):
    order(cut, tmp_path)
    head = requests[0].partition(b"\r\n\r\n")[0].replace(str(len(CONTENT)).encode(), b"4")
    assert cut.passes("t-host2", HEADERS + head + b"\r\n\r\nfour")
    assert cut.reaches("t-host2")


def test_a_host_is_connected_again_without_the_order(cut, tmp_path, requests):
    first = frames(requests[0])[0]
    assert cut.passes("t-host2", first)
    assert cut.reaches("t-host2"), "nothing was ordered"
    order(cut, tmp_path)
    cut.passes("t-host2", first)
    cut.look()
    assert not cut.reaches("t-host2"), "it stays cut off"
    assert cut.reaches("t-host1")
    (tmp_path / "order").unlink()
    cut.look()
    assert cut.reaches("t-host2")
    assert cut.passes("t-host2", first)
