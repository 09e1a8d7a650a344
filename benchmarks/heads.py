"""Measure the analysis `heads` on the CPU: seconds, memory and error.

- `shape_32b`: the script writes random bf16 weights with the shape of Qwen2.5-32B, but one neuron in each MLP, to a
  temporary folder of 13 GB (TMPDIR). `compute_groups` runs on them as in a survey without prompts, with and without
  singular vectors, each in a separate process. `seconds` last from opening the weights to the written group, without
  hashing the weights; the page cache contains as much of the files as fits. `cpu_seconds` cover all threads; if they
  are much fewer than `seconds` times the threads, other processes used the machine. Mapped files do not count as
  anonymous memory. The vocabulary has VOCABULARY tokens, so the product of embedding and unembedding takes no time.
- `dense`: one QK and one OV circuit of these weights as dense matrices. The result is the largest error of the stored
  singular values against `torch.linalg.svdvals` in float64, relative to the largest value, and ‖UΣVᵀ − W‖ / ‖W‖ with
  all vectors.
- `smollm2`: QK and OV of all heads of the real chat model with all d_head vectors, including reading the files, against
  the factored SVD of TransformerLens (`QK.svd()` and `OV.svd()` of its bridge) on a loaded raw model (not folded or
  centred). The script first compares their singular values, float64 with float32. Then both run in turns, and the
  result has the medians. TransformerLens is not a dependency: pass the interpreter of an environment that has it;
  without it these numbers are null.

All sides use the same number of threads. The last line is one JSON object.
Usage: python benchmarks/heads.py --help
"""

import inspect
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import torch
from generated import D_HEAD, D_MODEL, N_HEADS, N_KV_HEADS, qwen_config
from numpy.typing import NDArray
from safetensors.torch import save_file

from theodolite.groups.heads.record import CIRCUITS
from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite.spec_options import HeadsSpec
from theodolite.store.result_reader import read_group
from theodolite.store.runs import create_run, open_run
from theodolite_jobs.analysis import compute_groups
from theodolite_jobs.groups.heads.layer import Stream, decompose_layer
from theodolite_jobs.models.config_numbers import score_scale
from theodolite_jobs.models.load import load_config
from theodolite_jobs.models.tensors import TensorFiles
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.prepare import prepare
from theodolite_jobs.results.circuits import read_circuits
from theodolite_jobs.results.context import Context
from theodolite_jobs.statistics.factors import Decomposition, decompose, thin
from theodolite_jobs.tasks import run_tasks, scheduler

VOCABULARY = 64
SHARD_LAYERS = 4
NEEDED_BYTES = 200 * 10**6  # on disk, of each layer: 126 MB of weights and 66 MB of vectors
VECTORS = 20

HEAD = 13  # the fourth of five heads that share a key-value head
SAME_VALUES = 1e-5
"""Allowed difference of singular values in float32 and float64, relative to the circuit's largest."""

Values = dict[str, NDArray[np.float64]]


def main() -> None:
    options = measuring.read_options(
        "Measure the heads of a 32B-shaped model and of a real model; print JSON.",
        layers=(64, "layers of the 32B-shaped model"),
        repeats=(3, "turns on the real model; the result has the medians"),
        threads=(2, "threads of each side"),
        transformer_lens_python=(None, "interpreter of an environment that has TransformerLens 4"),
    )
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="theodolite-heads-") as temporary:
        shape_32b, dense = measure_32b(Path(temporary), options.layers, options.threads)
    smollm2 = measure_smollm2(options.transformer_lens_python, options.repeats, options.threads)
    measuring.publish({"shape_32b": shape_32b, "dense": dense, "smollm2": smollm2}, options.out)


def measure_32b(temporary: Path, layers: int, threads: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the seconds and memory of both surveys, and the errors against dense circuits."""
    needed, free = layers * NEEDED_BYTES, shutil.disk_usage(temporary).free
    if free < needed:
        raise SystemExit(f"{temporary} has {free / 1e9:.1f} GB free, but needs {needed / 1e9:.1f} GB; set TMPDIR")
    folder = temporary / "model"
    write_weights(folder, layers)
    measuring.say("hashing the weights")
    settings = Settings(store=str(temporary / "store"), cache=temporary)
    spec = parse_spec({"model": {"id": str(folder)}, "prompts": {}, "analyses": ["heads"]})
    record = prepare(spec, temporary, settings).record("not run", {})
    surveys: dict[str, Any] = {}
    stored = []
    for name, vectors in {"with_vectors": VECTORS, "without_vectors": 0}.items():
        store = temporary / name
        create_run(str(store), record)
        surveys[name], values = measuring.in_new_process(
            survey_alone, folder, str(store), record.run_id, vectors, threads
        )
        stored.append(values)
        measuring.say(f"{name}: {surveys[name]}")
        shutil.rmtree(store)
    sizes = {"layers": layers, "vectors": VECTORS, "circuits": len(CIRCUITS) * layers * N_HEADS}
    return {**surveys, **sizes}, against_dense(folder, layers // 2, stored)


def write_weights(folder: Path, layers: int, vocabulary: int = VOCABULARY) -> None:
    """Write random weights, a few layers in each file, so that memory contains only these layers."""
    folder.mkdir()
    qwen_config(layers, vocabulary, d_mlp=1).save_pretrained(folder)
    file_of: dict[str, str] = {}
    for first in range(0, layers, SHARD_LAYERS):
        measuring.say(f"weights: layer {first} of {layers}")
        path = folder / f"model-{first:05}.safetensors"
        shard = dict(tensors(range(first, min(first + SHARD_LAYERS, layers)), vocabulary))
        save_file(shard, path)
        with path.open("rb") as written:
            os.fsync(written)  # otherwise the system may still write during the measurements
        file_of |= dict.fromkeys(shard, path.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": file_of}))


def tensors(layers: range, vocabulary: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield random bf16 weights of some layers; with layer 0 also the embeddings and the final norm."""
    rng = torch.Generator().manual_seed(layers.start)

    def draw(*shape: int, around: float = 0.0, deviation: float = 0.02) -> torch.Tensor:
        return (torch.randn(shape, generator=rng) * deviation + around).bfloat16()

    if layers.start == 0:
        yield "model.embed_tokens.weight", draw(vocabulary, D_MODEL)
        yield "lm_head.weight", draw(vocabulary, D_MODEL)
        yield "model.norm.weight", draw(D_MODEL, around=1.0)
    for layer in layers:
        block = f"model.layers.{layer}."
        for name, heads in {"q": N_HEADS, "k": N_KV_HEADS, "v": N_KV_HEADS}.items():
            yield f"{block}self_attn.{name}_proj.weight", draw(heads * D_HEAD, D_MODEL)
            yield f"{block}self_attn.{name}_proj.bias", draw(heads * D_HEAD, deviation=0.1)
        yield f"{block}self_attn.o_proj.weight", draw(D_MODEL, N_HEADS * D_HEAD)
        for name in ("gate", "up"):
            yield f"{block}mlp.{name}_proj.weight", draw(1, D_MODEL)
        yield f"{block}mlp.down_proj.weight", draw(D_MODEL, 1)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{block}{name}.weight", draw(D_MODEL, around=1.0)


def survey_alone(folder: Path, store: str, run_id: str, vectors: int, threads: int) -> tuple[dict[str, Any], Values]:
    """Return seconds and memory of a survey of the heads in this process, and the checked circuits' values."""
    torch.set_num_threads(threads)
    config, run = load_config(folder), open_run(store, run_id)

    def progress(what: str, done: int, total: int) -> None:
        if done % 8 == 0:
            measuring.say(f"{vectors} vectors, {what}: {done} of {total} layers")

    def survey() -> None:
        spec = run.record.spec.model_copy(update={"heads": HeadsSpec(vectors=vectors)})
        weights = Weights(folder, config)
        compute_groups(Context(run, spec, {}, open_weights=lambda: weights, progress=progress), ["heads"])

    samples: list[int] = []
    threading.Thread(target=sample_memory, args=(samples,), daemon=True).start()
    with scheduler(None, threads):
        cpu_seconds = time.process_time()
        seconds = measuring.seconds_of(survey, measuring.CPU)
        cpu_seconds = time.process_time() - cpu_seconds
    result = {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_anonymous_bytes": max(samples, default=None)}
    values = read_group(run, "heads")["singular_values"].sel(offset=0, layer=config.num_hidden_layers // 2, head=HEAD)
    return result, {name: values.sel(circuit=name).values for name in CIRCUITS}


def sample_memory(samples: list[int]) -> None:
    """Append this process's anonymous memory in bytes until it ends; the system can reclaim pages of mapped files."""
    while (sample := measuring.memory_bytes("RssAnon")) is not None:
        samples.append(sample)
        time.sleep(0.05)


def against_dense(folder: Path, layer: int, stored: Sequence[Values]) -> dict[str, Any]:
    """Return the errors of stored values, and of a decomposition with all vectors, against dense circuits."""
    decomposed = decompose_one(Weights(folder, load_config(folder)), layer)
    result: dict[str, Any] = {"layer": layer, "head": HEAD}
    for name, product in dense_circuits(TensorFiles(folder), layer).items():
        measuring.say(f"dense singular values of {name}, {tuple(product.shape)}")
        started = time.perf_counter()
        dense = torch.linalg.svdvals(product).numpy()
        seconds = time.perf_counter() - started
        ours, own_seconds = decomposed[name]
        # Beyond the circuit's rank the dense values are rounding errors, and ours are zero.
        errors = [np.abs(np.pad(values[name], (0, D_MODEL - D_HEAD)) - dense).max() / dense[0] for values in stored]
        rebuilt = torch.from_numpy(ours.left[0].T * ours.singular_values[0]) @ torch.from_numpy(ours.right[0])
        result[name] = {
            "seconds": seconds,
            "theodolite_seconds": own_seconds,
            "largest_value_error": float(max(errors)),
            "reconstruction_error": float(torch.linalg.norm(rebuilt - product) / torch.linalg.norm(product)),
        }
        measuring.say(f"{name}: {result[name]}")
    return result


def decompose_one(weights: Weights, layer: int) -> dict[str, tuple[Decomposition, float]]:
    """Return both circuits of HEAD with all vectors, and the seconds of each decomposition."""
    circuits = read_circuits(weights, layer)
    kv_head = circuits.kv_head_of[HEAD]
    sides = {
        "qk": (circuits.query[HEAD], circuits.key[kv_head], circuits.rotations[0]),
        "ov": (circuits.value[kv_head], circuits.written[HEAD], None),
    }
    only, results = np.zeros(1, dtype=int), {}
    for name, (left, right, middle) in sides.items():
        started = time.perf_counter()
        decomposition = decompose(thin(left[None]), thin(right[None]), D_HEAD, only, only, middle)
        results[name] = decomposition, time.perf_counter() - started
    return results


def dense_circuits(files: TensorFiles, layer: int) -> dict[str, torch.Tensor]:
    """Return both circuits of HEAD as matrices, (d_model, d_model), from the stored tensors, (out, in)."""
    q, k, v, o = (files.read(f"model.layers.{layer}.self_attn.{name}_proj.weight").double() for name in "qkvo")
    own, shared = (slice(head * D_HEAD, (head + 1) * D_HEAD) for head in (HEAD, HEAD // (N_HEADS // N_KV_HEADS)))
    return {"qk": q[own].T @ k[shared] / D_HEAD**0.5, "ov": v[shared].T @ o[:, own].T}


def measure_smollm2(interpreter: str | None, repeats: int, threads: int) -> dict[str, Any]:
    """Return our and TransformerLens' seconds for all heads of the real model; exit if the values differ."""
    folder = measuring.chat_model()
    values = decompose_all(folder, threads)  # this also warms up
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    difference = version = None
    for turn in range(repeats):
        if interpreter is not None:
            peer_values, facts = in_other_interpreter(interpreter, folder, threads)
            difference, version = largest_difference(values, peer_values), facts["version"]
            if not difference <= SAME_VALUES:  # written so that a NaN fails too
                raise SystemExit(f"singular values differ by {difference:.1e}, more than {SAME_VALUES:.0e}")
            seconds["theirs"].append(facts["seconds"])
        started = time.perf_counter()
        decompose_all(folder, threads)
        seconds["ours"].append(time.perf_counter() - started)
        latest = ", ".join(f"{name} {times[-1]:.2f} s" for name, times in seconds.items() if times)
        measuring.say(f"turn {turn + 1} of {repeats}: {latest}")
    ours = np.median(seconds["ours"])
    theirs = np.median(seconds["theirs"]) if interpreter else None
    return {
        "ours_seconds": ours,
        "transformer_lens_seconds": theirs,
        "ratio_to_transformer_lens": theirs / ours if theirs else None,
        "largest_difference": difference,
        "transformer_lens": version,
        "heads": values.shape[1] * values.shape[2],
        "repeats": repeats,
    }


def decompose_all(folder: Path, threads: int) -> NDArray[np.float64]:
    """Return the singular values of QK and OV of all heads, (circuit, layer, head, rank), computed with all vectors."""
    weights = Weights(folder, load_config(folder))
    sizes = weights.dimensions
    no_stream = Stream(np.empty((0, sizes.d_model)), np.empty((0, sizes.d_model)))
    heads = HeadsSpec(vectors=sizes.d_head)
    arguments = [(weights, layer, heads, no_stream, (0, 0), None) for layer in range(sizes.n_layers)]
    with scheduler(None, threads):
        parts = list(run_tasks(decompose_layer, arguments, rounds=8))
    unscaled = np.array([1 / score_scale(weights.config, sizes, 0), 1.0])  # TransformerLens leaves 1/√d_head out of QK
    return np.stack([part["singular_values"][:, 0] for part in parts], axis=1) * unscaled[:, None, None, None]


def largest_difference(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    """Return the largest difference of singular values, relative to the largest value of the circuit."""
    return float((np.abs(ours - theirs) / ours[..., :1]).max())


def in_other_interpreter(interpreter: str, folder: Path, threads: int) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return TransformerLens' singular values, the seconds they took with all vectors, and its version."""
    program = f"{inspect.getsource(in_transformer_lens)}\n{in_transformer_lens.__name__}()"
    # MKL_CBWR makes a replica's sums deterministic, and might slow down the other side.
    environment = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    with tempfile.TemporaryDirectory() as temporary:
        values = Path(temporary) / "values.npy"
        command = [interpreter, "-c", program, str(folder), str(threads), str(values)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"TransformerLens fails in {interpreter}:\n{done.stderr}")
        return np.load(values), json.loads(done.stdout.splitlines()[-1])


def in_transformer_lens() -> None:
    # Another interpreter runs only this function's source, so it imports all that it uses.
    import json
    import sys
    import time
    from importlib.metadata import version

    import numpy as np
    import torch
    from transformer_lens.model_bridge.sources import build_bridge_from_module
    from transformers import AutoModelForCausalLM

    folder, threads, values = sys.argv[1:]
    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    bridge = build_bridge_from_module(model, type(model).__name__, hf_config=model.config)
    with torch.inference_mode():
        for _ in range(2):  # the first warms up
            started = time.perf_counter()
            circuits = bridge.QK.svd(), bridge.OV.svd()  # new objects, which have no cached results
            seconds = time.perf_counter() - started
    np.save(values, np.stack([singular.double().numpy() for _, singular, _ in circuits]))
    print(json.dumps({"seconds": seconds, "version": version("transformer-lens")}))


if __name__ == "__main__":
    main()
