"""Functions that several benchmarks use: options, bare forwards, turns, peak memory, facts about the machine.

Import this module before torch, since the import also sets the environment variables of a replica.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import platform
import random
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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

from theodolite.sites import Site
from theodolite.spec import TokenIds
from theodolite.spec_parts import ModelSpec
from theodolite.version import __version__
from theodolite_jobs.capture.plan import SetPlan, plan_set
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.source import fetch, resolve_source

CPU = torch.device("cpu")
MODEL = "smollm2-135m-instruct"
SITES = (Site.RESID_PRE, Site.RESID_MID)
CAPTURED = (*SITES, Site.RESID_FINAL)

SHORTEST, LONGEST, MEAN = 45, 161, 76
"""Numbers of tokens of the chat mix's prompts."""


def read_options(description: str, **options: tuple[Any, str]) -> argparse.Namespace:
    """Return the values of the command-line options, each given as a default and a help text, and of `--out`.

    The type of an option is that of its default. The default None is for a text, and a list is for some of its items.
    """
    parser = argparse.ArgumentParser(description=description)
    options.setdefault("out", (None, "also write the JSON to this file"))
    for name, (default, text) in options.items():
        kind: dict[str, Any] = {"type": str if default is None else type(default)}
        if isinstance(default, bool):
            kind = {"action": "store_true"}
        elif isinstance(default, list):
            kind = {"nargs": "+", "choices": default}
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, help=text, **kind)
    return parser.parse_args()


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


def chat_model() -> Path:
    """Return the folder of the real chat model."""
    return fetch(resolve_source(ModelSpec(id=MODEL), Path()), Path.home() / ".cache" / "theodolite")


def plan_mix(tokens: Sequence[TokenIds], shard_prompts: int, batch_tokens: int) -> SetPlan:
    """Return the plan of a replica for the last token of each prompt."""
    return plan_set("mix", tokens, (-1,), shard_prompts=shard_prompts, batch_tokens=batch_tokens, share_prefix=True)


@torch.inference_mode()
def run_bare(model: LoadedModel, plan: SetPlan, tokens: Sequence[TokenIds]) -> None:
    """Run a plan's batches, with their shared prefix, through the base model without hooks, and discard the output."""
    shared = plan.layout.shared_prefix
    prefix: list[tuple[torch.Tensor, torch.Tensor]] = []
    if shared:
        ids = torch.tensor([tokens[0][:shared]], device=model.device)
        cache = model.module(input_ids=ids, use_cache=True).past_key_values
        prefix = [(layer.keys, layer.values) for layer in cache.layers]
    for shard in plan.shards:
        for batch in shard.batches:
            suffixes = [tokens[sample][shared:] for sample in batch]
            padded = np.zeros((len(batch), max(map(len, suffixes))), dtype=np.int64)
            for row, ids in enumerate(suffixes):
                padded[row, : len(ids)] = ids
            expanded = [tuple(part.expand(len(batch), -1, -1, -1) for part in layer) for layer in prefix]
            model.module(
                input_ids=torch.from_numpy(padded).to(model.device),
                past_key_values=DynamicCache(expanded) if shared else None,
                use_cache=shared > 0,
            )
    synchronize(model.device)


def needed_operations(model: LoadedModel, plan: SetPlan) -> float:
    """Return 2 × non-embedding parameters × tokens that must be computed."""
    embedding = model.module.get_input_embeddings().weight.numel()
    parameters = sum(weight.numel() for weight in model.module.parameters()) - embedding
    return 2.0 * parameters * needed_tokens(plan)


def mix_facts(model: LoadedModel, tokens: Sequence[TokenIds]) -> dict[str, Any]:
    """Return the bytes of the model, and the numbers and lengths of the prompts."""
    lengths = [len(ids) for ids in tokens]
    return {
        "model_bytes": sum(weight.numel() * weight.element_size() for weight in model.module.parameters()),
        "prompts": len(tokens),
        "tokens": sum(lengths),
        "length": {"mean": sum(lengths) / len(lengths), "min": min(lengths), "max": max(lengths)},
    }


def needed_tokens(plan: SetPlan) -> int:
    """Return the number of tokens that must be computed: without padding, and with the shared prefix once."""
    return plan.tokens - plan.layout.shared_prefix * (plan.n_samples - 1)


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


def device_or_hint(wanted: str, trial: str) -> torch.device | None:
    """Return a device; None, after a sentence with the option that tries the code, if it is a GPU and there is none."""
    if wanted != "cpu" and not torch.cuda.is_available():
        print(f"torch finds no CUDA device; run on a machine with one, or try the code on the CPU with {trial}.")
        return None
    return torch.device(wanted)


def synchronize(device: torch.device) -> None:
    """Wait for the device; a CPU is never behind."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def in_turns(
    actions: Mapping[str, Callable[[], Any]], repeats: int, device: torch.device = CPU
) -> dict[str, list[float]]:
    """Return the seconds of each action in each turn; a turn runs all actions, so that a slow minute affects all."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(repeats):
        for name, action in actions.items():
            seconds[name].append(seconds_of(action, device))
            say(f"turn {turn + 1} of {repeats}: {name} {seconds[name][-1]:.2f} s")
    return seconds


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a new process, whose peak memory is that of this function alone."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def memory_bytes(field: str, process: int | str = "self") -> int | None:
    """Return a field of a process's status in bytes: VmHWM, its peak memory, or RssAnon; None outside Linux."""
    status = Path(f"/proc/{process}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), None)


def peak_memory_bytes() -> int:
    """Return the most memory this process has held.

    `getrusage` alone would not do on Linux: a child starts with the peak of the process that started it.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    return memory_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


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
            "theodolite": __version__,
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


def publish(result: dict[str, Any], out: str | None, device: torch.device = CPU, **versions: str) -> None:
    """Print the result and the machine's facts as one JSON object on the last line; also write it to a given file."""
    result = result | machine_facts(device)
    result["versions"] |= versions
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        say(f"wrote {out}")
    print(json.dumps(result), flush=True)
