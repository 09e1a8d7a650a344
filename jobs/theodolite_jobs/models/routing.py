"""Record which experts each token of a forward pass is routed to."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch

from theodolite_jobs.models.load import LoadedModel

Calls = Mapping[int, list[torch.Tensor]]
"""By layer: for each call of its experts, the experts of each token, (token, choice), in a fixed order."""

Chosen = dict[int, torch.Tensor]
"""By layer: the experts of each token of one prompt, (token, choice)."""

Kind = Literal["no experts", "compared", "unknown"]
"""Whether captured and plain runs can route a token to different experts, and whether this can be seen."""

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def routing_kind(model: LoadedModel) -> Kind:
    """Return `compared` if the configuration states several experts; `unknown` if attention selects tokens."""
    text = model.config.get_text_config()
    if getattr(text, "index_topk", None):  # DeepSeek's sparse attention: a selection that is not recorded
        return "unknown"
    counts = [getattr(text, name, None) for name in _COUNTS]
    return "compared" if any(isinstance(count, int) and count > 1 for count in counts) else "no experts"


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
            chosen[layer].append(indices[0].flatten(0, -2).sort(dim=-1).values.cpu())

    def keep_scores(layer: int, output: Any) -> None:
        scores = output[0] if isinstance(output, tuple) else output
        chosen[layer].append((scores.flatten(0, -2) != 0).cpu())

    with ExitStack() as hooks:  # removes them at its end
        for layer, block in enumerate(model.blocks):
            for module in block.modules():
                kind = type(module).__name__
                if kind == "Llama4Router":
                    hooks.enter_context(
                        module.register_forward_hook(lambda _, __, output, layer=layer: keep_scores(layer, output))
                    )
                elif "Experts" in kind and "Shared" not in kind:
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
        rows = parts[-1].view(len(lengths), width, -1)
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
        flips[layer] = int((captured[layer] != plain[layer][-count:]).any(dim=-1).sum())
        routed += count
    first = min((float(layer) for layer, count in flips.items() if count), default=math.inf)
    return first, sum(flips.values()), routed
