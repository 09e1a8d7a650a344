"""Probe a family that is not in the table: find its sites by the identities they must obey, or refuse the model.

One forward on two tokens records the input and output of every module inside every block. A module is attention if the
block's input plus the module's output equals, to the last bit, the input of another module; and so on. A sum of two
modules with unknown factors is proven up to rounding only. Module names are only used to distinguish attention from MLP
if both add to the same sum.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, pairwise, product
from typing import Any

import torch

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite.sites import Site
from theodolite_jobs.models.anatomy import Anatomy, Dimensions, Tap

_CLEAR = 16
"""How many times larger than rounding a step must be, so that a fitted sum proves something."""


@dataclass
class _Recording:
    """The inputs and outputs of one block's modules, by their path in the block, in order of execution."""

    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def of_children(self) -> dict[str, torch.Tensor]:
        """The outputs of the block's own modules, without those inside them."""
        return {name: output for name, output in self.outputs.items() if name and "." not in name}


def probe_anatomy(module: Any, dimensions: Dimensions) -> Anatomy:
    """Return the record of an unknown decoder, with the sites that the identities prove.

    Raises:
        UnsupportedModelError: the model has no list of blocks, tokens attend to later tokens, or the blocks do not
            form one stream.
        ModelError: the stream has NaN or infinity, so it proves nothing.
    """
    family = module.config.model_type
    path = _find_blocks(module, dimensions, family)
    try:
        recorded = _record(module, path, (5, 7), dimensions.d_model)
        changed = _record(module, path, (5, 6), dimensions.d_model)
    # A model whose input is not tokens raises its own exception type.
    except Exception as error:
        raise _refusal(family, f"it does not run on two tokens ({type(error).__name__})") from error
    _check_stream(module, recorded, changed, dimensions.n_layers)
    # Some families scale what a branch adds, after the module that computes it.
    block = module.get_submodule(path)[0]
    scale = float(getattr(block, "residual_multiplier", getattr(block, "residual_scale", 1.0)))
    candidates = [[*_sequential(one, scale), *_parallel(one), *_single(one)] for one in recorded]
    branches = _common_taps(candidates, module.get_submodule(path))
    if branches is None:
        raise _refusal(family, "no modules of a block add up to its output")
    taps = {Site.RESID_PRE: Tap("", "input"), Site.RESID_POST: Tap("", "output"), **branches}
    return Anatomy(path, taps, positions="unknown", known_by="probe")


def _check_stream(module: Any, recorded: list[_Recording], changed: list[_Recording], n_layers: int) -> None:
    """Refuse blocks that do not pass on one stream; `changed` was recorded with another last token."""
    family = module.config.model_type
    if len(recorded) != n_layers or any("" not in one.inputs or "" not in one.outputs for one in recorded):
        raise _refusal(family, "a block does not run once on a stream of (prompt, token, d_model)")
    if not all(bool(one.outputs[""].isfinite().all()) for one in (*recorded, *changed)):
        from theodolite_jobs.models.precision import check_finite  # it imports this module

        check_finite(module)
        dtype = str(recorded[0].outputs[""].dtype).removeprefix("torch.")
        raise ModelError(
            f"the stream of the {family!r} model has NaN or infinity in {dtype} on two tokens, although its weights "
            "are finite, so its sites cannot be found; set model.dtype to bfloat16 or float32"
        )
    if not all(torch.equal(a.outputs[""], b.inputs[""]) for a, b in pairwise(recorded)):
        raise _refusal(family, "the output of a block is not the input of the next")
    if not all(_close(a.outputs[""][0], b.outputs[""][0]) for a, b in zip(recorded, changed, strict=True)):
        raise _refusal(family, "a token's stream depends on the tokens after it")


def _find_blocks(module: Any, dimensions: Dimensions, family: str) -> str:
    lists: list[str] = [
        path
        for path, child in module.named_modules()
        if isinstance(child, torch.nn.ModuleList) and len(child) == dimensions.n_layers
    ]
    shallowest = min((path.count(".") for path in lists), default=0)
    lists = [path for path in lists if path.count(".") == shallowest]
    if len(lists) != 1:
        raise _refusal(family, f"it has {len(lists)} lists of {dimensions.n_layers} blocks, expected 1")
    return lists[0]


@torch.inference_mode()
def _record(module: Any, path: str, ids: tuple[int, ...], d_model: int) -> list[_Recording]:
    recorded: list[_Recording] = []

    def keep(into: dict[str, torch.Tensor], name: str, value: Any) -> None:
        tensor = value[0] if isinstance(value, tuple) and value else value
        if isinstance(tensor, torch.Tensor) and tensor.numel() == len(ids) * d_model and tensor.shape[-1] == d_model:
            into.setdefault(name, tensor.reshape(len(ids), d_model).cpu().clone())

    def keep_input(one: _Recording, name: str, _: Any, args: Any, kwargs: Any) -> None:
        keep(one.inputs, name, args[0] if args else kwargs.get("hidden_states"))

    def keep_output(one: _Recording, name: str, _: Any, __: Any, output: Any) -> None:
        keep(one.outputs, name, output)

    with ExitStack() as hooks:  # removes them at its end
        for block in module.get_submodule(path):
            one = _Recording()
            recorded.append(one)
            for name, child in block.named_modules():
                before, after = partial(keep_input, one, name), partial(keep_output, one, name)
                hooks.enter_context(child.register_forward_pre_hook(before, with_kwargs=True))
                hooks.enter_context(child.register_forward_hook(after))
        device = module.get_input_embeddings().weight.device
        module(input_ids=torch.tensor([ids], device=device), use_cache=False)
    return recorded


def _common_taps(candidates: list[list[dict[Site, Tap]]], blocks: Any) -> dict[Site, Tap] | None:
    """Return the first mapping that holds in every block, else the part of it that does; None if a block has none.

    Blocks of two kinds have different modules, but each block must prove that it adds to one stream. If some have
    attention and others another mixer, `resid_mid` and `mlp_out` may still be the same modules in all. If the MLP is
    the sum of two modules, `resid_mid` and `attn_out` may be.
    """
    if not all(candidates):
        return None
    for taps in candidates[0]:
        if len(taps) > 1 and all(taps in other for other in candidates) and _is_one_kind(taps, blocks):
            return taps
    for sites in ((Site.RESID_MID, Site.MLP_OUT), (Site.RESID_MID, Site.ATTN_OUT), (Site.RESID_MID,)):
        parts = [[{site: taps.get(site) for site in sites} for taps in of_block] for of_block in candidates]
        for part in parts[0]:
            shared = {site: tap for site, tap in part.items() if tap is not None}
            if len(shared) == len(sites) and all(part in others for others in parts) and _is_one_kind(shared, blocks):
                return shared
    return {}


def _is_one_kind(taps: dict[Site, Tap], blocks: Any) -> bool:
    """Return whether attention is of one class; one path may have it in some blocks, and another mixer in others.

    The MLP may have experts in some blocks.
    """
    tap = taps.get(Site.ATTN_OUT)
    return tap is None or len({type(block.get_submodule(tap.module)) for block in blocks}) == 1


def _sequential(recorded: _Recording, scale: float) -> Iterator[dict[Site, Tap]]:
    pre, post = recorded.inputs[""], recorded.outputs[""]
    # Outer modules come first: an inner module may have the same output.
    names = sorted(filter(None, recorded.outputs), key=lambda name: name.count("."))
    added = {name: recorded.outputs[name] * scale for name in names}
    for mid_name, mid in recorded.inputs.items():
        if torch.equal(mid, pre):
            continue
        attention = [name for name, branch in added.items() if torch.equal(pre + branch, mid)]
        mlp = [name for name, branch in added.items() if torch.equal(mid + branch, post)]
        mid_tap = {Site.RESID_MID: Tap(mid_name, "input")}
        if mlp and not attention and _adds_scaled(recorded, pre, mid):
            yield from (mid_tap | {Site.MLP_OUT: Tap(name, "output", scale)} for name in mlp)
        if not mlp and _adds_two(recorded, mid, post, scale):
            yield from (mid_tap | {Site.ATTN_OUT: Tap(name, "output", scale)} for name in attention)
        for first, second in product(attention, mlp):
            yield mid_tap | {
                Site.ATTN_OUT: Tap(first, "output", scale),
                Site.MLP_OUT: Tap(second, "output", scale),
            }


def _adds_two(recorded: _Recording, mid: torch.Tensor, post: torch.Tensor, scale: float) -> bool:
    """Return whether the block adds the sum of two modules, such as routed and shared experts, to `mid`."""
    pairs = combinations(recorded.of_children.values(), 2)
    return any(torch.equal(mid + (one + other) * scale, post) for one, other in pairs)


def _adds_scaled(recorded: _Recording, pre: torch.Tensor, mid: torch.Tensor) -> bool:
    """Return whether `mid` is `pre` and two modules times two unknown numbers, such as attention beside a state space.

    The numbers are a least-squares solution, which leaves only rounding at each token. Tokens are weighted by their
    rounding. Where rounding is not small beside what is added, nothing is proven.
    """
    unit = 2 * torch.finfo(mid.dtype).eps * mid.double().norm(dim=-1, keepdim=True)  # rounding of each token
    step = (mid.double() - pre.double()) / unit
    if (step.norm(dim=-1) < _CLEAR).any():
        return False
    for pair in combinations(recorded.of_children.values(), 2):
        terms = torch.stack([(one.double() / unit).flatten() for one in pair], dim=1)
        added = (terms @ torch.linalg.lstsq(terms, step.flatten()).solution).view_as(step)
        if ((added - step).norm(dim=-1) <= 1).all():
            return True
    return False


def _single(recorded: _Recording) -> Iterator[dict[Site, Tap]]:
    """Yield no tap for a block that adds one module to its input: it has no site but its input and output."""
    pre, post = recorded.inputs[""], recorded.outputs[""]
    if any(name and torch.equal(pre + output, post) for name, output in recorded.outputs.items()):
        yield {}


def _parallel(recorded: _Recording) -> Iterator[dict[Site, Tap]]:
    pre, post = recorded.inputs[""], recorded.outputs[""]
    for (first, a), (second, b) in product(recorded.of_children.items(), repeat=2):
        sums = ((pre + a) + b, (pre + b) + a, (a + b) + pre)
        if "att" in first and "att" not in second and any(torch.equal(post, total) for total in sums):
            yield {Site.ATTN_OUT: Tap(first, "output"), Site.MLP_OUT: Tap(second, "output")}


def _close(ours: torch.Tensor, reference: torch.Tensor) -> bool:
    """Return whether two vectors differ only by rounding; experts may sum in another order for other tokens."""
    distance = (ours - reference).double().norm() / reference.double().norm()
    return bool(distance <= 8 * torch.finfo(reference.dtype).eps)


def _refusal(family: str, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the model family {family!r} is not in the table, and a probe of its blocks fails: {reason}; use a model of "
        "a family in docs/families.md, or report this one"
    )
