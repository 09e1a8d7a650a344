"""Measure the statistics of activations on generated shards: seconds and memory.

The shards contain float32 numbers with bfloat16 precision, as a survey in bfloat16 writes them, and one large feature.

- `passes`: the first pass for the analysis `moments`, that with all outputs, and the second pass over a contrast.
  They run in turns with reading the same shards, through Zarr as other programs do, and with `read_shard`, which also
  compares checksums; on one thread and on two. The result has the medians.
- `doubling`: the same pass over one, two and four times as many samples.
- `rehearsal`: the shape of a 32B model: two sets of 1,024 prompts, 64 layers, 2 sites, d_model 5120, in all 5.4 GB. One
  process computes all groups of the two passes with a contrast, another one the Gram matrices. The peak resident set of
  each must stay below CAP_BYTES.

- `reduction`: 64 prompts with the shape of a 32B model, reduced in memory as a replica does beside its device with
  `capture.keep`; and the size of a reduced shard.

The shards are in TMPDIR; those of the rehearsal take 3 GB. The last line is one JSON object.
Usage: python benchmarks/passes.py --help
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import zarr
from generated import generated_shard, llama_norms

from theodolite.groups import GROUPS
from theodolite.groups.schema import Output
from theodolite.shard_bounds import ShardBounds
from theodolite.sites import Site
from theodolite.spec_file import parse_spec
from theodolite.store.activations import encode_shard
from theodolite.store.checksums import sha256
from theodolite.store.commits import commit_shard, new_attempt, read_commit
from theodolite.store.descriptions import encode_descriptions
from theodolite.store.layout import ACTIVATIONS
from theodolite.store.objects import join, open_zarr_store, put
from theodolite.store.records import Commit
from theodolite.store.runs import ModelFacts, Run, RunRecord, SetFacts, create_run, open_run
from theodolite.store.shards import read_shard
from theodolite_jobs.analysis import compute_groups
from theodolite_jobs.passes.all_shards import first_passes, second_passes
from theodolite_jobs.passes.one_shard import FirstPass
from theodolite_jobs.passes.reduced import CapturedSamples, encode_reduced, reduce_samples
from theodolite_jobs.passes.samples import SampleSelection
from theodolite_jobs.passes.selections import ContrastSelection
from theodolite_jobs.results.context import Context
from theodolite_jobs.tasks import run_tasks, scheduler

SITES = measuring.SITES
SHARD_PROMPTS = 64
CAP_BYTES = 2 * 2**30
CONTRASTS = {"refusal": {"positive": "harmful", "negative": "harmless", "paired": True}}

RUN_ID = "generated"
CAPTURE = {"batch_tokens": 2048, "shard_prompts": 64}


def main() -> None:
    options = measuring.read_options(
        "Measure the statistics of activations; print seconds and memory as JSON.",
        prompts=(512, "prompts of the measured set"),
        layers=(16, "layers of the measured set"),
        d_model=(5120, "features in all measurements"),
        rehearsal_prompts=(1024, "prompts of each rehearsed set; 0 skips the rehearsal"),
        rehearsal_layers=(64, "layers of the rehearsal"),
        repeats=(3, "turns; the result has the medians"),
    )
    with tempfile.TemporaryDirectory(prefix="theodolite-statistics-") as temporary:
        folder = Path(temporary)
        passes = measure_passes(folder, options)
        doubling = measure_doubling(folder, options)
        rehearsal = measure_rehearsal(folder, options) if options.rehearsal_prompts else None
    reduction = measure_reduction(options)
    result = {"passes": passes, "doubling": doubling, "rehearsal": rehearsal, "reduction": reduction}
    measuring.publish(result, options.out)


def medians(actions: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    return {name: float(np.median(seconds)) for name, seconds in measuring.in_turns(actions, repeats).items()}


def measure_passes(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of reading two sets and of both passes over them, with one thread and with two."""
    sets = {name: options.prompts // 2 for name in ("harmful", "harmless")}
    run = write_run(folder / "passes", sets, options.layers, options.d_model)
    outputs = frozenset[Output]({"stream", "norms", "travel", "folds"})
    sides = first_pass(run, outputs)
    contrast = ContrastSelection(*sides, paired=True, positions=(0,))
    second = partial(
        second_passes, run, "refusal", contrast, *sides.values(), ["curves", "separation"], lambda *_: None
    )
    result: dict[str, Any] = {"prompts": options.prompts, "layers": options.layers, "sites": len(SITES)}
    for threads in (1, 2):
        actions = {
            "reading_through_zarr": partial(read_all, zarr_shard, run),
            "reading_by_shard": partial(read_all, read_stored, run),
            "moments": partial(first_pass, run, frozenset({"stream"})),
            "first_pass": partial(first_pass, run, outputs),
            "second_pass": second,
        }
        with scheduler(None, threads):
            seconds = medians(actions, options.repeats)
        ratios = {
            name: seconds[name] / seconds["reading_by_shard"] for name in ("moments", "first_pass", "second_pass")
        }
        result[f"{threads}_threads"] = {"seconds": seconds, "ratio_to_reading_by_shard": ratios}
        measuring.say(f"{threads} threads: {result[f'{threads}_threads']}")
    return result


def measure_doubling(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of the first pass over one, two and four times as many samples."""
    sizes = [options.prompts // 2, options.prompts, 2 * options.prompts]
    runs = [write_run(folder / f"n{n}", {"nouns": n}, options.layers, options.d_model) for n in sizes]
    passes = {
        f"{n} prompts": partial(first_pass, run, frozenset({"stream"})) for n, run in zip(sizes, runs, strict=True)
    }
    seconds = list(medians(passes, options.repeats).values())
    measuring.say(f"prompts {sizes}: {seconds} s")
    return {"prompts": sizes, "seconds": seconds, "ratio_of_four_times": seconds[2] / seconds[0]}


def measure_rehearsal(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds and peak memory of all statistics at the shape of a 32B model."""
    sets = {"harmful": options.rehearsal_prompts, "harmless": options.rehearsal_prompts}
    run = write_run(folder / "rehearsal", sets, options.rehearsal_layers, options.d_model)
    numbers = sum(sets.values()) * options.rehearsal_layers * len(SITES) * options.d_model
    result: dict[str, Any] = {"bytes_of_activations": 4 * numbers, "cap_bytes": CAP_BYTES}
    for name, job in {"two_passes": two_passes, "gram": gram}.items():
        result[name] = measuring.in_new_process(alone, job, run.store)
        measuring.say(f"{name}: {result[name]}")
    result["within_cap"] = all(result[name]["peak_bytes"] < CAP_BYTES for name in ("two_passes", "gram"))
    return result


def measure_reduction(options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of one core to reduce and encode a part of a shard, and the bytes of a reduced shard."""
    layers = options.rehearsal_layers
    run = Run("", record_of({"nouns": SHARD_PROMPTS}, layers, options.d_model))
    activations = generated_shard(np.random.default_rng(0), SHARD_PROMPTS, layers, options.d_model)
    reduce = partial(reduce_samples, run, CapturedSamples(activations, 0, ()), llama_norms(run))
    with scheduler(None, 1):
        seconds = medians({"reduce": reduce, "encode": partial(encode_reduced, reduce())}, options.repeats)
    result = {
        "prompts": SHARD_PROMPTS,
        "reduce_seconds": seconds["reduce"],
        "encode_seconds": seconds["encode"],
        "reduced_shard_bytes": len(encode_reduced(reduce())),
    }
    measuring.say(f"reduction: {result}")
    return result


def alone(job: Callable[[Run], Any], store: str) -> dict[str, Any]:
    """Return the seconds and peak memory of a job, in a process without other work."""
    seconds = measuring.seconds_of(partial(job, open_run(store, RUN_ID)), measuring.CPU)
    return {"seconds": seconds, "peak_bytes": measuring.peak_memory_bytes()}


def two_passes(run: Run) -> None:
    """Compute all groups of the two passes."""
    context = Context(run, run.record.spec, CONTRASTS, progress=report_progress)
    context.norms = llama_norms(run)  # instead of those of a model
    compute_groups(context, [name for name, group in GROUPS.items() if group.per_set or group.per_side])


def gram(run: Run) -> None:
    """Compute the Gram matrices."""
    compute_groups(Context(run, run.record.spec, CONTRASTS, progress=report_progress), ["gram"])


def report_progress(what: str, done: int, total: int) -> None:
    """Print the progress of a job after every 16 tasks."""
    if done % 16 == 0:
        measuring.say(f"{what}: {done} of {total}")


def read_all(read: Callable[[Run, Site, str, int], None], run: Run) -> None:
    """Read all shards of all sites, and discard the values."""
    shards = [(name, index) for name, facts in run.record.sets.items() for index in range(facts.n_shards)]
    with scheduler(None):
        list(run_tasks(read, [(run, site, *shard) for shard in shards for site in SITES]))


def zarr_shard(run: Run, site: Site, name: str, index: int) -> None:
    store = open_zarr_store(join(run.url, ACTIVATIONS), read_only=True)
    array = zarr.open_array(store, path=f"{name}/{site}", mode="r")
    np.asarray(array[index * SHARD_PROMPTS : (index + 1) * SHARD_PROMPTS])


def read_stored(run: Run, site: Site, name: str, index: int) -> None:
    read_shard(run, read_commit(run, name, index), site)


def first_pass(run: Run, outputs: frozenset[Output]) -> dict[SampleSelection, FirstPass]:
    """Compute and merge outputs of the first pass over all shards."""
    norms = llama_norms(run) if "norms" in outputs else []
    with scheduler(None):
        requested = {SampleSelection(name, frozenset(), (0,)): outputs for name in run.record.sets}
        return first_passes(run, requested, norms, lambda *_: None)


def write_run(folder: Path, sets: dict[str, int], layers: int, d_model: int) -> Run:
    """Write a captured run of generated activations, shard by shard."""
    run = create_run(str(folder), record_of(sets, layers, d_model))
    rng = np.random.default_rng(0)
    for name, n_samples in sets.items():
        coordinates = {"position": [-1], "layer": range(layers), "d_model": range(d_model)}
        bounds = ShardBounds(n_samples, n_samples, SHARD_PROMPTS)
        for key, content in encode_descriptions(name, bounds, measuring.CAPTURED, coordinates).items():
            put(run.location, key, content)
        for index, start in enumerate(range(0, n_samples, SHARD_PROMPTS)):
            stop = min(start + SHARD_PROMPTS, n_samples)
            activations = generated_shard(rng, stop - start, layers, d_model)
            encoded = {site: encode_shard(site, values, start, SHARD_PROMPTS) for site, values in activations.items()}
            checksums = {str(site): sha256(content) for site, content in encoded.items()}
            commit_shard(run.location, Commit(run.id, name, index, start, stop, new_attempt(), checksums, []), encoded)
        measuring.say(f"wrote {n_samples} prompts of {name}")
    return run


def record_of(sets: dict[str, int], layers: int, d_model: int) -> RunRecord:
    prompts = {name: {"source": "builtin:nouns", "template": "none"} for name in sets}
    contrasts = {name: contrast for name, contrast in CONTRASTS.items() if set(sets) >= {contrast["positive"]}}
    model = {"n_layers": layers, "d_model": d_model, "n_heads": 40, "n_kv_heads": 8, "d_head": 128}
    names = dict.fromkeys(("name", "kind", "place", "revision", "family", "dtype", "attention"), "generated")
    spec = {
        "model": {"id": "generated"},
        "prompts": prompts,
        "contrasts": contrasts,
        "capture": CAPTURE,
        "words": {"sentences": []},
    }
    nothing = {"n_batches": 0, "plan_sha256": "", "template": "none", "shared_prefix": 0, "token_ids_sha256": ""}
    nothing |= {"n_first": 0, "n_units": 0}
    facts = {
        name: SetFacts(
            n_samples=n, n_shards=-(-n // SHARD_PROMPTS), positions=[-1], tokens=n, computed_tokens=n, **nothing
        )
        for name, n in sets.items()
    }
    return RunRecord(
        run_id=RUN_ID,
        digest="",
        created=datetime.now(UTC),
        spec=parse_spec(spec),
        model=ModelFacts(**names, **model, context_length=4096),
        layers=list(range(layers)),
        sets=facts,
        parity={"post_norm": False, "branches_add": True},
        versions={},
    )


if __name__ == "__main__":
    main()
