"""Hooks that copy the selected sites at the selected positions, and end the forward after the last of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch

from theodolite.errors import UnsupportedModelError
from theodolite.sites import Site
from theodolite_jobs.models.anatomy import Tap
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.routers import Router, hook_router

POSITIVE_UNITS = "positive_units"
"""The key of the MLPs' hidden units, next to the sites."""

CHOSEN_EXPERTS = "chosen_experts"
"""The key of the experts that tokens use, next to the sites."""

Keep = Callable[[torch.Tensor], None]
"""The action of a hook on a hidden state."""


@contextmanager
def tapped(
    model: LoadedModel,
    sites: Sequence[Site],
    layers: Sequence[int],
    spans: torch.Tensor,
    has_means: bool,
    units: int = 0,
    routers: Mapping[int, Router] = {},
) -> Iterator[Mapping[str, list[torch.Tensor]]]:
    """Collect, during one forward inside the context, one (batch, position, d_model) tensor per layer with a site.

    The forward and the context end as soon as all tensors are collected, so no later block runs.

    `spans` are the tokens to copy, (batch, position, 2): the first, and one past the last. Of several, the result is
    the mean in float32; `has_means` says whether there are any. The list of `resid_final` has one tensor. If `units` is
    not 0, `POSITIVE_UNITS` is collected too: for each layer, whether each of the MLP's first `units` hidden units is
    positive before gating, as (batch, position, unit) booleans. For each layer of `routers`, in their order,
    `CHOSEN_EXPERTS` has the experts that the tokens use, (batch, position, choice): of several tokens -1, since a mean
    uses none.
    """
    on_device = {spans.device: spans}

    def selected(hidden: torch.Tensor) -> torch.Tensor:
        """Return a copy of shape (batch, position, feature); later in-place sums do not change it."""
        if hidden.ndim == 2:  # some families flatten (batch, token)
            hidden = hidden.view(len(spans), -1, hidden.shape[-1])
        if hidden.ndim != 3 or len(hidden) != len(spans):
            raise UnsupportedModelError(
                f"a block holds {tuple(hidden.shape)} for {len(spans)} prompts; supported are blocks that hold "
                "(prompt, token, d_model)"
            )
        if hidden.device not in on_device:  # blocks may be on several devices
            on_device[hidden.device] = spans.to(hidden.device)
        own = on_device[hidden.device]
        rows, last = torch.arange(len(spans), device=hidden.device)[:, None], (own[..., 1] - 1).clamp(min=0)
        chosen = hidden[rows, last]
        return _with_means(chosen, hidden, own) if has_means else chosen

    collected: dict[str, list[torch.Tensor]] = {site: [] for site in sites}
    wanted: list[tuple[torch.nn.Module, Tap, Keep]] = []

    def keep(name: str, values: torch.Tensor) -> None:
        collected[name].append(values)
        if sum(map(len, collected.values())) == len(wanted) + len(routers):
            raise _AllCollected

    def keep_site(site: Site, scale: float, hidden: torch.Tensor) -> None:
        keep(site, selected(hidden) if scale == 1 else selected(hidden) * scale)

    def keep_signs(hidden: torch.Tensor) -> None:
        keep(POSITIVE_UNITS, selected(hidden)[..., :units] > 0)

    for site in sites:
        if site is Site.RESID_FINAL:
            wanted.append((model.blocks[-1], Tap("", "output"), partial(keep_site, site, 1.0)))
        else:
            tap, having = model.anatomy.tap(site), model.anatomy.layers_with(site, layers)
            wanted += [(model.blocks[layer], tap, partial(keep_site, site, tap.scale)) for layer in having]
    if units:
        assert model.anatomy.mlp_units is not None
        collected[POSITIVE_UNITS] = []
        wanted += [(model.blocks[layer], Tap(model.anatomy.mlp_units, "output"), keep_signs) for layer in layers]
    if routers:
        collected[CHOSEN_EXPERTS] = []
    with ExitStack() as hooks, suppress(_AllCollected):  # the stack removes the hooks at its end
        for layer, router in routers.items():
            hooks.enter_context(
                hook_router(model.blocks[layer], router, lambda experts: keep(CHOSEN_EXPERTS, selected(experts)))
            )
        for block, tap, act in wanted:
            hooks.enter_context(_hook(block, tap, act))
        yield collected


def _with_means(chosen: torch.Tensor, hidden: torch.Tensor, spans: torch.Tensor) -> torch.Tensor:
    """Return the chosen tokens, (batch, position, feature), with the mean in place of those of longer spans.

    The product with a matrix of weights does not store the tokens of a span, and adds them in the same order each time.
    """
    count = spans[..., 1] - spans[..., 0]
    if not hidden.is_floating_point():
        return chosen.masked_fill(count[..., None] > 1, -1)
    token = torch.arange(hidden.shape[1], device=hidden.device)
    within = (token >= spans[..., :1]) & (token < spans[..., 1:]) & (count[..., None] > 1)  # (batch, position, token)
    # A value that is not finite would make the mean of every other span of its prompt NaN.
    finite = hidden.float().masked_fill(~within.any(dim=1)[..., None], 0)
    sums = torch.bmm(within.float(), finite)
    return torch.where(count[..., None] > 1, sums / count[..., None], chosen.float())


class _AllCollected(Exception):
    """Ends a forward."""


def hook_plus(hooks: ExitStack, owner: torch.nn.Module, tap: Tap) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what adds the output of the tap's second module, if it has one, to a hidden state of its first."""
    if tap.plus is None:
        return lambda hidden: hidden
    found: list[torch.Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        found.append(output[0] if isinstance(output, tuple) else output)

    hooks.enter_context(owner.get_submodule(tap.plus).register_forward_hook(keep))
    return lambda hidden: found.pop() + hidden


def _hook(owner: torch.nn.Module, tap: Tap, keep: Keep) -> Any:
    def keep_input(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep(args[0] if args else kwargs["hidden_states"])

    hooks = ExitStack()
    added = hook_plus(hooks, owner, tap)

    def keep_output(_: Any, __: Any, output: Any) -> None:
        keep(added(output[0] if isinstance(output, tuple) else output))

    module = owner.get_submodule(tap.module)
    if tap.side == "input":
        return module.register_forward_pre_hook(keep_input, with_kwargs=True)
    hooks.enter_context(module.register_forward_hook(keep_output))
    return hooks
