"""Hooks that copy the selected sites at the selected positions, and nothing else."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from theodolite.sites import Site
from theodolite_jobs.models.anatomy import Tap
from theodolite_jobs.models.load import LoadedModel

POSITIVE_UNITS = "positive_units"
"""The key of the MLPs' hidden units, next to the sites."""


class TokenSelection:
    """The rows to copy from a (batch, token, feature) hidden state: one index per (prompt, position)."""

    def __init__(self, indices: torch.Tensor) -> None:
        """Take token indices of shape (batch, position)."""
        self._indices = {indices.device: indices}
        self._home = indices

    def of(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return a copy of shape (batch, position, feature); later in-place sums do not change it.

        The input is (batch, token, feature), or (batch · token, feature) in families that flatten it.
        """
        hidden = hidden.view(self._home.shape[0], -1, hidden.shape[-1])
        if hidden.device not in self._indices:  # blocks may be on several devices
            self._indices[hidden.device] = self._home.to(hidden.device)
        indices = self._indices[hidden.device]
        rows = torch.arange(indices.shape[0], device=hidden.device)[:, None]
        return hidden[rows, indices]


@contextmanager
def tapped(
    model: LoadedModel, sites: Sequence[Site], layers: Sequence[int], selection: TokenSelection, units: int = 0
) -> Iterator[Mapping[str, list[torch.Tensor]]]:
    """Collect, during forwards inside the context, one (batch, position, d_model) tensor per site and layer.

    `resid_final` is collected too, as a list of one tensor. If `units` is not 0, `POSITIVE_UNITS` is collected too: for
    each layer, whether each of the MLP's first `units` hidden units is positive before gating, as (batch, position,
    unit) booleans.
    """
    collected: dict[str, list[torch.Tensor]] = {site: [] for site in (*sites, Site.RESID_FINAL)}
    taps = model.anatomy.taps
    wanted = [(taps[site], _values_into(collected[site], selection, taps[site].scale)) for site in sites]
    if units:
        assert model.anatomy.mlp_units is not None
        collected[POSITIVE_UNITS] = []
        wanted.append(
            (Tap(model.anatomy.mlp_units, "output"), _signs_into(collected[POSITIVE_UNITS], selection, units))
        )
    handles = []
    try:
        for tap, keep in wanted:
            for layer in layers:
                handles.append(_hook(model.blocks[layer], tap, keep))
        handles.append(_hook(model.blocks[-1], Tap("", "output"), _values_into(collected[Site.RESID_FINAL], selection)))
        yield collected
    finally:
        for handle in handles:
            handle.remove()


Keep = Callable[[torch.Tensor], None]
"""The action of a hook on a hidden state."""


def _values_into(into: list[torch.Tensor], selection: TokenSelection, scale: float = 1.0) -> Keep:
    def keep(hidden: torch.Tensor) -> None:
        into.append(selection.of(hidden) if scale == 1 else selection.of(hidden) * scale)

    return keep


def _signs_into(into: list[torch.Tensor], selection: TokenSelection, units: int) -> Keep:
    def keep(hidden: torch.Tensor) -> None:
        into.append(selection.of(hidden)[..., :units] > 0)

    return keep


def _hook(owner: torch.nn.Module, tap: Tap, keep: Keep) -> Any:
    module = owner.get_submodule(tap.module)
    if tap.side == "input":

        def keep_input(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            keep(args[0] if args else kwargs["hidden_states"])

        return module.register_forward_pre_hook(keep_input, with_kwargs=True)

    def keep_output(_: Any, __: Any, output: Any) -> None:
        keep(output[0] if isinstance(output, tuple) else output)

    return module.register_forward_hook(keep_output)
