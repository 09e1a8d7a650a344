"""The routers of a model: which of its layers have experts, and which experts a layer uses for each token."""

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from theodolite_jobs.models.config_numbers import EXPERT_COUNTS
from theodolite_jobs.models.facts import skeleton
from theodolite_jobs.models.families import known_anatomy

if TYPE_CHECKING:  # torch takes seconds to load
    import torch

_INDICES = ("top_k_index", "router_indices")
"""The names that transformers gives the chosen experts, as an argument of a module of experts."""


class Router(NamedTuple):
    """A module of a block from which the chosen experts can be read.

    Attributes:
        module: its path in the block.
        reads: `indices` if the chosen experts are an argument of the module (of experts); `scores` if its output is a
            score of each expert that is 0 for the others (the router of Llama 4).
        n_experts: number of experts.
    """

    module: str
    reads: Literal["indices", "scores"]
    n_experts: int


class Experts(NamedTuple):
    """The experts of a model.

    Attributes:
        n_experts: number of experts of a layer among which its router chooses.
        n_choices: number of experts that a token uses in a layer.
        layers: the layers that have a router.
    """

    n_experts: int
    n_choices: int
    layers: tuple[int, ...]


def has_experts(config: Any) -> bool:
    """Return whether a configuration states several experts."""
    text = config.get_text_config()
    counts = [getattr(text, name, None) for name in EXPERT_COUNTS]
    return any(isinstance(count, int) and count > 1 for count in counts)


def experts_of(config: Any) -> Experts | None:
    """Return the experts of a model, from a skeleton; None if it has none, or if their routing cannot be read.

    The routing can be read in the families with a record whose layers all choose the same number of experts.

    Raises:
        ModelError: no model can be built from the configuration.
    """
    anatomy, n_choices = known_anatomy(config), _n_choices(config.get_text_config())
    if anatomy is None or not has_experts(config) or n_choices is None:
        return None
    blocks = skeleton(config).get_submodule(anatomy.blocks)
    routers = {layer: router for layer, block in enumerate(blocks) if (router := router_of(block)) is not None}
    if not routers:
        return None
    return Experts(max(router.n_experts for router in routers.values()), n_choices, tuple(routers))


def _n_choices(text: Any) -> int | None:
    """Return the number of experts that a token uses, which some families state for each layer; None if it varies."""
    stated = getattr(text, "num_experts_per_tok", None) or getattr(text, "top_k_experts", None)
    counts = set(stated) if isinstance(stated, list) else {stated}
    return counts.pop() if len(counts) == 1 else None


def captured_experts(config: Any, layers: Sequence[int]) -> Experts | None:
    """Return the experts of a model as `experts_of` does; None if none of these layers has a router."""
    experts = experts_of(config)
    return experts if experts and not set(experts.layers).isdisjoint(layers) else None


def router_of(block: "torch.nn.Module") -> Router | None:
    """Return the router of a block; None for a block without experts, or if two modules could be it."""
    routers = []
    for path, module in block.named_modules():
        kind = type(module).__name__
        if kind == "Llama4Router":
            routers.append(Router(path, "scores", int(module.num_experts)))
        elif "Experts" in kind and not set(_INDICES).isdisjoint(_signature(module).parameters):
            routers.append(Router(path, "indices", int(module.num_experts)))
    return routers[0] if len(routers) == 1 else None


def hook_router(block: "torch.nn.Module", router: Router, keep: "Callable[[torch.Tensor], None]") -> Any:
    """Call `keep` with the experts that each token uses, (token, choice), in every forward; return the hook.

    The experts are those that the model itself uses, in its own order. A choice is -1 if its score is 0, since the
    token then uses no expert.
    """
    module = block.get_submodule(router.module)
    if router.reads == "scores":
        n_choices: Any = module.top_k
        return module.register_forward_hook(lambda _, __, output: keep(_with_score(output[0], n_choices)))
    signature = _signature(module)
    (name,) = set(_INDICES) & set(signature.parameters)

    def keep_argument(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep(signature.bind(module, *args, **kwargs).arguments[name].flatten(0, -2))

    return module.register_forward_pre_hook(keep_argument, with_kwargs=True)


def _signature(module: "torch.nn.Module") -> inspect.Signature:
    """Return the signature of a module's class: sharding replaces the method of the module by one without names."""
    return inspect.signature(type(module).forward)


def _with_score(scores: "torch.Tensor", n_choices: int) -> "torch.Tensor":
    values, experts = scores.flatten(0, -2).topk(n_choices, dim=-1)
    return experts.masked_fill(values == 0, -1)
