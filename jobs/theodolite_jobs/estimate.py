"""Estimate the cost of a survey from its plan and the sizes of the model."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from theodolite.errors import ModelError
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.spec_parts import counted
from theodolite.store.objects import local_folder
from theodolite.store.runs import Run
from theodolite_jobs.costs import GPU, REDUCE_SECONDS, WRITE_SECONDS, core, rounded
from theodolite_jobs.example import example_of, measured_tokens
from theodolite_jobs.gpus import KINDS, on_kind
from theodolite_jobs.models.convert.random_weights import random_bytes
from theodolite_jobs.models.facts import mlp_width, skeleton
from theodolite_jobs.models.load import load_tokenizer, resolved_dtype
from theodolite_jobs.models.sharding import choose_ranks
from theodolite_jobs.models.source import adapter_facts, weight_format
from theodolite_jobs.prepare import planned, prepare
from theodolite_jobs.prepared import Prepared

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

_SHOWN_TOKENS, _MOST_SHOWN_TOKENS = 10, 50  # more than 10 if an earlier position is captured

_LEAST_ACTIVATION_BYTES = 2**30


@dataclass(frozen=True)
class _Work:
    """What the replicas of a kind of device do for a survey."""

    operations: float  # of all forward passes
    launches: int  # of blocks, one for each batch
    core_seconds: float  # processor time that writes or reduces all activations


class _CharacterTokenizer:
    """A replacement for a missing tokenizer: one token for every fourth character; ids are outside any vocabulary."""

    is_estimate = True
    chat_template = ""

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "\n".join(message["content"] for message in messages)

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[Any]]]:
        return {
            "input_ids": [[-ord(character) for character in text[::4]] for text in texts],
            "offset_mapping": [[(start, start + 4) for start in range(0, len(text), 4)] for text in texts],
        }


def plan_survey(
    spec: SurveySpec,
    folder: Path,
    settings: Settings,
    *,
    with_last_tokens: bool = False,
    with_example: bool = False,
) -> dict[str, Any]:
    """Return the estimated cost of a survey; `tokens_counted_by` says whether the tokens are estimated too.

    Args:
        spec: the survey.
        folder: the folder of the spec.
        settings: the cache, the store, and what the deployment allows.
        with_last_tokens: whether to return the texts of the last tokens of the first prompt of each set, and of those
            at named positions. They are for
            the caller's own terminal, not for a log or for a service that may hide prompts.
        with_example: whether to return the `example` of `example_of`, not for a service that hides prompts.

    Raises:
        StoreError: the store's URL is mistyped; nothing else of the store is checked.
        SpecError, ModelError: as `prepare`.
    """
    local_folder(settings.store)  # raises for a mistyped URL
    counted_by = [exact := "the model's tokenizer"]
    loaded: list[Any] = []

    def tokenizer_of(files: Path, trust_remote_code: bool) -> Any:
        try:
            loaded.append(load_tokenizer(files, trust_remote_code))
            return loaded[0]
        except ModelError:
            counted_by[0] = "characters / 4, because the model's tokenizer is not available"
            return _CharacterTokenizer()

    prepared = prepare(spec, folder, settings, tokenizer_of)
    costs = {**estimate(prepared), "tokens_counted_by": counted_by[0]}
    if counted_by != [exact]:  # the default template depends on the tokenizer
        for name, facts in costs["sets"].items():
            facts["template"] = spec.sets[name].template
    elif with_example and (example := example_of(prepared, loaded[0])):
        costs["example"] = example
    if with_last_tokens and counted_by == [exact]:
        for name, facts in costs["sets"].items():
            reach = -min(counted(label) or 0 for label in prepared.positions[name]) * (facts["positions"] != "all")
            shown = prepared.tokens[name][0][-min(max(reach, _SHOWN_TOKENS), _MOST_SHOWN_TOKENS) :]
            facts["last_tokens"] = [loaded[0].decode([token]) for token in shown]
            if measured := measured_tokens(prepared, name, loaded[0]):
                facts["measured"] = measured
    # The replacement of a tokenizer gives different prompts equal tokens.
    about_model = [note for note in (prepared.source.note, prepared.left_out) if note]
    warnings = [*prepared.notes, *(prepared.warnings if counted_by == [exact] else about_model)]
    return {**costs, "warnings": warnings} if warnings else costs


def estimate(prepared: Prepared) -> dict[str, Any]:
    """Return the prompts, tokens, shards and batches of each set, and the cost of the survey.

    The seconds and costs on GPUs are those of batches for GPUs, if the spec leaves their size open.
    """
    from theodolite_jobs.analysis_costs import analysis_costs, costs_on_request  # torch takes seconds to load
    from theodolite_jobs.analysis_counts import Survey
    from theodolite_jobs.capture.parity import FIRST_BLOCKS

    parameters = count_parameters(prepared.config)
    stored = weight_format(prepared.source, prepared.config)
    adapter = adapter_facts(prepared.source, prepared.config)
    dtype = resolved_dtype(prepared.config, prepared.spec.model.dtype)
    prompts = sum(plan.n_samples for plan in prepared.plans.values())
    weights = parameters * _BYTES.get(dtype, 4)
    # The parity check loads the embedding and the first blocks in float32.
    embedding = int(prepared.config.get_text_config().vocab_size) * prepared.dimensions.d_model
    block = (parameters - embedding) // prepared.dimensions.n_layers
    first_blocks = 4 * (embedding + FIRST_BLOCKS * block)
    on_cpu, on_gpu = planned(prepared, "cpu"), planned(prepared, "gpu")
    cpu_work, gpu_work = (_work(one, block) for one in (on_cpu, on_gpu))
    one_core = core()
    capture_seconds = {
        "one CPU core": rounded(one_core.seconds(cpu_work.operations, cpu_work.launches)),
        "one H200 GPU": rounded(GPU.seconds(gpu_work.operations, gpu_work.launches)),
    }
    capture_bytes = sum(prepared.shard_bytes(shard) for plan in prepared.plans.values() for shard in plan.shards)
    run = Run("", prepared.record("", {}))  # which is not stored
    survey = Survey(run, prepared.spec, prepared.spec.resolved_contrasts(), prepared.config, block)
    parts = {"capture": {"seconds": capture_seconds, "bytes": capture_bytes}} | analysis_costs(survey, one_core)

    def is_shardable(gpus: int) -> bool:
        return choose_ranks("auto", prepared.config, gpus) > 1

    def other_bytes(of: Prepared, gpus: int) -> float:
        """Return the bytes per GPU besides the weights: activations, and the first blocks of the parity check."""
        activations = _activation_bytes(of, dtype)
        if gpus > 1:  # the parity check holds the first blocks whole and sharded
            return activations + first_blocks * (1 + 1 / gpus)
        return activations + (0 if dtype == "float32" else first_blocks)

    on_kinds = {
        name: on_gpu.spec.capture.sizes._asdict()
        | on_kind(
            kind,
            weights,
            partial(other_bytes, on_gpu),
            gpu_work.operations,
            gpu_work.launches,
            prompts,
            gpu_work.core_seconds,
            is_shardable,
        )
        for name, kind in KINDS.items()
    }
    return {
        "run_id": prepared.run_id,
        "model": {
            "name": prepared.source.name,
            "revision": prepared.source.revision,
            "parameters": parameters,
            "dtype": dtype,
            "weights": prepared.source.weights,
            **({"dequantised_from": stored} if stored else {}),
            **({"adapter": adapter.model_dump(exclude_none=True)} if adapter else {}),
            **asdict(prepared.dimensions),
        },
        "sets": {name: _set_facts(prepared, name) for name in prepared.plans},
        **prepared.spec.capture.sizes._asdict(),
        "replica_memory_bytes": round(weights + other_bytes(prepared, 1)),
        "stored_bytes_at_most": capture_bytes,
        **({"random_weights_bytes": random_bytes(prepared.config)} if prepared.source.weights == "random" else {}),
        "parts_about": {**parts, "total": _total(parts)},
        "on_request_about": costs_on_request(survey, one_core),
        "on_gpus_about": on_kinds,
    }


def _total(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of the processor time and of the bytes of all parts of a survey."""
    seconds = sum(part["seconds"]["one CPU core"] for part in parts.values())
    return {"seconds": {"one CPU core": rounded(seconds)}, "bytes": sum(part["bytes"] for part in parts.values())}


def _set_facts(prepared: Prepared, name: str) -> dict[str, Any]:
    """Return the prompts, tokens, shards and batches of a set."""
    plan = prepared.plans[name]
    return {
        "prompts": plan.n_samples,
        "template": prepared.templates[name],
        "positions": prepared.spec.labels_of(name) or "all",
        "tokens": plan.tokens,
        "shared_prefix": plan.layout.shared_prefix,
        "computed_tokens": plan.computed_tokens,
        "shards": len(plan.shards),
        "batches": sum(len(shard.batches) for shard in plan.shards),
        **prepared.read_facts.get(name, {}),
    }


def _work(prepared: Prepared, block: int) -> _Work:
    """Return the work of a survey whose model has so many weights in each block."""
    shards = [shard for plan in prepared.plans.values() for shard in plan.shards]
    tokens = sum(plan.computed_tokens for plan in prepared.plans.values())
    return _Work(
        operations=2.0 * block * prepared.run_blocks * tokens,
        launches=sum(len(shard.batches) for shard in shards) * prepared.run_blocks,
        core_seconds=sum(
            prepared.activation_bytes(shard) * (REDUCE_SECONDS if shard.is_reduced else WRITE_SECONDS)
            for shard in shards
        ),
    )


def _activation_bytes(prepared: Prepared, dtype: str) -> float:
    """Return the bytes of the activations of a full batch: 4.1 GB, as measured, for 16,384 tokens of a 32B model."""
    d_model = prepared.dimensions.d_model
    width = 3 * (mlp_width(prepared.config) or 4 * d_model) + 8 * d_model
    most = max((plan.computed_tokens for plan in prepared.plans.values()), default=0)
    tokens = min(prepared.spec.capture.sizes.batch_tokens, most)
    return max(_LEAST_ACTIVATION_BYTES, tokens * width * _BYTES.get(dtype, 4))


def count_parameters(config: Any) -> int:
    """Return the number of weights of the base model, from a skeleton on the meta device."""
    return sum(parameter.numel() for parameter in skeleton(config).parameters())
