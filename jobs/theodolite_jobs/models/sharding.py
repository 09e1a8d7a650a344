"""Tensor parallelism: which models can be cut over several GPUs so that each holds a part of every matrix."""

from math import gcd
from typing import Any, Literal

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.models.anatomy import dimensions_of
from theodolite_jobs.models.families import known_anatomy


def choose_ranks(parallelism: Literal["auto", "pipeline", "tensor"], config: Any, gpus: int) -> int:
    """Return how many processes of one GPU each share a replica's model; 1 is one process for all of its GPUs.

    In `tensor` each process holds a part of every matrix, and all compute at once. In `pipeline` one process lays the
    blocks over its GPUs, which work one after the other. `auto` is `tensor` for every model that can be cut so.

    Args:
        parallelism: what is asked for.
        config: the model's configuration.
        gpus: GPUs of one replica, on one node.

    Raises:
        UnsupportedModelError: `tensor` is asked for, and the model cannot be cut so.
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
    """Raise UnsupportedModelError where a model cannot be cut over so many GPUs, and say why."""
    text, dimensions = config.get_text_config(), dimensions_of(config)
    shared = gcd(dimensions.n_heads, dimensions.n_kv_heads)
    reason = None
    if known_anatomy(config) is None:
        reason = "its family is not in the table, and a probe cannot see parts of matrices"
    elif not text.base_model_tp_plan:
        reason = "transformers has no plan for its family"
    elif getattr(config, "quantization_config", None):
        reason = "its weights are quantised"
    elif getattr(text, "use_qk_norm", False):
        # Cohere; transformers' plan cuts the heads and leaves the scale that each of them has whole.
        reason = "its norms of queries and keys have a scale of their own for each head"
    elif shared % ranks:
        sizes = ", ".join(str(size) for size in range(1, shared + 1) if shared % size == 0)
        reason = (
            f"its {dimensions.n_heads} heads and {dimensions.n_kv_heads} key-value heads do not divide by {ranks}; "
            f"allowed is {sizes}"
        )
    if reason is not None:
        raise UnsupportedModelError(
            f"{config.model_type!r} cannot run in tensor parallel over {ranks} GPUs: {reason}; "
            "set THEODOLITE_PARALLELISM to pipeline, or change the GPUs of a replica"
        )
