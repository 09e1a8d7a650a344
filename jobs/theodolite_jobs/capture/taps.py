"""Hooks that copy the selected sites at the selected positions, and nothing else."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from theodolite.errors import UnsupportedModelError
from theodolite.sites import Site
from theodolite_jobs.models.anatomy import Tap
from theodolite_jobs.models.load import LoadedModel

POSITIVE_UNITS = "positive_units"
"""The key of the MLPs' hidden units, next to the sites."""

Keep = Callable[[torch.Tensor], None]
"""The action of a hook on a hidden state."""


@contextmanager
def tapped(
    model: LoadedModel, sites: Sequence[Site], layers: Sequence[int], indices: torch.Tensor, units: int = 0
) -> Iterator[Mapping[str, list[torch.Tensor]]]:
    """Collect, during forwards inside the context, one (batch, position, d_model) tensor per site and layer.

    `indices` are the tokens to copy, (batch, position). `resid_final` is collected too, as a list of one tensor. If
    `units` is not 0, `POSITIVE_UNITS` is collected too: for each layer, whether each of the MLP's first `units` hidden
    units is positive before gating, as (batch, position, unit) booleans.
    """
    on_device = {indices.device: indices}

    def selected(hidden: torch.Tensor) -> torch.Tensor:
        """Return a copy of shape (batch, position, feature); later in-place sums do not change it."""
        if hidden.ndim == 2:  # some families flatten (batch, token)
            hidden = hidden.view(len(indices), -1, hidden.shape[-1])
        if hidden.ndim != 3 or len(hidden) != len(indices):
            raise UnsupportedModelError(
                f"a block holds {tuple(hidden.shape)} for {len(indices)} prompts; supported are blocks that hold "
                "(prompt, token, d_model)"
            )
        if hidden.device not in on_device:  # blocks may be on several devices
            on_device[hidden.device] = indices.to(hidden.device)
        rows = torch.arange(len(indices), device=hidden.device)[:, None]
        return hidden[rows, on_device[hidden.device]]

    collected: dict[str, list[torch.Tensor]] = {site: [] for site in (*sites, Site.RESID_FINAL)}

    def keep(site: Site, scale: float, hidden: torch.Tensor) -> None:
        collected[site].append(selected(hidden) if scale == 1 else selected(hidden) * scale)

    def keep_signs(hidden: torch.Tensor) -> None:
        collected[POSITIVE_UNITS].append(selected(hidden)[..., :units] > 0)

    taps = model.anatomy.taps
    wanted: list[tuple[Tap, Keep]] = [(taps[site], partial(keep, site, taps[site].scale)) for site in sites]
    if units:
        assert model.anatomy.mlp_units is not None
        collected[POSITIVE_UNITS] = []
        wanted.append((Tap(model.anatomy.mlp_units, "output"), keep_signs))
    with ExitStack() as hooks:  # removes them at its end
        for tap, act in wanted:
            for layer in layers:
                hooks.enter_context(_hook(model.blocks[layer], tap, act))
        hooks.enter_context(_hook(model.blocks[-1], Tap("", "output"), partial(keep, Site.RESID_FINAL, 1.0)))
        yield collected


def _hook(owner: torch.nn.Module, tap: Tap, keep: Keep) -> Any:
    def keep_input(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep(args[0] if args else kwargs["hidden_states"])

    def keep_output(_: Any, __: Any, output: Any) -> None:
        keep(output[0] if isinstance(output, tuple) else output)

    module = owner.get_submodule(tap.module)
    if tap.side == "input":
        return module.register_forward_pre_hook(keep_input, with_kwargs=True)
    return module.register_forward_hook(keep_output)
