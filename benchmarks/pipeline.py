"""Measure how busy a device stays while a replica encodes, writes and commits its shards; print JSON.

Everything is that of a replica but the forward pass, which is a sleep of the time that `theodolite plan` estimates for
the model on its GPU. Each sleep gives activations of the model's shape in bfloat16. The stores are a local folder, and
a bucket over HTTP with a delay before each answer; its server is a process of its own that discards the bytes.

`busy_share` is the share of time in which the device would compute, between the commit of the tenth and of the last
shard. `cores_needed` is the processor time for a shard divided by the device's time. On a machine with fewer cores than
that, the device must wait.

Usage: python benchmarks/pipeline.py --help
"""

import asyncio
import multiprocessing
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import torch
from aiohttp import web
from generated import qwen_config
from replicas import replica_with, run_replica

from theodolite.sites import Site
from theodolite.spec import TokenIds
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.plan import SetLayout, SetPlan, ShardPlan
from theodolite_jobs.costs import GPU_SHARE
from theodolite_jobs.gpus import KINDS
from theodolite_jobs.models.families import known_anatomy

TOKENS = 55
"""Tokens of a prompt that must be computed, without the shared prefix of its template."""

WARM_SHARDS = 10
"""Shards before the measurement: the queue of captured shards is then full if the writers are too slow."""


@dataclass(frozen=True)
class Shape:
    """A model, and the GPUs of a replica."""

    model: str
    parameters: float
    layers: int
    d_model: int
    gpu: str
    gpus: int = 1

    def shard_seconds(self, prompts: int) -> float:
        """Return the time of a shard on the GPUs: two operations for each weight and token."""
        return 2 * self.parameters * TOKENS * prompts / (GPU_SHARE * self.gpus * KINDS[self.gpu].operations_per_second)


SHAPES = {
    "7b-a100": Shape("7B", 7.6e9, 28, 3584, "A100-80GB"),
    "7b-h100": Shape("7B", 7.6e9, 28, 3584, "H100-80GB"),
    "32b-h100": Shape("32B", 32.8e9, 64, 5120, "H100-80GB"),
    "32b-2-a100": Shape("32B", 32.8e9, 64, 5120, "A100-80GB", gpus=2),
    "32b-h200": Shape("32B", 32.8e9, 64, 5120, "H200-141GB"),
}

STORES = {"folder": None, "bucket-20ms": 0.02, "bucket-100ms": 0.1}
"""Delay of each answer of a store in seconds; None is a local folder."""


class SleepingEngine(Engine):
    """An engine whose forward pass sleeps, and returns the same activations each time."""

    def __init__(self, shape: Shape, prompts: int) -> None:
        """Draw the activations."""
        model: Any = SimpleNamespace(
            anatomy=known_anatomy(qwen_config(shape.layers, vocabulary=64)),
            dimensions=SimpleNamespace(d_model=shape.d_model),
            device=torch.device("cpu"),
        )
        super().__init__(model, measuring.CAPTURED, range(shape.layers))
        draw = torch.Generator().manual_seed(0)
        sizes = {site: (prompts, 1, shape.layers, shape.d_model) for site in measuring.SITES}
        sizes[Site.RESID_FINAL] = (prompts, 1, shape.d_model)
        self.seconds = shape.shard_seconds(prompts)
        self.values = {site: torch.randn(size, generator=draw).bfloat16() for site, size in sizes.items()}

    def _forward_or_none(self, *_: Any) -> dict[Any, torch.Tensor]:
        time.sleep(self.seconds)
        return self.values


def main() -> None:
    options = measuring.read_options(
        __doc__ or "",
        shards=(40, "shards of each measurement"),
        prompts=(256, "prompts of a shard"),
        shapes=(list(SHAPES), "models and GPUs"),
        stores=(list(STORES), "stores"),
    )
    results = []
    for name in options.shapes:
        for store in options.stores:
            measuring.say(f"{name}, {store}: {options.shards} shards")
            with place(STORES[store]) as url:
                results.append({"store": store, **measure(SHAPES[name], url, options.shards, options.prompts)})
    measuring.publish({"cores": os.cpu_count(), "measurements": results}, options.out)


def measure(shape: Shape, url: str, shards: int, prompts: int) -> dict[str, Any]:
    """Return the measurements of a replica that captures shards of a shape as fast as it can."""
    engine = SleepingEngine(shape, prompts)
    replica = replica_with(engine, url, prompts)
    n_tokens = shards * prompts * TOKENS
    planned = tuple(shard_of(index, prompts) for index in range(shards))
    plan = SetPlan("set", SetLayout((-1,), 0), planned, n_tokens, n_tokens)
    tokens: list[TokenIds] = [tuple(range(TOKENS))] * (shards * prompts)
    cost = time.process_time()
    numbers, committed_at = run_replica(replica, plan, tokens)
    cost = (time.process_time() - cost) / shards
    seconds = committed_at[-1] - committed_at[WARM_SHARDS - 1]
    steps = {
        step: float(np.median([number[step] for number in numbers]))
        for step in ("encode_seconds", "store_seconds", "commit_seconds", "idle_seconds")
    }
    return {
        "model": shape.model,
        "gpu": shape.gpu,
        "gpus": shape.gpus,
        "shard_prompts": prompts,
        "raw_bytes": sum(4 * value.numel() for value in engine.values.values()),
        "stored_bytes": float(np.median([number["stored_bytes"] for number in numbers])),
        "device_seconds": engine.seconds,
        "seconds_per_shard": seconds / (shards - WARM_SHARDS),
        "busy_share": min(1.0, engine.seconds * (shards - WARM_SHARDS) / seconds),
        "core_seconds_per_shard": cost,
        "cores_needed": cost / engine.seconds,
        **steps,
    }


def shard_of(index: int, prompts: int) -> ShardPlan:
    start, stop = index * prompts, (index + 1) * prompts
    return ShardPlan("set", index, start, stop, (tuple(range(start, stop)),))


@contextmanager
def place(delay: float | None) -> Iterator[str]:
    """Yield the URL of an empty store: a folder, or a bucket whose answers are late by `delay` seconds."""
    if delay is None:
        folder = tempfile.mkdtemp(prefix="theodolite-pipeline-")
        try:
            yield folder
        finally:
            shutil.rmtree(folder)
        return
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve_bucket, args=(delay, theirs), daemon=True)
    server.start()
    environment = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ENDPOINT": f"http://127.0.0.1:{ours.recv()}",
    }
    with patch.dict(os.environ, environment):
        yield "s3://bucket/run"
    server.kill()
    server.join()


def serve_bucket(delay: float, pipe: Any) -> None:
    """Accept every object, discard its bytes, and answer late; send the port through the pipe."""

    async def answer(request: web.Request) -> web.Response:
        deleted = ""
        if "delete" in request.query:
            keys = re.findall("<Key>(.*?)</Key>", await request.text())
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        async for _ in request.content.iter_any():
            pass
        await asyncio.sleep(delay)
        if request.method in ("GET", "HEAD"):
            return web.Response(status=404)
        if "uploads" in request.query:
            body = "<InitiateMultipartUploadResult><UploadId>one</UploadId></InitiateMultipartUploadResult>"
        elif request.method == "POST" and "uploadId" in request.query:
            body = "<CompleteMultipartUploadResult><ETag>tag</ETag></CompleteMultipartUploadResult>"
        elif "x-amz-copy-source" in request.headers:
            body = "<CopyObjectResult><ETag>tag</ETag></CopyObjectResult>"
        else:
            body = f"<DeleteResult>{deleted}</DeleteResult>"
        return web.Response(text=body, headers={"ETag": '"tag"'}, content_type="application/xml")

    async def serve() -> None:
        app = web.Application(client_max_size=2**40)
        app.router.add_route("*", "/{key:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        pipe.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
