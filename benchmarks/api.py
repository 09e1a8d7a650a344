"""Measure the service under load: a curve, a 304, a heat map and a direction; latency, throughput and memory.

The service (`theodolite serve`) runs on one core, with a new run of the chat model, or with an existing one (`--store`,
`--run`). First, requests arrive over open connections at a fixed rate that does not depend on the responses, so a slow
response is not hidden by a waiting client (coordinated omission). Then each connection sends its next request after the
response. The fixed rate runs for several turns; the result has the medians. A latency lasts from the scheduled time of
a request to the end of its response.

The last line is one JSON object. Usage: python benchmarks/api.py --help
"""

import asyncio
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
from http_service import THEODOLITE, request_of, send, service_on_one_core

from theodolite.query.runs import summaries

SPEC = Path(__file__).parent.parent / "jobs" / "theodolite_jobs" / "specs" / "demo.yaml"
CONNECTIONS = 8
TURNS = 5


def main() -> None:
    options = measuring.read_options(
        "Measure the service under load; print latencies and memory as JSON.",
        store=(None, "store with a run of the demo; the default creates one"),
        run=(None, "id of the run; the default is the newest"),
        rate=(500, "requests per second; half of it for large responses"),
        seconds=(10.0, "duration of each measurement"),
    )
    with tempfile.TemporaryDirectory(prefix="theodolite-api-") as temporary:
        store = options.store or survey_demo(Path(temporary))
        run_id = options.run or summaries(store)[0]["run_id"]
        result = measure(store, run_id, options.rate, options.seconds)
    measuring.publish(result, options.out)


def survey_demo(folder: Path) -> str:
    measuring.say("surveying the demo; this takes one or two minutes")
    command = [*THEODOLITE, "survey", str(SPEC), "--store", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return str(folder)


def measure(store: str, run_id: str, rate: int, seconds: float) -> dict[str, Any]:
    """Return the measurements of each call; the service has one core, and the load uses the other cores."""
    with service_on_one_core(store, requests_per_minute=10**9) as service:
        base = f"/v1/runs/{run_id}"
        curve = f"{base}/curves?statistic=cosine_of_means_debiased&site=resid_pre"
        calls = {
            "curve": (curve, {}, rate),
            "not_modified": (curve, {"If-None-Match": asyncio.run(etag(service.port, curve))}, rate),
            # These responses are large; at the full rate the latency would only measure the queue.
            "heat_map": (f"{base}/figures/gram.cka.harmful", {}, rate // 2),
            "direction": (f"{base}/directions/refusal?site=resid_pre&layer=15", {}, rate // 2),
        }
        result: dict[str, Any] = {"connections": CONNECTIONS}
        for name, (path, headers, own_rate) in calls.items():
            request = request_of(path, headers)
            asyncio.run(load(service.port, request, own_rate, 1.0))  # warms the caches
            turns = [asyncio.run(load(service.port, request, own_rate, seconds / TURNS)) for _ in range(TURNS)]
            at_rate = {"rate": own_rate, **{key: float(np.median([turn[key] for turn in turns])) for key in turns[0]}}
            at_rate["p99_milliseconds_of_turns"] = sorted(turn["p99_milliseconds"] for turn in turns)
            flat_out = asyncio.run(load(service.port, request, None, seconds / 2))
            result[name] = {"at_rate": at_rate, "flat_out": flat_out}
            measuring.say(f"{name}: {result[name]}")
        result["resident_bytes"] = service.peak_memory_bytes
    return result


async def etag(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head, _ = await send(reader, writer, request_of(path))
    writer.close()
    return next(line[6:] for line in head.split("\r\n") if line.lower().startswith("etag: "))


async def load(port: int, request: bytes, rate: int | None, seconds: float) -> dict[str, float]:
    """Return latencies and throughput of requests at a rate, or, with None, each after the previous response."""
    latencies: list[float] = []
    sizes: list[int] = []
    loop = asyncio.get_running_loop()
    begin = loop.time()

    async def connection(index: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        number = 0
        while True:
            due = begin + (index + CONNECTIONS * number) / rate if rate else loop.time()
            if due - begin > seconds:
                break
            await wait_until(due)
            head, body = await send(reader, writer, request)
            assert head.split(" ")[1] in ("200", "304"), head
            latencies.append(loop.time() - due)
            sizes.append(len(body))
            number += 1
        writer.close()

    await asyncio.gather(*(connection(index) for index in range(CONNECTIONS)))
    p50, p99 = (float(np.quantile(latencies, quantile)) * 1e3 for quantile in (0.5, 0.99))
    return {
        "p50_milliseconds": p50,
        "p99_milliseconds": p99,
        "requests_per_second": len(latencies) / (loop.time() - begin),
        "answer_bytes": sizes[0],
    }


async def wait_until(due: float) -> None:
    """Wait until a time; asyncio's timers alone are up to a millisecond late, which would count as latency."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(max(0.0, due - loop.time() - 2e-3))
    while loop.time() < due:
        await asyncio.sleep(0)


if __name__ == "__main__":
    main()
