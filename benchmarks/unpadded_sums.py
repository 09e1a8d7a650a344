"""The sites of one prompt in a plain model of transformers, from its sums, without any name of a module.

Each block adds a branch to its input, and another to this sum. The sums are found in the list of all additions of a
forward pass: the first has the block's input as a term, the second has the first. A block may add a third vector and
multiply the stream in place (Gemma 4). The block's input is the hidden state that transformers returns. No code of the
capture, no record and no probe takes part.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from theodolite.sites import Site
from theodolite.spec import TokenIds

_SUMS = ("add", "add_", "__add__", "__radd__", "__iadd__")
_IN_PLACE = ("mul_", "__imul__")
_PROJECTIONS = {"linear": (0, 1), "addmm": (1, 2)}
"""Functions that project a stream, with the positions of the input and of the matrix among their arguments."""


@dataclass
class _Event:
    """One operation: its name, its operands as (token, feature), and its result."""

    kind: str
    operands: list[torch.Tensor]
    result: torch.Tensor


@dataclass
class _Listing(TorchFunctionMode):
    """Lists the additions, products in place, norms and projections of a forward pass, in order of execution."""

    n_tokens: int
    events: list[_Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        kind = "sum" if name in _SUMS else "projection" if name in _PROJECTIONS else "norm" if "norm" in name else ""
        kind = "product" if name in _IN_PLACE else kind
        changes = kind in ("sum", "product")  # an operation in place changes an operand
        operands = [self._rows(one) for one in args] if changes else []
        result = func(*args, **(kwargs or {}))
        if kind and isinstance(result, torch.Tensor) and (rows := self._rows(result)) is not None:
            if not changes:
                operands = [self._rows(args[_PROJECTIONS[name][0] if kind == "projection" else 0])]
            self.events.append(_Event(kind, [one for one in operands if one is not None], rows))
        return result

    def _rows(self, value: Any) -> torch.Tensor | None:
        if not isinstance(value, torch.Tensor) or value.ndim < 2 or value.numel() != self.n_tokens * value.shape[-1]:
            return None
        return value.detach().reshape(self.n_tokens, -1).clone()


@torch.inference_mode()
def sites_of(model: Any, ids: TokenIds) -> dict[Site, list[NDArray[np.float64] | None]]:
    """Return each site at each layer, (token, feature); None where the sums do not say what it is.

    The model is one with a head, as `from_pretrained` returns it. `resid_final` has one entry. Two parallel branches
    look like two that follow each other; a caller leaves out the sites that a parallel block does not have.
    """
    listing = _Listing(len(ids))
    with listing:
        output = model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    states = [state[0] for state in output.hidden_states]
    layers = [_sites_of_block(listing.events, states[layer]) for layer in range(len(states) - 1)]
    added = [event for event in listing.events if event.kind in ("sum", "product")]
    sums = [event.result for event in added if event.result.shape == states[0].shape]
    # Without a final norm, the last state is a sum itself; the head may have more sums of this shape.
    end = states[-1] if any(torch.equal(states[-1], one) for one in sums) else sums[-1]
    ends = [*states[1:-1], layers[-1][Site.RESID_POST] if Site.RESID_MID_SUM in layers[-1] else end]
    for sites, end in zip(layers, ends, strict=True):
        after = sites.get(Site.RESID_POST)
        if after is None or not torch.equal(after, end):
            for site in set(sites) - {Site.RESID_PRE}:
                del sites[site]  # the sums are not those of this block
            sites[Site.RESID_POST] = end
    names = [site for site in Site if site is not Site.RESID_FINAL]
    found = {site: [_float64(sites.get(site)) for sites in layers] for site in names}
    return {**found, Site.RESID_FINAL: found[Site.RESID_POST][-1:]}


def _float64(value: torch.Tensor | None) -> NDArray[np.float64] | None:
    return None if value is None else value.double().numpy()


def _sites_of_block(events: list[_Event], pre: torch.Tensor) -> dict[Site, torch.Tensor]:
    sites = {Site.RESID_PRE: pre}
    first = _find(events, 0, "sum", pre)
    if first is None:
        return sites
    total = events[first].result
    second = _find(events, first + 1, "sum", total)
    normed = _find(events, first + 1, "norm", total)
    if second is not None:  # pre-norm, or two parallel branches
        middle, post = total, _multiplied(events, second)
    elif normed is None or (second := _find(events, normed + 1, "sum", events[normed].result)) is None:
        return {**sites, Site.RESID_POST: total}  # one sum of all branches
    else:
        last = _find(events, second + 1, "norm", events[second].result)
        if last is None:
            return sites
        sites[Site.RESID_MID_SUM], middle, post = total, events[normed].result, events[last].result
    sites |= {Site.RESID_MID: middle, Site.RESID_POST: post}
    sites |= {Site.ATTN_OUT: _other(events[first], pre), Site.MLP_OUT: _other(events[second], middle)}
    projections = [event for event in events[:first] if event.kind == "projection" and event.result.shape == pre.shape]
    return sites | ({Site.HEAD_OUT: projections[-1].operands[0]} if projections else {})


def _multiplied(events: list[_Event], last: int) -> torch.Tensor:
    """Return the sum that ends a block, or the product in place of it, perhaps after one more addition."""
    chain = [last, _find(events, last + 1, "sum", events[last].result)]
    for at in (one for one in chain if one is not None):
        product = _find(events, at + 1, "product", events[at].result)
        if product is not None:
            return events[product].result
    return events[last].result


def _find(events: list[_Event], start: int, kind: str, operand: torch.Tensor) -> int | None:
    """Return the index of the first event of a kind with this operand."""
    for at in range(start, len(events)):
        if events[at].kind == kind and any(torch.equal(operand, one) for one in events[at].operands):
            return at
    return None


def _other(addition: _Event, term: torch.Tensor) -> torch.Tensor:
    """Return the other term of an addition."""
    return next((one for one in addition.operands if not torch.equal(one, term)), term)
