"""The intact forward of prompts of equal length: what variants are compared with, and what they start from."""

import inspect
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from theodolite.sites import Site
from theodolite.spec import TokenIds
from theodolite_jobs.effects.hooks import ONLY_LAST, Columns, Work, working
from theodolite_jobs.effects.variants import Location, Variant, check_locations
from theodolite_jobs.models.loaded import LoadedModel

BIASES = ("attention_mask", "alibi")
"""The arguments of a block that are added to attention scores; their last dimension is the key."""


@dataclass(frozen=True, eq=False)
class BlockCall:
    """The form of a block's call: the rows of its biases that belong to the last token, and what it returns."""

    biases: dict[str, torch.Tensor | None]  # (…, key) for the last token; None adds nothing
    returns_tuple: bool


@dataclass(frozen=True, eq=False)
class Intact:
    """The last token of each prompt in an intact forward, and what the one-token route needs of it.

    `states` are (prompt, feature) at the requested locations, and at `resid_pre` of every layer; `final` is
    `resid_final`, (prompt, d_model); `output` is the output of the base model, behind the final norm. `cached` are the
    keys and values of the other tokens at each layer, (prompt, head, token, d_head); it is empty, as is `calls`, for a
    model that takes the full route.
    """

    tokens: torch.Tensor  # (prompt, token)
    states: dict[Location, torch.Tensor]
    final: torch.Tensor
    output: torch.Tensor
    cached: list[tuple[torch.Tensor, torch.Tensor]]
    calls: list[BlockCall]

    def unchanged_by(self, variant: Variant) -> torch.Tensor:
        """Return the prompts, (prompt,) booleans, in which a variant changes no bit at any of its locations."""
        same = [
            (change(self.states[location]) == self.states[location]).all(dim=-1)
            for location, change in variant.changes.items()
        ]
        return torch.stack([one.to(self.final.device) for one in same]).all(dim=0)


@torch.inference_mode()
def run_intact(
    model: LoadedModel, prompts: Sequence[TokenIds], locations: Iterable[Location], *, is_cached: bool
) -> Intact:
    """Run prompts of equal length once, and return the states of their last tokens at `locations`.

    `is_cached` is whether to keep what the one-token route needs.

    Raises:
        ValueError: the prompts have several lengths, or there is none.
        SiteNotFoundError: the model does not have a location.
    """
    lengths = sorted({len(ids) for ids in prompts})
    if len(lengths) != 1:
        raise ValueError(f"the prompts have the lengths {lengths}; group them by length, at least one in a group")
    locations = list(locations)
    check_locations(model, locations)
    layers = range(len(model.blocks))
    final = Location(Site.RESID_POST, layers[-1])
    tokens = torch.tensor(prompts, device=model.device)
    states: dict[Location, torch.Tensor] = {}

    def keep(location: Location) -> Any:
        return lambda columns: states.__setitem__(location, columns[:, 0])

    wanted = {*locations, final, *(Location(Site.RESID_PRE, layer) for layer in layers)}
    calls: list[BlockCall] = []
    cache = DynamicCache() if is_cached else None  # without the configuration, so that no window drops keys
    with ExitStack() as hooks:
        if is_cached:
            record = _record_call(calls)
            for block in model.blocks:
                hooks.enter_context(block.register_forward_hook(record, with_kwargs=True))
        work = Work(reads=[(location, keep(location)) for location in wanted])
        hooks.enter_context(working(model, Columns(len(prompts), ONLY_LAST), work))
        result = model.run(input_ids=tokens, past_key_values=cache, use_cache=is_cached)
    layers_of_cache: list[Any] = [] if cache is None else cache.layers
    cached = [(layer.keys[..., :-1, :], layer.values[..., :-1, :]) for layer in layers_of_cache]
    return Intact(tokens, states, states[final], result[0][:, -1], cached, calls)


def _record_call(into: list[BlockCall]) -> Any:
    """Return a hook that appends the form of a block's call; blocks that share a bias share its row."""
    rows: dict[int, tuple[torch.Tensor | None, torch.Tensor | None]] = {}  # with the bias, so that its id stays its own

    def row_of(bias: torch.Tensor | None) -> torch.Tensor | None:
        if id(bias) not in rows:
            rows[id(bias)] = bias, _last_row(bias)
        return rows[id(bias)][1]

    def record(block: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        passed = {**dict(zip(parameters_of(block), args, strict=False)), **kwargs}
        biases = {name: row_of(passed[name]) for name in BIASES if name in passed}
        into.append(BlockCall(biases, isinstance(output, tuple)))

    return record


def _last_row(bias: torch.Tensor | None) -> torch.Tensor | None:
    """Return the last query's row of a bias, (…, key); a mask of booleans becomes one of 0 and −∞."""
    if bias is None:
        return None
    row = bias[..., -1, :]
    return torch.zeros(row.shape, device=row.device).masked_fill(~row, -torch.inf) if row.dtype == torch.bool else row


def parameters_of(block: torch.nn.Module) -> list[str]:
    """Return the names of the parameters of a block's forward, in their order."""
    return list(inspect.signature(block.forward).parameters)
