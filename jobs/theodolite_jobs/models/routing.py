"""Record which experts each token of a forward pass is routed to."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch

from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.routers import has_experts

Calls = Mapping[int, list[torch.Tensor]]
"""By layer: for each call of its experts, the expert and its weight for each token and choice, (token, choice, 2).

The choices of a token are in a fixed order. The weights are 0 if they cannot be read.
"""

Chosen = dict[int, torch.Tensor]
"""By layer: the experts of each token of one prompt, (token, choice, 2)."""

Kind = Literal["no experts", "compared", "unknown"]
"""Whether captured and plain runs can route a token to different experts, and whether this can be seen."""

# The change of a weight that is no rounding, as a share of the largest weight of the token. Phi-MoE leaves out experts
# below a threshold when it computes the weights, so a weight can jump while the chosen experts stay the same.
_JUMP = 0.1


def routing_kind(model: LoadedModel) -> Kind:
    """Return `compared` if the configuration states several experts; `unknown` if attention selects tokens."""
    text = model.config.get_text_config()
    if getattr(text, "index_topk", None):  # DeepSeek's sparse attention: a selection that is not recorded
        return "unknown"
    return "compared" if has_experts(model.config) else "no experts"


@contextmanager
def recorded_routing(model: LoadedModel) -> Iterator[Calls]:
    """Record the routing of the forward passes inside the context, by layer.

    In transformers, a module of experts gets the indices of the chosen experts. Llama 4 instead multiplies its input
    with the scores of its router, which are 0 for the experts that are not chosen. A layer without experts, and a
    layer whose routing cannot be read, has no entry.
    """
    chosen: dict[int, list[torch.Tensor]] = defaultdict(list)

    def keep_indices(layer: int, inputs: Any) -> None:
        indices = [one for one in inputs if torch.is_tensor(one) and one.dtype in (torch.int32, torch.int64)]
        if len(indices) == 1 and indices[0].ndim > 1:
            experts, order = indices[0].flatten(0, -2).sort(dim=-1)
            same = [one for one in inputs if torch.is_tensor(one) and one.shape == indices[0].shape]
            weights = [one.flatten(0, -2).gather(-1, order) for one in same if one.is_floating_point()]
            pair = experts.double(), weights[0].double() if weights else torch.zeros_like(experts).double()
            chosen[layer].append(torch.stack(pair, dim=-1).cpu())

    def keep_scores(layer: int, output: Any) -> None:
        scores = output[0] if isinstance(output, tuple) else output
        scores = scores.flatten(0, -2).double()
        chosen[layer].append(torch.stack(((scores != 0).double(), scores), dim=-1).cpu())

    with ExitStack() as hooks:  # removes them at its end
        for layer, block in enumerate(model.blocks):
            for module in block.modules():
                kind = type(module).__name__
                if kind == "Llama4Router":
                    hooks.enter_context(
                        module.register_forward_hook(lambda _, __, output, layer=layer: keep_scores(layer, output))
                    )
                elif "Experts" in kind:  # a module of shared experts gets no indices
                    hooks.enter_context(
                        module.register_forward_pre_hook(
                            lambda _, args, kwargs, layer=layer: keep_indices(layer, [*args, *kwargs.values()]),
                            with_kwargs=True,
                        )
                    )
        yield chosen


def routing_of_prompt(calls: Calls) -> Chosen:
    """Return the routing of a prompt that ran alone."""
    return {layer: parts[0] for layer, parts in calls.items()}


def routing_of_batch(calls: Calls, lengths: Sequence[int], prefix: Chosen) -> list[Chosen]:
    """Return the routing of each prompt of a padded batch, from the calls during its capture.

    `lengths` are the prompts' numbers of tokens behind the shared prefix. The first batch of a set computes this
    prefix; its routing is stored in `prefix`. A layer with other calls, as after a batch ran out of memory, has no
    entry.
    """
    width = max(lengths)
    prompts: list[Chosen] = [{} for _ in lengths]
    for layer, parts in calls.items():
        if len(parts) > 2 or len(parts[-1]) != len(lengths) * width:
            continue
        if len(parts) == 2:
            prefix[layer] = parts[0]
        rows = parts[-1].unflatten(0, (len(lengths), width))
        for own, row, length in zip(prompts, rows, lengths, strict=True):
            own[layer] = torch.cat([prefix[layer], row[:length]]) if layer in prefix else row[:length]
    return prompts


def first_rerouted(captured: Chosen, plain: Chosen) -> tuple[float, int, int]:
    """Return the first layer that routes a token differently (or infinity), and the numbers of flips and of routings.

    If the captured routing lacks the shared prefix, the other tokens are compared.
    """
    flips, routed = {}, 0
    for layer in captured.keys() & plain.keys():
        count = len(captured[layer])
        flips[layer] = int(_differ(captured[layer], plain[layer][-count:]).sum())
        routed += count
    first = min((float(layer) for layer, count in flips.items() if count), default=math.inf)
    return first, sum(flips.values()), routed


def _differ(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Return which tokens have other experts, or the same ones with weights that differ by more than rounding."""
    others = (ours[..., 0] != theirs[..., 0]).any(dim=-1)
    changes = (ours[..., 1] - theirs[..., 1]).abs().amax(dim=-1)
    return others | (changes > _JUMP * theirs[..., 1].abs().amax(dim=-1))
