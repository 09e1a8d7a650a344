"""Attack the service without a credential: half-sent heads, half-sent bodies and a flood; does it still answer?

The service (`theodolite serve`) runs on one core, over an empty store with one bearer token. The attackers keep 2,000
connections with half a head and 200 requests with half a body open, and open each one again when the service closes
it. Besides, `--flood` connections send one request after the other, without a pause. Meanwhile one client requests
`/healthz` ten times in a second, over a new connection each time.

The last line is one JSON object. Usage: python benchmarks/siege.py --help
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np

from theodolite.api.credentials import create_credential

THEODOLITE = [sys.executable, "-c", "from theodolite_jobs.cli import main; main()"]
HALF_HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
HALF_BODY = (
    b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    + b" " * 900_000
)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
FLOOD = b"GET /v1/runs HTTP/1.1\r\nHost: localhost\r\n\r\n"


def main() -> None:
    options = measuring.read_options(
        "Attack the service without a credential; print the latency of /healthz and the service's memory as JSON.",
        heads=(2000, "connections with half a head"),
        bodies=(200, "requests with half a body"),
        flood=(16, "connections that send one request after the other"),
        seconds=(30.0, "duration of the attack"),
    )
    with tempfile.TemporaryDirectory(prefix="theodolite-siege-") as store:
        create_credential(store, ["read"])
        result = measure(store, options.heads, options.bodies, options.flood, options.seconds)
    measuring.publish(result, options.out)


def measure(store: str, heads: int, bodies: int, flood: int, seconds: float) -> dict[str, Any]:
    """Return what a client saw during the attack, and the memory of the service before and after."""
    cores = sorted(os.sched_getaffinity(0))
    service = subprocess.Popen(
        [*THEODOLITE, "serve", "--store", store, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores[:1]),
    )
    try:
        assert service.stdout is not None
        port = int(re.split(r"http://[^ ]*:", service.stdout.readline())[1].split()[0])
        os.sched_setaffinity(0, cores[1:] or cores)
        before = measuring.memory_bytes("VmHWM", service.pid)
        seen = asyncio.run(siege(port, heads, bodies, flood, seconds))
        after = measuring.memory_bytes("VmHWM", service.pid)
    finally:
        service.send_signal(signal.SIGINT)
        _, log = service.communicate()
    return {**seen, "resident_bytes_before": before, "resident_bytes": after, "log_bytes": len(log)}


async def siege(port: int, heads: int, bodies: int, flood: int, seconds: float) -> dict[str, Any]:
    """Attack for some seconds; return the latencies of /healthz, and how many requests the flood sent."""
    counts = {"flood": 0, "reopened": 0}
    attackers = [
        *(asyncio.create_task(hold_open(port, HALF_HEAD, counts)) for _ in range(heads)),
        *(asyncio.create_task(hold_open(port, HALF_BODY, counts)) for _ in range(bodies)),
        *(asyncio.create_task(send_on(port, counts)) for _ in range(flood)),
    ]
    await asyncio.sleep(3)  # until all are connected
    loop = asyncio.get_running_loop()
    latencies, failures, end = [], 0, loop.time() + seconds
    while loop.time() < end:
        begin = loop.time()
        try:
            answer = await asyncio.wait_for(ask(port), 10)
            failures += not answer.startswith(b"HTTP/1.1 200")
        except (OSError, TimeoutError):
            failures += 1
        latencies.append(loop.time() - begin)
        await asyncio.sleep(max(0.0, 0.1 - latencies[-1]))
    for task in attackers:
        task.cancel()
    await asyncio.gather(*attackers, return_exceptions=True)
    return {
        "heads": heads,
        "bodies": bodies,
        "flood_connections": flood,
        "flood_requests_per_second": counts["flood"] / (seconds + 3),
        "connections_opened_again": counts["reopened"],
        "health_requests": len(latencies),
        "health_failures": failures,
        "health_p50_milliseconds": float(np.quantile(latencies, 0.5)) * 1e3,
        "health_max_milliseconds": max(latencies) * 1e3,
    }


async def ask(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEALTH)
    answer = await reader.read()
    writer.close()
    return answer


async def hold_open(port: int, sent: bytes, counts: dict[str, int]) -> None:
    """Send a part of a request and wait; begin again when the service closes the connection."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            while await reader.read(65536):
                pass
            writer.close()
        counts["reopened"] += 1
        await asyncio.sleep(0.5)


async def send_on(port: int, counts: dict[str, int]) -> None:
    """Send one request after the other."""
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while True:
                writer.write(FLOOD)
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: (\d+)", head.lower())
                await reader.readexactly(int(length[1]) if length else 0)
                counts["flood"] += 1


if __name__ == "__main__":
    main()
