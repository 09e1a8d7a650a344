"""The service under load: a curve, a 304, a heat map and a direction; milliseconds, requests a second, memory.

The service runs as a user runs it (`theodolite serve`), held to one core, over a run of the chat model that is made for
it (`--store` and `--run` take one that is there). Requests come over open connections at a fixed rate, whatever the
answers take, so that a slow answer is not hidden by a client that waits for it (coordinated omission); and then as fast
as they are answered. A rate is held for some turns, of which the medians are told. Latencies are those from when a
request was due to the end of its answer.

The last line is one JSON object. Usage: python benchmarks/api.py --help
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import torch

from theodolite.query.runs import summaries

CPU = torch.device("cpu")
SPEC = Path(__file__).parent.parent / "jobs" / "theodolite_jobs" / "specs" / "demo.yaml"
THEODOLITE = [sys.executable, "-c", "from theodolite_jobs.cli import main; main()"]
CONNECTIONS = 8
TURNS = 5


def main() -> None:
    options = read_options()
    with tempfile.TemporaryDirectory(prefix="theodolite-api-") as temporary:
        store = options.store or survey_demo(Path(temporary))
        run_id = options.run or summaries(store)[0]["run_id"]
        result = measure(store, run_id, options)
    measuring.publish({**result, **measuring.machine_facts(CPU)}, options.out)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The service under load: latencies and memory, as JSON.")
    parser.add_argument("--store", help="a store with a run of the demo; by default one is made")
    parser.add_argument("--run", help="its id; by default the newest")
    parser.add_argument("--rate", type=int, default=500, help="requests a second, and half of it for longer answers")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    return parser.parse_args()


def survey_demo(folder: Path) -> str:
    measuring.say("surveying the demo, which takes a minute or two")
    command = [*THEODOLITE, "survey", str(SPEC), "--store", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return str(folder)


def measure(store: str, run_id: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return what each call took, of a service that has one core; the load comes from another."""
    cores = sorted(os.sched_getaffinity(0))
    command = [*THEODOLITE, "serve", "--store", store, "--port", "0"]
    service = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, cores[:1])
    )
    try:
        assert service.stdout is not None
        port = int(service.stdout.readline().split(" from ")[0].rsplit(":", 1)[1])
        os.sched_setaffinity(0, cores[1:] or cores)
        base = f"/v1/runs/{run_id}"
        curve = f"{base}/curves?statistic=cosine_of_means_debiased&site=resid_pre"
        calls = {
            "curve": (curve, {}, options.rate),
            "not_modified": (curve, {"If-None-Match": asyncio.run(etag(port, curve))}, options.rate),
            # These are longer: at the same rate they would only show how long a queue grows.
            "heat_map": (
                f"{base}/gram?statistic=linear_cka_debiased&set=harmful&site=resid_pre",
                {},
                options.rate // 2,
            ),
            "direction": (f"{base}/directions/refusal?site=resid_pre&layer=15", {}, options.rate // 2),
        }
        found: dict[str, Any] = {"connections": CONNECTIONS}
        for name, (path, headers, rate) in calls.items():
            asyncio.run(load(port, path, headers, rate, 1.0))  # caches fill
            turns = [asyncio.run(load(port, path, headers, rate, options.seconds / TURNS)) for _ in range(TURNS)]
            at_rate = {"rate": rate, **{key: float(np.median([turn[key] for turn in turns])) for key in turns[0]}}
            at_rate["p99_milliseconds_of_turns"] = sorted(turn["p99_milliseconds"] for turn in turns)
            flat_out = asyncio.run(load(port, path, headers, None, options.seconds / 2))
            found[name] = {"at_rate": at_rate, "flat_out": flat_out}
            measuring.say(f"{name}: {found[name]}")
        found["resident_bytes"] = resident_bytes(service.pid)
    finally:
        service.send_signal(signal.SIGINT)
        service.wait()
    return found


async def etag(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head, _ = await ask(reader, writer, request_of(port, path, {}))
    writer.close()
    return next(line[6:] for line in head.split("\r\n") if line.lower().startswith("etag: "))


async def load(port: int, path: str, headers: dict[str, str], rate: int | None, seconds: float) -> dict[str, float]:
    """Ask for some seconds, at a rate or as fast as answers come; return the latencies."""
    request, taken, sizes = request_of(port, path, headers), [], []
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
            head, body = await ask(reader, writer, request)
            assert head.split(" ")[1] in ("200", "304"), head
            taken.append(loop.time() - due)
            sizes.append(len(body))
            number += 1
        writer.close()

    await asyncio.gather(*(connection(index) for index in range(CONNECTIONS)))
    p50, p99 = (float(np.quantile(taken, quantile)) * 1e3 for quantile in (0.5, 0.99))
    return {
        "p50_milliseconds": p50,
        "p99_milliseconds": p99,
        "requests_per_second": len(taken) / (loop.time() - begin),
        "answer_bytes": sizes[0],
    }


async def wait_until(due: float) -> None:
    """Wait more exactly than asyncio's timers, which are late by up to a millisecond: that is not the service's."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(max(0.0, due - loop.time() - 2e-3))
    while loop.time() < due:
        await asyncio.sleep(0)


def request_of(port: int, path: str, headers: dict[str, str]) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[str, bytes]:
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    lengths = [line for line in head.split("\r\n") if line.lower().startswith("content-length: ")]
    return head, await reader.readexactly(int(lengths[0].split(": ")[1])) if lengths else b""


def resident_bytes(pid: int) -> int:
    """Return the largest resident set of a process, over its whole life."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
