"""A family that is not in the table: find its sites by the identities they must obey, or refuse.

One forward on two tokens records what every module inside every block takes in and puts out. A module is attention if
the stream that enters the block plus its output is, to the last bit, what another module reads; and so on. No name is
trusted, but to tell attention from MLP where both add to the same sum.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from theodolite.errors import UnsupportedModelError
from theodolite.sites import Site
from theodolite_jobs.models.anatomy import Anatomy, Dimensions, Tap

_BRANCHES = (Site.ATTN_OUT, Site.MLP_OUT)
_NOT_FOUND = "no module in every block takes it in or puts it out, by the identities that it must obey"


@dataclass
class _Seen:
    """What the modules of one block took in and put out, by their path in the block, in order of execution."""

    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)


def probe_anatomy(module: Any, dimensions: Dimensions) -> Anatomy:
    """Return where an unknown decoder keeps its sites, as far as identities prove it.

    Raises:
        UnsupportedModelError: the blocks are not found, attention looks ahead, or the stream is not one.
    """
    family = module.config.model_type
    path = _find_blocks(module, dimensions, family)
    try:
        seen = _record(module, path, (5, 7), dimensions.d_model)
        other = _record(module, path, (5, 6), dimensions.d_model)
    # A model that reads something else than tokens raises its own kind.
    except Exception as error:
        raise _refusal(family, f"it does not run on two tokens ({type(error).__name__})") from error
    _check_stream(seen, other, dimensions.n_layers, family)
    taps = {Site.RESID_PRE: Tap("", "input"), Site.RESID_POST: Tap("", "output")}
    # Some families scale what a branch adds, after the module that computes it.
    scale = float(getattr(module.config.get_text_config(), "residual_multiplier", 1.0))
    found = [[*_sequential(one, scale), *_parallel(one)] for one in seen]
    branches = _shared_by_all(found, module.get_submodule(path))
    if branches is None:
        raise _refusal(family, "no modules of a block add up to what leaves it")
    taps |= branches
    missing = [site for site in (Site.RESID_MID, Site.ATTN_OUT, Site.MLP_OUT) if site not in taps]
    return Anatomy(
        blocks=path,
        taps=taps,
        absent=dict.fromkeys([*missing, Site.RESID_MID_SUM], _NOT_FOUND),
        positions="unknown",
        known_by="probe",
    )


def _check_stream(seen: list[_Seen], other: list[_Seen], n_layers: int, family: str) -> None:
    """Refuse blocks that do not hand one stream on; `other` is the same but for the last token."""
    if len(seen) != n_layers or any("" not in one.inputs or "" not in one.outputs for one in seen):
        raise _refusal(family, "a block does not run once on a stream of (prompt, token, d_model)")
    if not all(torch.equal(a.outputs[""], b.inputs[""]) for a, b in pairwise(seen)):
        raise _refusal(family, "what leaves a block is not what enters the next")
    if not all(_close(a.outputs[""][0], b.outputs[""][0]) for a, b in zip(seen, other, strict=True)):
        raise _refusal(family, "a token's stream depends on the tokens after it")


def _find_blocks(module: Any, dimensions: Dimensions, family: str) -> str:
    found: list[str] = [
        path
        for path, child in module.named_modules()
        if isinstance(child, torch.nn.ModuleList) and len(child) == dimensions.n_layers
    ]
    shallowest = min((path.count(".") for path in found), default=0)
    found = [path for path in found if path.count(".") == shallowest]
    if len(found) != 1:
        raise _refusal(family, f"{len(found)} lists of {dimensions.n_layers} blocks were found, not one")
    return found[0]


@torch.inference_mode()
def _record(module: Any, path: str, ids: tuple[int, ...], d_model: int) -> list[_Seen]:
    seen: list[_Seen] = []
    handles: list[Any] = []

    def keep(into: dict[str, torch.Tensor], name: str, value: Any) -> None:
        tensor = value[0] if isinstance(value, tuple) and value else value
        if isinstance(tensor, torch.Tensor) and tensor.numel() == len(ids) * d_model and tensor.shape[-1] == d_model:
            into.setdefault(name, tensor.reshape(len(ids), d_model).cpu().clone())

    for block in module.get_submodule(path):
        one = _Seen()
        seen.append(one)
        for name, child in block.named_modules():
            handles.append(
                child.register_forward_pre_hook(
                    lambda _, args, kwargs, one=one, name=name: keep(
                        one.inputs, name, args[0] if args else kwargs.get("hidden_states")
                    ),
                    with_kwargs=True,
                )
            )
            handles.append(
                child.register_forward_hook(lambda _, __, out, one=one, name=name: keep(one.outputs, name, out))
            )
    try:
        device = module.get_input_embeddings().weight.device
        module(input_ids=torch.tensor([ids], device=device), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _shared_by_all(found: list[list[dict[Site, Tap]]], blocks: Any) -> dict[Site, Tap] | None:
    """Return the first mapping that holds in every block, or what of one does; None where a block has no mapping.

    Blocks of two kinds have other modules, but each must prove that it adds to one stream.
    """
    if not all(found):
        return None
    shared = (taps for taps in found[0] if all(taps in other for other in found[1:]))
    whole = next((taps for taps in shared if all(_one_kind(blocks, taps[site].module) for site in _BRANCHES)), None)
    if whole is not None:
        return whole
    everywhere = [tap for tap in _middles(found[0]) if tap and all(tap in _middles(other) for other in found[1:])]
    return {Site.RESID_MID: everywhere[0]} if everywhere else {}


def _one_kind(blocks: Any, path: str) -> bool:
    """Return whether a module is of one class in all blocks: by one name some have attention, some another mixer."""
    return len({type(block.get_submodule(path)) for block in blocks}) == 1


def _middles(found: list[dict[Site, Tap]]) -> list[Tap | None]:
    return [taps.get(Site.RESID_MID) for taps in found]


def _sequential(seen: _Seen, scale: float) -> Iterator[dict[Site, Tap]]:
    pre, post = seen.inputs[""], seen.outputs[""]
    added = {name: seen.outputs[name] * scale for name in _outermost(seen)}
    for mid_name, mid in seen.inputs.items():
        if torch.equal(mid, pre):
            continue
        attention = [name for name, branch in added.items() if torch.equal(pre + branch, mid)]
        mlp = [name for name, branch in added.items() if torch.equal(mid + branch, post)]
        for first in attention:
            for second in mlp:
                yield {
                    Site.RESID_MID: Tap(mid_name, "input"),
                    Site.ATTN_OUT: Tap(first, "output", scale),
                    Site.MLP_OUT: Tap(second, "output", scale),
                }


def _outermost(seen: _Seen) -> list[str]:
    """Return the modules inside the block, a whole before its parts: both may put out the same."""
    return sorted((name for name in seen.outputs if name), key=lambda name: name.count("."))


def _parallel(seen: _Seen) -> Iterator[dict[Site, Tap]]:
    pre, post = seen.inputs[""], seen.outputs[""]
    branches = [name for name in seen.outputs if name and "." not in name]
    for first in branches:
        for second in branches:
            a, b = seen.outputs[first], seen.outputs[second]
            sums = ((pre + a) + b, (pre + b) + a, (a + b) + pre)
            if "att" in first and "att" not in second and any(torch.equal(post, total) for total in sums):
                yield {Site.ATTN_OUT: Tap(first, "output"), Site.MLP_OUT: Tap(second, "output")}


def _close(ours: torch.Tensor, reference: torch.Tensor) -> bool:
    """Return whether two vectors differ by rounding alone; experts may sum in another order for other tokens."""
    distance = (ours - reference).double().norm() / reference.double().norm()
    return bool(distance <= 8 * torch.finfo(reference.dtype).eps)


def _refusal(family: str, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the model family {family!r} is not in the table, and a probe of its blocks fails: {reason}; "
        "add a record to theodolite_jobs/models/families.py"
    )
