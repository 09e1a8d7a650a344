"""Start the service on one core, and send it requests over open connections."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from measuring import memory_bytes

THEODOLITE = [sys.executable, "-c", "from theodolite_jobs.cli import main; main()"]


@dataclass
class Service:
    """A running service; `log` is complete after its end."""

    port: int
    process: int
    log: str = ""

    @property
    def peak_memory_bytes(self) -> int | None:
        """The most memory that the service has held."""
        return memory_bytes("VmHWM", self.process)


@contextmanager
def service_on_one_core(store: str, requests_per_minute: int) -> Iterator[Service]:
    """Yield a service (`theodolite serve`) over a store; this process uses the other cores from now on."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*THEODOLITE, "serve", "--store", store, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "THEODOLITE_REQUESTS_PER_MINUTE": str(requests_per_minute)},
            preexec_fn=lambda: os.sched_setaffinity(0, cores[:1]),
        )
        try:
            assert process.stdout is not None
            listens = process.stdout.readline()
            service = Service(int(re.split(r"http://[^ ]*:", listens)[1].split()[0]), process.pid)
            os.sched_setaffinity(0, cores[1:] or cores)
            yield service
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
        log.seek(0)
        service.log = log.read()


def request_of(path: str, headers: dict[str, str] | None = None) -> bytes:
    """Return a request; its connection stays open after the response unless a header says otherwise."""
    own = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{own}\r\n".encode()


async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[str, bytes]:
    """Return the head and the body of the response.

    Raises:
        asyncio.IncompleteReadError: the service closed the connection before the end of the response.
    """
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = re.search(r"^content-length: (\d+)", head, re.IGNORECASE | re.MULTILINE)
    return head, await reader.readexactly(int(length[1])) if length else b""
