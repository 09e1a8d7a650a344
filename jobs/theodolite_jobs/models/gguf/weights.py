"""Match the tensors of a GGUF file with the weights of the model, in both ways, before any is read; then compute them.

A conversion never invents a weight. transformers would fill a missing one with random numbers, and ignore a surplus
one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite_jobs.models.gguf.header import Header, StoredTensor
from theodolite_jobs.models.gguf.rules import Rule, Rules
from theodolite_jobs.models.gguf.tensors import read_tensor

if TYPE_CHECKING:  # torch takes seconds to load, and a file may be refused by its header
    from torch import Tensor

_FACTORS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
"""Tensors that the configuration contains, if its rotary positions are of the kind longrope."""


@dataclass(frozen=True)
class Step:
    """Tensors of a file from which a rule computes weights of the model."""

    rule: Rule
    stored: tuple[StoredTensor, ...]
    prefix: str  # of the weights' names


def steps_of(header: Header, rules: Rules, values: dict[str, Any]) -> list[Step]:
    """Return the steps that compute the weights of a model whose config.json has `values`.

    Raises:
        ModelError: the file lacks a tensor.
        UnsupportedModelError: the file has a tensor that no rule reads.
    """
    n_blocks = values.get("num_hidden_layers") or values["n_layer"]
    places = [(rules.outside, "", "")]
    places += [(rules.block, f"blk.{block}.", rules.prefix.format(block)) for block in range(n_blocks)]
    rope_type = (values.get("rope_parameters") or {}).get("rope_type")
    unread = header.tensors.keys() - (_FACTORS if rope_type == "longrope" else set())
    steps = []
    for some, before, prefix in places:
        for rule in some:
            names = [before + source for source in rule.sources]
            missing = [name for name in names if name not in header.tensors]
            if not missing:
                steps.append(Step(rule, tuple(header.tensors[name] for name in names), prefix))
                unread -= set(names)
            elif not rule.is_optional or len(missing) < len(names):
                raise _missing(header, missing[0])
    if unread:
        raise UnsupportedModelError(
            f"{header.files[0]} has the tensor {min(unread)}, which {header.metadata['general.architecture']!r} does "
            "not have with the settings of the file; use the model's safetensors files"
        )
    return steps


def _missing(header: Header, name: str) -> ModelError:
    return ModelError(f"{header.files[0]} lacks the tensor {name}; download it again, or use another file of the model")


def check_weights(header: Header, steps: list[Step], config: Any) -> int:
    """Return the number of weights; raise ModelError if the steps do not compute those of the model with their shapes.

    They must compute nothing else.
    """
    computed = _names_and_shapes(header, steps, config)
    wanted = _weights_of_model(config)
    if lacking := sorted(wanted.keys() - computed.keys()):
        raise ModelError(
            f"{header.files[0]} has no tensor for the weight {lacking[0]} of {config.model_type}; download it again, "
            "or use another file of the model"
        )
    for name, (shape, source) in computed.items():
        if name not in wanted:
            raise UnsupportedModelError(
                f"{header.files[0]} has the tensor {source}, which {config.model_type} does not have with the settings "
                "of the file; use the model's safetensors files"
            )
        if shape != wanted[name]:
            raise ModelError(
                f"{header.files[0]}: the tensor {source} gives the shape {shape}, and the settings of the file need "
                f"{wanted[name]}; download it again, or use another file of the model"
            )
    return len(computed)


def _names_and_shapes(header: Header, steps: list[Step], config: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape of each weight that the steps compute, and the name of its first tensor in the file."""
    import torch

    names = {id(stored): name for name, stored in header.tensors.items()}
    computed: dict[str, tuple[tuple[int, ...], str]] = {}
    for step in steps:
        source = names[id(step.stored[0])]
        empty = [torch.empty(stored.shape, device="meta") for stored in step.stored]
        try:
            weights = step.rule.compute(config, *empty)
        except (RuntimeError, ValueError) as error:
            raise ModelError(
                f"{header.files[0]}: the tensor {source} has the shape {step.stored[0].shape}, which does not fit the "
                "settings of the file; download it again"
            ) from error
        for name, weight in weights.items():
            if f"{step.prefix}{name}" in computed:
                raise ModelError(
                    f"{header.files[0]} states the weight {step.prefix}{name} in two ways; use another file"
                )
            computed[f"{step.prefix}{name}"] = tuple(weight.shape), source
    return computed


def _weights_of_model(config: Any) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight of the model, by its name; a tied language-model head is no weight of its own."""
    import copy

    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(copy.deepcopy(config))  # from_config changes its argument
    shapes = {name: tuple(weight.shape) for name, weight in module.state_dict().items()}
    if config.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    return shapes


def weights(steps: list[Step], config: Any) -> Iterator[tuple[str, "Tensor"]]:
    """Yield the weights of the model in float32, by name."""
    import torch

    for step in steps:
        computed = step.rule.compute(config, *(torch.from_numpy(read_tensor(stored)) for stored in step.stored))
        for name, weight in computed.items():
            yield f"{step.prefix}{name}", weight.contiguous() if len(computed) == 1 else weight.clone()
