"""Functions that several benchmarks use: bare forwards, the matrix peak, peak memory, facts about the machine.

Import this module before torch, since the import also sets the environment variables of a replica.
"""

import importlib.util
import json
import os
import platform
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# A script's folder is first on the path, where its statistics.py would shadow the standard library's.
if str(Path(__file__).resolve().parent) in sys.path:
    sys.path.append(sys.path.pop(sys.path.index(str(Path(__file__).resolve().parent))))

# Replicas sum in an order that does not depend on the number of threads; MKL reads this when torch loads it.
os.environ["MKL_CBWR"] = "AUTO,STRICT"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# A GPU machine need not have the package installed.
if importlib.util.find_spec("theodolite") is None:
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root / "service"), str(root / "jobs")]

import numpy as np
import torch
import transformers
from transformers import DynamicCache

from theodolite_jobs.capture.plan import SetPlan, TokenIds
from theodolite_jobs.models.load import LoadedModel

SHORTEST, LONGEST, MEAN = 45, 161, 76
"""Numbers of tokens of the chat mix's prompts."""


def say(message: str) -> None:
    """Print progress to stderr, apart from the result on stdout."""
    print(message, file=sys.stderr, flush=True)


def mix_lengths(n_prompts: int, seed: int = 0) -> list[int]:
    """Return lengths from SHORTEST to LONGEST with mean MEAN, in a seeded order."""
    span = LONGEST - SHORTEST
    # The mean of u ** p over u in [0, 1] is 1 / (p + 1).
    power = span / (MEAN - SHORTEST) - 1
    lengths = [SHORTEST + round(span * ((index + 0.5) / n_prompts) ** power) for index in range(n_prompts)]
    random.Random(seed).shuffle(lengths)
    return lengths


@torch.inference_mode()
def run_bare(model: LoadedModel, plan: SetPlan, tokens: Sequence[TokenIds]) -> None:
    """Run a plan's batches, with their shared prefix, through the base model without hooks, and discard the output."""
    shared = plan.shared_prefix
    prefix = _prefix_of(model, tokens[0][:shared]) if shared else []
    for shard in plan.shards:
        for batch in shard.batches:
            suffixes = [tokens[sample][shared:] for sample in batch]
            padded = np.zeros((len(batch), max(map(len, suffixes))), dtype=np.int64)
            for row, ids in enumerate(suffixes):
                padded[row, : len(ids)] = ids
            expanded = [[part.expand(len(batch), -1, -1, -1) for part in layer] for layer in prefix]
            model.module(
                input_ids=torch.from_numpy(padded).to(model.device),
                past_key_values=DynamicCache([(keys, values) for keys, values in expanded]) if shared else None,
                use_cache=shared > 0,
            )
    synchronize(model.device)


def _prefix_of(model: LoadedModel, prefix: TokenIds) -> list[tuple[torch.Tensor, torch.Tensor]]:
    cache = model.module(input_ids=torch.tensor([prefix], device=model.device), use_cache=True).past_key_values
    return [(layer.keys, layer.values) for layer in cache.layers]


def needed_operations(model: LoadedModel, plan: SetPlan) -> float:
    """Return 2 × non-embedding parameters × tokens that must be computed."""
    embedding = model.module.get_input_embeddings().weight.numel()
    parameters = sum(weight.numel() for weight in model.module.parameters()) - embedding
    return 2.0 * parameters * needed_tokens(plan)


def needed_tokens(plan: SetPlan) -> int:
    """Return the number of tokens that must be computed: without padding, and with the shared prefix once."""
    return plan.tokens - plan.shared_prefix * (plan.n_samples - 1)


def matrix_rate(size: int, dtype: torch.dtype, device: torch.device, seconds: float = 1.0) -> float:
    """Return operations per second of one square matrix product, as a mean over about so many seconds."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    torch.matmul(left, right, out=out)  # the first product also starts the library
    once = seconds_of(lambda: torch.matmul(left, right, out=out), device)
    repeats = max(1, int(seconds / max(once, 1e-4)))
    took = seconds_of(lambda: [torch.matmul(left, right, out=out) for _ in range(repeats)], device)
    return 2.0 * size**3 * repeats / took


def seconds_of(action: Callable[[], Any], device: torch.device) -> float:
    """Return how long an action takes until the device has finished it."""
    synchronize(device)
    started = time.perf_counter()
    action()
    synchronize(device)
    return time.perf_counter() - started


def synchronize(device: torch.device) -> None:
    """Wait for the device; a CPU is never behind."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_bytes() -> int:
    """Return the most memory this process has held.

    `getrusage` alone would not do on Linux: a child starts with the peak of the process that started it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextmanager
def anonymous_memory(every_seconds: float = 0.05) -> Iterator[list[int]]:
    """Yield a list that receives samples of this process's anonymous memory in bytes; empty outside Linux.

    Pages of mapped files do not count, since the system can reclaim them at any time.
    """
    samples: list[int] = []
    status, ended = Path("/proc/self/status"), threading.Event()

    def sample() -> None:
        while status.exists():
            line = next(line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
            samples.append(int(line.split()[1]) * 1024)
            if ended.wait(every_seconds):
                return

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield samples
    finally:
        ended.set()
        sampler.join()


def machine_facts(device: torch.device) -> dict[str, Any]:
    """Return the processor, cores, device, versions and date, by which a reader can judge the numbers."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": _processor_name(),
            "cores": os.cpu_count(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        },
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        },
    }


def _processor_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def publish(result: dict[str, Any], out: Path | None) -> None:
    """Print the result as one JSON object on the last line, and write it to a file if one is given."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        say(f"wrote {out}")
    print(json.dumps(result), flush=True)
