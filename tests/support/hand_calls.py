"""A block's own submodules, called one after the other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from theodolite.sites import Site

Stream = torch.Tensor


class Call:
    """Runs a module of a block on another input, with the other arguments of a recorded run."""

    def __init__(self, block: torch.nn.Module, given: Mapping[torch.nn.Module, tuple[Any, dict[str, Any]]]) -> None:
        self.block, self._given = block, given

    def __call__(self, path: str, x: Stream, *others: Stream) -> Stream:
        """Return the output of the module with this path."""
        child = self.block.get_submodule(path)
        args, kwargs = self._given[child]
        output = child(x, *(others or args), **kwargs)
        return cast("Stream", output[0] if isinstance(output, tuple) else output)

    def has(self, path: str) -> bool:
        """Return whether the block has a module with this path."""
        return path in dict(self.block.named_modules())

    def first(self, paths: Sequence[str], x: Stream) -> Stream:
        """Return the output of the one module that the block has."""
        (path,) = (path for path in paths if isinstance(getattr(self.block, path, None), torch.nn.Module))
        return self(path, x)

    @property
    def further_input(self) -> Stream:
        """The second argument of the block."""
        return cast("Stream", self._given[self.block][0][0])


HandRun = Callable[[Stream, Call], dict[Site, Stream]]


def run_by_hand(module: Any, ids: tuple[int, ...], hand_run: HandRun) -> list[dict[Site, Stream]]:
    """Record one run, then compute every block again from the input of the first block."""
    blocks = next(child for child in module.modules() if isinstance(child, torch.nn.ModuleList) and len(child) == 5)
    entered: list[Stream] = []
    given: dict[torch.nn.Module, tuple[Any, dict[str, Any]]] = {}  # all but the hidden states: masks, positions

    def record(child: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if child is blocks[0]:
            entered.append(args[0] if args else kwargs["hidden_states"])
        given[child] = (args[1:], {name: value for name, value in kwargs.items() if name != "hidden_states"})

    handles = [child.register_forward_pre_hook(record, with_kwargs=True) for child in blocks.modules()]
    module(input_ids=torch.tensor([ids]), use_cache=False)
    for handle in handles:
        handle.remove()

    streams, x = [], entered[0]
    for block in blocks:
        streams.append({Site.RESID_PRE: x, **hand_run(x, Call(block, given))})
        x = streams[-1][Site.RESID_POST]
    return streams
