"""Attack the service, without a credential and with one: does it answer the others?

The service (`theodolite serve`) runs on one core, over an empty store with two bearer tokens. Two attacks follow each
other: one without a credential, and one with the first token.

**Without a credential.** First, 16 connections that
send their next request after each response measure the capacity. Then the attackers keep 2,000 connections with half a
head and 200 requests with half a body open, and open each one again when the service closes it. Over 1,000 more
connections they request the page's largest script and read nothing. Besides, a flood of requests without a token, some
of them for `/readyz`, is sent at twice the capacity, without waiting for the responses. Meanwhile one client requests
`/healthz` ten times in a second, over a new connection each time.

**With a credential.** Over 500 connections, the first token sends half bodies, half uploads, specs with 60,000 unknown
keys, and requests for the list of runs; half a second after each response, it sends the request again. Meanwhile the
second token posts a spec ten times in a second, over a new connection each time. This is measured with the default
limit of requests, and with one that the attack does not reach. The first attack has none, to measure more requests.

The last line is one JSON object. Usage: python benchmarks/siege.py --help
"""

import asyncio
import itertools
import json
import socket
import tempfile
from collections import Counter
from contextlib import suppress
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
from http_service import request_of, send, service_on_one_core

from theodolite.api.credentials import create_credential
from theodolite.settings import Settings

HALF_HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
HALF_BODY = (
    b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    + b" " * 900_000
)
SPEC = {
    "model": {"id": "smollm2-135m-instruct"},
    "prompts": {"bad": {"source": "builtin:harmful"}, "good": {"source": "builtin:harmless"}},
    "contrasts": {"refusal": {"positive": "bad", "negative": "good"}},
}
BODY, UPLOAD = "Content-Type: application/json", "Content-Type: application/octet-stream"
HEALTH = request_of("/healthz", {"Connection": "close"})
UNREAD = request_of("/static/plotly.min.js")
FLOOD, READY = request_of("/v1/runs"), request_of("/readyz")
FLOOD_CONNECTIONS = 64
UNLIMITED = 10**9
MIX = (*["half bodies", "half uploads", "lists"] * 8, "unknown keys")
"""What the hostile connections send; specs with unknown keys are large, and 500 of them would measure the network."""


def main() -> None:
    options = measuring.read_options(
        "Attack the service without a credential; print the latency of /healthz and the service's memory as JSON.",
        heads=(2000, "connections with half a head"),
        bodies=(200, "requests with half a body"),
        unread=(1000, "requests for the largest script, without reading the response"),
        hostile=(500, "connections of one token"),
        seconds=(30.0, "duration of the attack"),
    )
    with tempfile.TemporaryDirectory(prefix="theodolite-siege-") as store:
        tokens = [create_credential(store, ["read", "submit"])[0] for _ in range(2)]
        result = measure(store, options.heads, options.bodies, options.unread, options.seconds)
        limits = (Settings().requests_per_minute, UNLIMITED)
        result["with_a_token"] = [measure_token(store, tokens, options.hostile, options.seconds, one) for one in limits]
    measuring.publish(result, options.out)


def measure(store: str, heads: int, bodies: int, unread: int, seconds: float) -> dict[str, Any]:
    """Return what a client saw during the attack, and the memory of the service before and after."""
    with service_on_one_core(store, UNLIMITED) as service:
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


def measure_token(store: str, tokens: list[str], hostile: int, seconds: float, limit: int) -> dict[str, Any]:
    """Return what the second token saw while the first one attacked the service."""
    with service_on_one_core(store, limit) as service:
        before = service.peak_memory_bytes
        seen = asyncio.run(siege_of_token(service.port, tokens, hostile, seconds))
        after = service.peak_memory_bytes
    return {
        "requests_per_minute": limit,
        "hostile_connections": hostile,
        **seen,
        "resident_bytes_before": before,
        "resident_bytes": after,
    }


async def siege_of_token(port: int, tokens: list[str], hostile: int, seconds: float) -> dict[str, Any]:
    """Attack with the first token for some seconds; return the latencies of the second token's posts."""
    unknown = json.dumps({**SPEC, **dict.fromkeys(map("k{}".format, range(60_000)), 0)}).encode()
    attacks = {
        "half bodies": post_of("/v1/spec/check", BODY, tokens[0], b" " * 1000, missing=1000),
        "half uploads": post_of("/v1/uploads?type=csv", UPLOAD, tokens[0], b" " * 1000, missing=1000),
        "unknown keys": post_of("/v1/spec/check", BODY, tokens[0], unknown),
        "lists": request_of("/v1/runs", {"Connection": "close", "Authorization": f"Bearer {tokens[0]}"}),
    }
    answers: Counter[str] = Counter()
    attackers = [
        asyncio.create_task(attack_again(port, name, attacks[name], answers))
        for _, name in zip(range(hostile), itertools.cycle(MIX), strict=False)
    ]
    await asyncio.sleep(3)  # until all are connected
    post = post_of("/v1/spec/check", BODY, tokens[1], json.dumps(SPEC).encode())
    latencies, failures = await ask_often(port, post, seconds)
    for task in attackers:
        task.cancel()
    await asyncio.gather(*attackers, return_exceptions=True)
    return {"hostile_answers": dict(sorted(answers.items())), **summary("post", latencies, failures)}


async def attack_again(port: int, name: str, request: bytes, answers: Counter[str]) -> None:
    """Send a request again and again, and count the statuses of its responses."""
    while True:
        with suppress(OSError):
            answer = await ask(port, request)
            answers[f"{name}: {answer[9:12].decode() or 'none'}"] += 1
        await asyncio.sleep(0.5)


def post_of(path: str, kind: str, token: str, body: bytes, missing: int = 0) -> bytes:
    """Return a POST whose body lacks so many bytes; its connection closes after the response."""
    fields = f"Host: 127.0.0.1\r\nConnection: close\r\n{kind}\r\nAuthorization: Bearer {token}"
    return f"POST {path} HTTP/1.1\r\n{fields}\r\nContent-Length: {len(body) + missing}\r\n\r\n".encode() + body


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
    begin = asyncio.get_running_loop().time()
    latencies, failures = await ask_often(port, HEALTH, seconds)
    took = asyncio.get_running_loop().time() - begin
    for task in attackers:
        task.cancel()
    await asyncio.gather(*attackers, return_exceptions=True)
    return {
        "flood_target_per_second": rate,
        "flood_sent_per_second": counts["sent"] / took,
        "flood_refused_per_second": counts["refused"] / took,
        "half_sent_requests_opened_again": counts["opened again"],
        **summary("health", latencies, failures),
    }


async def ask_often(port: int, request: bytes, seconds: float) -> tuple[list[float], int]:
    """Send a request ten times in a second; return the latencies, and how many responses are not 200."""
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    failures, end = 0, loop.time() + seconds
    while loop.time() < end:
        asked = loop.time()
        try:
            failures += not (await asyncio.wait_for(ask(port, request), 10)).startswith(b"HTTP/1.1 200")
        except (OSError, TimeoutError):
            failures += 1
        latencies.append(loop.time() - asked)
        await asyncio.sleep(max(0.0, 0.1 - latencies[-1]))
    return latencies, failures


def summary(name: str, latencies: list[float], failures: int) -> dict[str, Any]:
    return {
        f"{name}_requests": len(latencies),
        f"{name}_failures": failures,
        f"{name}_p50_milliseconds": float(np.quantile(latencies, 0.5)) * 1e3,
        f"{name}_max_milliseconds": max(latencies) * 1e3,
    }


async def ask(port: int, request: bytes) -> bytes:
    """Return the response to a request whose connection closes after it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
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
