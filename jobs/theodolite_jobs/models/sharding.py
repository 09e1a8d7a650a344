"""Tensor parallelism: decide whether a model can be sharded, so that each GPU holds a shard of every matrix."""

from math import gcd
from typing import Any, Literal

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.models.anatomy import dimensions_of
from theodolite_jobs.models.families import known_anatomy


def choose_ranks(parallelism: Literal["auto", "pipeline", "tensor"], config: Any, gpus: int) -> int:
    """Return the number of processes, with one GPU each, that share a replica's model; 1 is one process for all GPUs.

    With `tensor`, each process holds a shard of every matrix, and all processes compute at the same time. With
    `pipeline`, one process places the blocks on its GPUs (`device_map`), which work one after the other. `auto` is
    `tensor` for every model that can be sharded, else `pipeline`. All `gpus` of a replica are on one node.

    Raises:
        UnsupportedModelError: `tensor` is requested, and the model cannot be sharded.
    """
    if gpus < 2 or parallelism == "pipeline":
        return 1
    try:
        check_shardable(config, gpus)
    except UnsupportedModelError:
        if parallelism == "tensor":
            raise
        return 1
    return gpus


def check_shardable(config: Any, ranks: int) -> None:
    """Raise UnsupportedModelError, with the reason, if a model cannot be sharded over `ranks` GPUs."""
    text, dimensions = config.get_text_config(), dimensions_of(config)
    # Layers may differ in the number of their keys.
    of_layers = {dimensions_of(config, layer=layer).n_kv_heads for layer in range(dimensions.n_layers)}
    shared = gcd(dimensions.n_heads, *of_layers)
    reason = None
    if known_anatomy(config) is None:
        reason = "its family is not in the table, and a probe does not work on shards of matrices"
    elif not text.base_model_tp_plan:
        reason = "transformers has no tensor-parallel plan for its family"
    elif text.model_type == "cohere" and text.use_qk_norm:
        # Transformers' plan shards the heads, but not the scale of each head.
        reason = "its norms of queries and keys have one scale per head"
    elif shared % ranks:
        sizes = ", ".join(str(size) for size in range(1, shared + 1) if shared % size == 0)
        keys = " or ".join(map(str, sorted(of_layers)))
        reason = (
            f"its {dimensions.n_heads} heads and {keys} key-value heads are not both divisible by {ranks}; "
            f"allowed: {sizes}"
        )
    if reason is not None:
        raise UnsupportedModelError(
            f"{config.model_type!r} cannot run in tensor parallel over {ranks} GPUs: {reason}; "
            "set THEODOLITE_PARALLELISM to pipeline, or change the number of GPUs per replica"
        )
