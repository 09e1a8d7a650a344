"""Hooks that copy the wanted positions of the wanted sites, and nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from theodolite.models.anatomy import Tap
from theodolite.models.load import LoadedModel
from theodolite.sites import Site


class Selection:
    """Which rows of a (batch, token, d_model) hidden state to keep: one index per (prompt, position)."""

    def __init__(self, indices: torch.Tensor) -> None:
        """Take token indices of shape (batch, position)."""
        self._indices = {indices.device: indices}
        self._home = indices

    def of(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return a copy of shape (batch, position, d_model); indexing copies, so later in-place sums are harmless.

        Takes (batch, token, d_model), or (batch · token, d_model) as some families flatten it.
        """
        hidden = hidden.view(self._home.shape[0], -1, hidden.shape[-1])
        if hidden.device not in self._indices:  # blocks may lie on several devices
            self._indices[hidden.device] = self._home.to(hidden.device)
        indices = self._indices[hidden.device]
        rows = torch.arange(indices.shape[0], device=hidden.device)[:, None]
        return hidden[rows, indices]


@contextmanager
def tapped(
    model: LoadedModel, sites: Sequence[Site], layers: Sequence[int], selection: Selection
) -> Iterator[Mapping[Site, list[torch.Tensor]]]:
    """Collect, during forwards inside the context, one (batch, position, d_model) tensor per site and layer.

    `resid_final` is collected too, as a list of one.
    """
    kept: dict[Site, list[torch.Tensor]] = {site: [] for site in (*sites, Site.RESID_FINAL)}
    handles = []
    try:
        for site in sites:
            for layer in layers:
                handles.append(_hook(model.blocks[layer], model.anatomy.taps[site], selection, kept[site]))
        handles.append(_hook(model.blocks[-1], Tap("", "output"), selection, kept[Site.RESID_FINAL]))
        yield kept
    finally:
        for handle in handles:
            handle.remove()


def _hook(owner: torch.nn.Module, tap: Tap, selection: Selection, into: list[torch.Tensor]) -> Any:
    module = owner.get_submodule(tap.module)

    def keep(hidden: torch.Tensor) -> None:
        into.append(selection.of(hidden) if tap.scale == 1 else selection.of(hidden) * tap.scale)

    if tap.side == "input":

        def keep_input(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            keep(args[0] if args else kwargs["hidden_states"])

        return module.register_forward_pre_hook(keep_input, with_kwargs=True)

    def keep_output(_: Any, __: Any, output: Any) -> None:
        keep(output[0] if isinstance(output, tuple) else output)

    return module.register_forward_hook(keep_output)
