"""Attack the service without a credential, with half-sent requests and a flood: does it answer?

The service (`theodolite serve`) runs on one core, over an empty store with one bearer token. First, 16 connections that
send their next request after each response measure the capacity. Then the attackers keep 2,000 connections with half a
head and 200 requests with half a body open, and open each one again when the service closes it. Over 1,000 more
connections they request the page's largest script and read nothing. Besides, a flood of requests without a token, some
of them for `/readyz`, is sent at twice the capacity, without waiting for the responses. Meanwhile one client requests
`/healthz` ten times in a second, over a new connection each time.

The last line is one JSON object. Usage: python benchmarks/siege.py --help
"""

import asyncio
import socket
import tempfile
from collections import Counter
from contextlib import suppress
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
from http_service import request_of, send, service_on_one_core

from theodolite.api.credentials import create_credential

HALF_HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
HALF_BODY = (
    b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    + b" " * 900_000
)
HEALTH = request_of("/healthz", {"Connection": "close"})
UNREAD = request_of("/static/plotly.min.js")
FLOOD, READY = request_of("/v1/runs"), request_of("/readyz")
FLOOD_CONNECTIONS = 64


def main() -> None:
    options = measuring.read_options(
        "Attack the service without a credential; print the latency of /healthz and the service's memory as JSON.",
        heads=(2000, "connections with half a head"),
        bodies=(200, "requests with half a body"),
        unread=(1000, "requests for the largest script, without reading the response"),
        seconds=(30.0, "duration of the attack"),
    )
    with tempfile.TemporaryDirectory(prefix="theodolite-siege-") as store:
        create_credential(store, ["read"])
        result = measure(store, options.heads, options.bodies, options.unread, options.seconds)
    measuring.publish(result, options.out)


def measure(store: str, heads: int, bodies: int, unread: int, seconds: float) -> dict[str, Any]:
    """Return what a client saw during the attack, and the memory of the service before and after."""
    with service_on_one_core(store) as service:
        capacity = asyncio.run(measure_capacity(service.port))
        before = service.peak_memory_bytes
        seen = asyncio.run(siege(service.port, heads, bodies, unread, 2 * capacity, seconds))
        after = service.peak_memory_bytes
    return {
        "heads": heads,
        "bodies": bodies,
        "unread": unread,
        "capacity_per_second": capacity,
        **seen,
        "resident_bytes_before": before,
        "resident_bytes": after,
        "log_bytes": len(service.log),
    }


async def measure_capacity(port: int, connections: int = 16, seconds: float = 3.0) -> float:
    """Return how many requests the service refuses in a second."""
    end, count = asyncio.get_running_loop().time() + seconds, 0

    async def send_on() -> None:
        nonlocal count
        connection = await asyncio.open_connection("127.0.0.1", port)
        while asyncio.get_running_loop().time() < end:
            await send(*connection, FLOOD)
            count += 1
        connection[1].close()

    await asyncio.gather(*(send_on() for _ in range(connections)))
    return count / seconds


async def siege(port: int, heads: int, bodies: int, unread: int, rate: float, seconds: float) -> dict[str, Any]:
    """Attack for some seconds; return the latencies of /healthz, and what the attackers did."""
    counts: Counter[str] = Counter()
    attackers = [
        *(asyncio.create_task(hold_open(port, HALF_HEAD, counts)) for _ in range(heads)),
        *(asyncio.create_task(hold_open(port, HALF_BODY, counts)) for _ in range(bodies)),
        *(asyncio.create_task(hold_unread(port, seconds)) for _ in range(unread)),
    ]
    await asyncio.sleep(3)  # until all are connected
    attackers.append(asyncio.create_task(flood(port, rate, counts)))
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    begin = loop.time()
    while loop.time() < begin + seconds:
        asked = loop.time()
        try:
            counts["health failures"] += not (await asyncio.wait_for(ask_health(port), 10)).startswith(b"HTTP/1.1 200")
        except (OSError, TimeoutError):
            counts["health failures"] += 1
        latencies.append(loop.time() - asked)
        await asyncio.sleep(max(0.0, 0.1 - latencies[-1]))
    took = loop.time() - begin
    for task in attackers:
        task.cancel()
    await asyncio.gather(*attackers, return_exceptions=True)
    return {
        "flood_target_per_second": rate,
        "flood_sent_per_second": counts["sent"] / took,
        "flood_refused_per_second": counts["refused"] / took,
        "half_sent_requests_opened_again": counts["opened again"],
        "health_requests": len(latencies),
        "health_failures": counts["health failures"],
        "health_p50_milliseconds": float(np.quantile(latencies, 0.5)) * 1e3,
        "health_max_milliseconds": max(latencies) * 1e3,
    }


async def ask_health(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEALTH)
    answer = await reader.read()
    writer.close()
    return answer


async def hold_open(port: int, sent: bytes, counts: Counter[str]) -> None:
    """Send a part of a request and wait; begin again when the service closes the connection."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            while await reader.read(65536):
                pass
            writer.close()
        counts["opened again"] += 1
        await asyncio.sleep(0.5)


async def hold_unread(port: int, seconds: float) -> None:
    """Request a file that the sockets' buffers cannot hold, and read nothing of the response."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        connection.setblocking(False)
        with suppress(OSError):
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
            await asyncio.get_running_loop().sock_sendall(connection, UNREAD)
            await asyncio.sleep(2 * seconds)


async def flood(port: int, rate: float, counts: Counter[str]) -> None:
    """Send requests at a rate over FLOOD_CONNECTIONS connections, and wait for no response; a quarter for /readyz."""
    loop = asyncio.get_running_loop()
    begin, due = loop.time(), 0
    open_writers: set[asyncio.StreamWriter] = set()
    async with asyncio.TaskGroup() as group:
        for _ in range(FLOOD_CONNECTIONS):
            group.create_task(stay_connected(port, open_writers, counts))
        while True:
            due_now = int((loop.time() - begin) * rate)
            # The network takes no more from a connection that still has bytes to send.
            ready = [writer for writer in open_writers if not writer.transport.get_write_buffer_size()]
            for index, (writer, n) in enumerate(zip(ready, shares(due_now - due, len(ready)), strict=True)):
                writer.write((READY if index % 4 == 0 else FLOOD) * n)
                counts["sent"] += n
            due = due_now
            await asyncio.sleep(5e-3)


def shares(total: int, n: int) -> list[int]:
    """Return n whole numbers that add up to a total and differ by at most 1."""
    return [total // n + (index < total % n) for index in range(n)]


async def stay_connected(port: int, open_writers: set[asyncio.StreamWriter], counts: Counter[str]) -> None:
    """Count the responses on a connection, and connect again when the service closes it."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            open_writers.add(writer)
            try:
                while chunk := await reader.read(65536):
                    counts["refused"] += chunk.count(b"HTTP/1.1 ")
            finally:
                open_writers.discard(writer)
                writer.close()
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    main()
