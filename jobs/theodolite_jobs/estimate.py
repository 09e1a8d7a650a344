"""What a survey would cost, from its plan and the model's sizes alone. Pure."""

from typing import Any

from theodolite_jobs.prepare import Prepared

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# Forward passes take about two operations per weight and token; what a device reaches of them is a guess.
_OPERATIONS_PER_SECOND = {"one CPU core": 6e10, "one H200 GPU": 4e14}


def estimate(prepared: Prepared) -> dict[str, Any]:
    """Return prompts, tokens, shards and batches of each set, and memory, bytes and time of the whole."""
    from theodolite.models.load import resolved_dtype

    parameters = count_parameters(prepared.config)
    dtype = resolved_dtype(prepared.config, prepared.spec.model.dtype)
    sets = {
        name: {
            "prompts": plan.n_samples,
            "tokens": plan.tokens,
            "shared_prefix": plan.shared_prefix,
            "computed_tokens": plan.computed_tokens,
            "shards": len(plan.shards),
            "batches": sum(len(shard.batches) for shard in plan.shards),
        }
        for name, plan in prepared.plans.items()
    }
    tokens = sum(plan.computed_tokens for plan in prepared.plans.values())
    vectors = sum(plan.n_samples * len(plan.positions) for plan in prepared.plans.values())
    per_vector = len(prepared.layers) * len(prepared.spec.capture.sites) + 1
    return {
        "run_id": prepared.run_id,
        "model": {
            "name": prepared.source.name,
            "revision": prepared.source.revision,
            "parameters": parameters,
            "dtype": dtype,
            **prepared.dimensions.as_dict(),
        },
        "sets": sets,
        "replica_memory_bytes": parameters * _BYTES[dtype] + 2**30,
        "stored_bytes_at_most": vectors * per_vector * prepared.dimensions.d_model * 4,
        "seconds_about": {
            device: round(2 * parameters * tokens / speed, 1) for device, speed in _OPERATIONS_PER_SECOND.items()
        },
    }


def count_parameters(config: Any) -> int:
    """Return the number of weights of the base model, from a skeleton without memory."""
    import torch
    from transformers import AutoModel

    with torch.device("meta"):
        skeleton = AutoModel.from_config(config)
    return sum(parameter.numel() for parameter in skeleton.parameters())
