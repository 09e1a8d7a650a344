"""Measure capture speed on one CUDA device, for random models of 7B and 32B shape in bf16.

The plan and engine capture `resid_pre` and `resid_mid` of every layer at the last token, for random token ids with the
lengths and the shared prefix of the chat mix. Each shape first passes the parity check on a few prompts. For several
plans, of which `auto` is what a large survey gets, the script then measures tokens and prompts per second, also without
fused norms, the ratio to the bare forward on the same batches, the share of the bf16 matrix peak of the same run, and
peak GPU memory. As in a replica, threads wait for the activations of a shard, and check them, while the GPU computes
the next one. `written` is the same for a replica that also writes and commits the shards into a local folder; it counts
no active hidden units. All run in turns; the result has the medians.

The script needs torch, transformers, numpy, pydantic and pyyaml, but no installed theodolite; for `written` also zarr,
obstore and xarray. `--tiny` tries the code on a tiny model on the CPU; its speeds have no meaning. The last line is one
JSON object.
Usage: python benchmarks/capture_gpu.py --help
"""

import gc
import random
import tempfile
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import torch
from transformers import AutoModel, Qwen2Config

from theodolite.spec import TokenIds
from theodolite.spec_parts import CaptureSpec
from theodolite_jobs.capture.engine import CapturedShard, Engine
from theodolite_jobs.capture.parity import Certificate, certify
from theodolite_jobs.capture.plan import SetPlan
from theodolite_jobs.capture.sizes import SetSizes, with_sizes
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.loaded import LoadedModel

RESULTS = Path(__file__).resolve().parent / "results"
PREFIX_TOKENS = 24
CAN_WRITE = all(map(find_spec, ("obstore", "xarray", "zarr")))


@dataclass(frozen=True)
class Shape:
    """A model's dimensions, and how it is measured.

    Attributes:
        config: arguments of Qwen2Config.
        plans: names of the plans to measure.
        matrix_size: size of the square matrices for the matrix peak.
    """

    config: dict[str, Any]
    plans: tuple[str, ...]
    matrix_size: int = 8192


PLANS = ("auto", "64x2048", "256x16384", "512x16384", "1024x16384", "1024x32768")
"""Prompts of a shard x token budget of a batch."""

WAITING_SHARDS = 3
"""How many shards are captured but not yet on the host."""


def sizes(layers: int, d_model: int, heads: int, kv_heads: int, d_mlp: int, vocabulary: int = 152064) -> dict[str, Any]:
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    return {**dict(zip(names, (layers, d_model, heads, kv_heads, d_mlp), strict=True)), "vocab_size": vocabulary}


SHAPES = {"7b": Shape(sizes(28, 3584, 28, 4, 18944), PLANS), "32b": Shape(sizes(64, 5120, 40, 8, 27648), PLANS)}

# The deviation is relative to 64 dimensions as large as 0.02 is to thousands.
TINY = Shape({**sizes(6, 64, 4, 2, 128, 512), "initializer_range": 0.15}, ("16x512", "auto"), matrix_size=256)


def budgets_of(plan: str, model: LoadedModel) -> tuple[int, int]:
    """Return the prompts of a shard and the token budget of a batch."""
    if plan != "auto":
        prompts, tokens = map(int, plan.split("x"))
        return prompts, tokens
    layers, width = model.dimensions.n_layers, model.dimensions.d_model
    weights = sum(weight.numel() for weight in model.blocks.parameters()) / layers
    many = SetSizes(1_000_000, measuring.MEAN * 1_000_000, 4 * width * (len(measuring.SITES) * layers + 1))
    chosen = with_sizes(CaptureSpec(), "gpu", weights, [many]).sizes
    return chosen.shard_prompts, chosen.batch_tokens


def main() -> None:
    options = measuring.read_options(
        "Measure capture speed of large random models on one GPU; print JSON.",
        shapes=([*SHAPES], "shapes of the models"),
        plans=([*PLANS], "prompts of a shard x token budget of a batch"),
        prompts=(2048, "prompts in the mix"),
        repeats=(3, "turns; the result has the median"),
        tiny=(False, "try the code with a tiny model on the CPU"),
        out=(None, "also write the JSON to this file; the default is a file in benchmarks/results"),
    )
    if (device := measuring.device_or_hint("cpu" if options.tiny else "cuda", "--tiny")) is None:
        return
    chosen = {name: replace(SHAPES[name], plans=tuple(options.plans)) for name in options.shapes}
    shapes = {"tiny": TINY} if options.tiny else chosen
    default = None if options.tiny else str(RESULTS / f"capture_gpu_{datetime.now(UTC).date()}.json")
    rows = {
        name: measure_shape(name, shape, device, options.prompts, options.repeats) for name, shape in shapes.items()
    }
    result = {"shapes": rows, "device_to_host_bytes_per_second": copy_rate(device), "repeats": options.repeats}
    measuring.publish(result, options.out or default, device)


def measure_shape(name: str, shape: Shape, device: torch.device, n_prompts: int, repeats: int) -> dict[str, Any]:
    """Return the measurements of one shape: build a model, check parity, measure all plans, and free the model."""
    measuring.say(f"{name}: building")
    model = random_model(shape, device)
    tokens = random_mix(n_prompts, model.config.vocab_size)
    certificate = certify_few(model, tokens)
    measuring.say(f"{name}: certified, largest relative error {certificate.max_error:.1e}")
    rows = [measure_plan(model, tokens, shape.matrix_size, plan, repeats) for plan in shape.plans]
    result = {
        "config": shape.config,
        "dtype": str(model.dtype).removeprefix("torch."),
        **measuring.mix_facts(model, tokens),
        "certificate": asdict(certificate),
        "best_share_of_matrix_peak": max(row["share_of_matrix_peak"] for row in rows),
        "plans": rows,
    }
    del model
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return result


def random_model(shape: Shape, device: torch.device) -> LoadedModel:
    """Return a random model drawn on the device, since a host needs minutes for 32B numbers.

    The outputs of blocks are scaled down relative to the embedding. With the initialisation of transformers, bf16
    rounding grows from block to block in a deep random model, so two correct runs need not agree.
    """
    torch.manual_seed(0)
    with torch.device(device):
        model = wrap(AutoModel.from_config(Qwen2Config(**shape.config), dtype=torch.bfloat16))
    model.module.get_input_embeddings().weight.normal_()
    for block in model.blocks:
        for added in (block.self_attn.o_proj, block.mlp.down_proj):
            added.weight.div_(2 * len(model.blocks))
    return model


def random_mix(n_prompts: int, vocabulary: int) -> list[TokenIds]:
    """Return random prompts with the chat mix's lengths and a shared prefix, as a chat template gives."""
    dice = random.Random(0)
    prefix = tuple(dice.randrange(vocabulary) for _ in range(PREFIX_TOKENS))
    suffixes = [length - PREFIX_TOKENS for length in measuring.mix_lengths(n_prompts)]
    return [prefix + tuple(dice.randrange(vocabulary) for _ in range(suffix)) for suffix in suffixes]


def certify_few(model: LoadedModel, tokens: Sequence[TokenIds]) -> Certificate:
    """Return the parity certificate of a few prompts; raise ParityError if the check fails."""
    subsets = {f"subset-{start}": tokens[start : start + 8] for start in range(0, min(24, len(tokens)), 8)}
    layouts = {name: measuring.plan_mix(prompts, 8, 4096).layout for name, prompts in subsets.items()}
    return certify(model, measuring.CAPTURED, range(model.dimensions.n_layers), layouts, subsets)


def measure_plan(
    model: LoadedModel, tokens: Sequence[TokenIds], matrix_size: int, name: str, repeats: int
) -> dict[str, Any]:
    """Return the measurements of one plan; capture, bare forward and matrix peak run in turns."""
    budgets = budgets_of(name, model)
    plan, device = measuring.plan_mix(tokens, *budgets), model.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    # The first, untimed runs of one shard warm up kernels and the allocator.
    one_shard = replace(plan, shards=plan.shards[:1])
    run_capture(model, one_shard, tokens)
    measuring.run_bare(model, one_shard, tokens)
    rates: list[float] = []
    backoffs: list[int] = []
    actions = {
        "matrix products": lambda: rates.append(measuring.matrix_rate(matrix_size, torch.bfloat16, device)),
        "capture": lambda: backoffs.append(run_capture(model, plan, tokens)),
        "bare forward": lambda: measuring.run_bare(model, plan, tokens),
        "capture without fused norms": lambda: run_capture(model, plan, tokens, is_fused=False),
    }
    if CAN_WRITE:
        run_and_write(model, one_shard, tokens)
        actions["capture and write"] = lambda: run_and_write(model, plan, tokens)
    seconds = measuring.in_turns(actions, repeats, device)
    row = speeds(model, plan, np.median(seconds["capture"]), np.median(seconds["bare forward"]), max(rates))
    if CAN_WRITE:
        written = float(np.median(seconds["capture and write"]))
        row["written"] = {
            "prompts_per_second": plan.n_samples / written,
            "ratio_to_bare_forward": float(np.median(seconds["bare forward"])) / written,
        }
    unfused = float(np.median(seconds["capture without fused norms"]))
    row["prompts_per_second_without_fused_norms"] = plan.n_samples / unfused
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    row |= {"peak_gpu_memory_bytes": memory, "oom_backoffs": max(backoffs)}
    measuring.say(
        f"shards of {budgets[0]}, batches of {budgets[1]}: {row['prompts_per_second']:.1f} prompts/s, "
        f"{row['share_of_matrix_peak']:.3f} of the matrix peak, {row['ratio_to_bare_forward']:.3f} of bare"
    )
    return {"plan": name, "shard_prompts": budgets[0], "batch_tokens": budgets[1], **row}


def speeds(model: LoadedModel, plan: SetPlan, capture: float, bare: float, peak: float) -> dict[str, Any]:
    operations = measuring.needed_operations(model, plan)
    return {
        "batches": sum(len(shard.batches) for shard in plan.shards),
        "needed_tokens": measuring.needed_tokens(plan),
        "computed_tokens": plan.computed_tokens + plan.layout.shared_prefix,
        "prompts_per_second": plan.n_samples / capture,
        "tokens_per_second": plan.tokens / capture,
        "needed_tokens_per_second": measuring.needed_tokens(plan) / capture,
        "ratio_to_bare_forward": bare / capture,
        "share_of_matrix_peak": operations / capture / peak,
        "bare_share_of_matrix_peak": operations / bare / peak,
        "matrix_peak_operations_per_second": peak,
    }


def run_capture(model: LoadedModel, plan: SetPlan, tokens: Sequence[TokenIds], *, is_fused: bool = True) -> int:
    """Capture all shards without storing them; return the number of batches halved for lack of memory."""
    engine = Engine(model, measuring.CAPTURED, range(model.dimensions.n_layers))
    if not is_fused:
        engine.fused = ()
    waiting: deque[Future[CapturedShard]] = deque()
    backoffs = 0

    def receive() -> int:
        captured = waiting.popleft().result()
        if captured.quarantined:
            raise SystemExit(f"{len(captured.quarantined)} prompts failed: {captured.quarantined}")
        return captured.counts.oom_backoffs

    with ThreadPoolExecutor(WAITING_SHARDS) as threads:
        for shard in plan.shards:
            if len(waiting) == WAITING_SHARDS:
                backoffs += receive()
            launched = engine.launch(plan.task(shard, tokens, model.config.intermediate_size))
            waiting.append(threads.submit(launched))
        while waiting:
            backoffs += receive()
    return backoffs


def run_and_write(model: LoadedModel, plan: SetPlan, tokens: Sequence[TokenIds]) -> None:
    """Capture, write and commit all shards as a replica does, into a folder that is then removed."""
    from replicas import replica_with, run_replica

    engine = Engine(model, measuring.CAPTURED, range(model.dimensions.n_layers))
    with tempfile.TemporaryDirectory(prefix="theodolite-capture-") as folder:
        run_replica(replica_with(engine, folder, plan.shards[0].stop), plan, tokens)


def copy_rate(device: torch.device) -> float | None:
    """Return bytes per second from the device to pinned host memory; None on a CPU."""
    if device.type != "cuda":
        return None
    source = torch.ones(2**30, dtype=torch.uint8, device=device)
    target = torch.empty(2**30, dtype=torch.uint8, pin_memory=True)
    seconds = [measuring.seconds_of(lambda: target.copy_(source, non_blocking=True), device) for _ in range(5)]
    return source.numel() / min(seconds)


if __name__ == "__main__":
    main()
