"""Hooks that change and read states of chosen tokens during one forward."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from theodolite.sites import Site
from theodolite_jobs.capture.engine import gather_ranks
from theodolite_jobs.capture.taps import hook_plus
from theodolite_jobs.effects.variants import Change, Location
from theodolite_jobs.models.anatomy import Tap
from theodolite_jobs.models.loaded import LoadedModel

Act = Callable[[torch.Tensor], torch.Tensor | None]
"""The action of a hook on a hidden state: it returns another hidden state, or None to leave it as it is."""

Edits = Sequence[tuple[int, Change]]
"""Columns, and the change of each."""

Receive = Callable[[torch.Tensor], None]
"""What receives the states that are read."""


@dataclass(frozen=True)
class Columns:
    """The tokens of a forward that are changed and read: `tokens` of each of `prompts` prompts."""

    prompts: int
    tokens: slice

    def of(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the columns, (prompt, column, feature), a view if possible; some families flatten (prompt, token)."""
        return hidden.reshape(self.prompts, -1, hidden.shape[-1])[:, self.tokens]


ONLY_LAST = slice(-1, None)
EVERY = slice(None)


@dataclass(frozen=True)
class Work:
    """What one forward changes and reads.

    `edits` are, by location, columns and their changes. Each of `reads` is a location, and what receives the state of
    all columns there, (prompt, column, feature).
    """

    edits: Mapping[Location, Edits] = field(default_factory=dict)
    reads: Sequence[tuple[Location, Receive]] = ()


@contextmanager
def working(model: LoadedModel, columns: Columns, work: Work) -> Iterator[None]:
    """Change and read states in every forward inside the context.

    A location that is changed and read is read after the change. A change of `resid_mid` is not part of the `attn_out`
    that is read.
    """
    # Hooks of one module run in the order of their registration.
    steps: list[tuple[Location, bool, Any]] = [(location, False, edits) for location, edits in work.edits.items()]
    steps += [(location, True, receive) for location, receive in work.reads]
    with ExitStack() as hooks:
        for location, is_read, act in sorted(steps, key=lambda step: (step[0].order, step[1])):
            if is_read:
                hooks.enter_context(_hook_read(model, columns, location, act))
            else:
                _hook_edits(hooks, model, columns, location, act)
        yield


def hook(owner: torch.nn.Module, tap: Tap, act: Act) -> Any:
    """Register `act` on the input or the output of a module inside a block; return the handle."""

    def on_input(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        changed = act(args[0] if args else kwargs["hidden_states"])
        if changed is None:
            return None
        return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": changed})

    hooks = ExitStack()
    added = hook_plus(hooks, owner, tap)

    def on_output(_: Any, __: Any, output: Any) -> Any:
        own = output[0] if isinstance(output, tuple) else output
        total = added(own)
        changed = act(total)
        if changed is not None and total is not own:  # this module's part takes the whole change
            changed = own + (changed - total)
        return (changed, *output[1:]) if changed is not None and isinstance(output, tuple) else changed

    module = owner.get_submodule(tap.module)
    if tap.side == "input":
        return module.register_forward_pre_hook(on_input, with_kwargs=True)
    hooks.enter_context(module.register_forward_hook(on_output))
    return hooks


def _hook_read(model: LoadedModel, columns: Columns, location: Location, receive: Receive) -> Any:
    tap = model.anatomy.taps[location.site]

    def read(hidden: torch.Tensor) -> None:
        states = _of_all_ranks(model, location, columns.of(hidden))
        receive(states[..., _features(model, location)] * tap.scale)  # a copy: later sums may be in place

    return hook(model.blocks[location.layer], tap, read)


def _hook_edits(hooks: ExitStack, model: LoadedModel, columns: Columns, location: Location, edits: Edits) -> None:
    block, tap = model.blocks[location.layer], model.anatomy.taps[location.site]
    if location.site is Site.RESID_MID and tap.side == "input":
        _hook_shift(hooks, model, columns, block, edits)
        return

    def replace(hidden: torch.Tensor) -> torch.Tensor:
        hidden = _copy(hidden)
        own = columns.of(hidden)
        whole = _of_all_ranks(model, location, own)
        states = whole[..., _features(model, location)]
        for column, change in edits:
            states[:, column] = change(states[:, column] * tap.scale) / tap.scale
        if whole is not own:  # the heads of this rank; the shard of the last rank may be narrower
            start = torch.distributed.get_rank() * -(-whole.shape[-1] // model.ranks)
            own.copy_(whole[..., start : start + own.shape[-1]])
        return hidden

    hooks.enter_context(hook(block, tap, replace))


def _hook_shift(hooks: ExitStack, model: LoadedModel, columns: Columns, block: torch.nn.Module, edits: Edits) -> None:
    """Change `resid_mid` by a shift of what attention adds, because no hook replaces a variable of a forward."""
    attention = model.anatomy.taps[Site.ATTN_OUT]
    entered: list[torch.Tensor] = []

    def enter(hidden: torch.Tensor) -> None:
        entered[:] = [columns.of(hidden).clone()]

    def shift(hidden: torch.Tensor) -> torch.Tensor:
        hidden = _copy(hidden)
        added = columns.of(hidden)
        for column, change in edits:
            own = entered[0][:, column].to(added) + added[:, column] * attention.scale
            added[:, column] += (change(own) - own) / attention.scale
        return hidden

    hooks.enter_context(hook(block, Tap("", "input"), enter))
    hooks.enter_context(hook(block, attention, shift))


def _copy(hidden: torch.Tensor) -> torch.Tensor:
    return hidden.clone(memory_format=torch.contiguous_format)  # so that a view of its columns writes into it


def _of_all_ranks(model: LoadedModel, location: Location, own: torch.Tensor) -> torch.Tensor:
    """Return all features of a site, from those that this rank has.

    A rank has the outputs of some heads, and all features of every other site. With the outputs of all heads, all ranks
    agree on which variants change a bit, so they run the same ones.
    """
    if location.site is not Site.HEAD_OUT:
        return own
    return gather_ranks(own, model.dimensions.n_heads * model.dimensions.d_head, model.ranks)


def _features(model: LoadedModel, location: Location) -> slice:
    """Return the features of a location among those of its site."""
    if location.head is None:
        return slice(None)
    width = model.dimensions.d_head
    return slice(location.head * width, (location.head + 1) * width)
