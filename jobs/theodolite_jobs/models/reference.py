"""The reference of the parity check: read sites from one unpadded prompt, and check the identities between sites.

It shares no code with the capture engine, and uses full sequences, no padding, no shared prefix, eager attention.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from theodolite.sites import Site
from theodolite.spec import TokenIds
from theodolite_jobs.models.anatomy import Tap
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.quiet import quiet_transformers

Reading = dict[Site, NDArray[np.float64]]

_Sides = tuple[list[NDArray[np.float64]], NDArray[np.float64]]
"""The terms of an identity, and what they add up to."""


@torch.inference_mode()
def read_sites(model: LoadedModel, ids: TokenIds, positions: Sequence[int | tuple[int, int]]) -> Reading:
    """Run one prompt alone and return every site of the model, at every layer.

    `positions` are the tokens to return, counted from the end, or spans of tokens whose mean to return, from the first
    to one past the last; all must exist. The result is (position, layer, d_model) for each site, (position, d_model)
    for `resid_final`, (position, layer, n_heads·d_head) for `head_out`; NaN at layers without the site.
    """
    spans = [(len(ids) + one, len(ids) + one + 1) if isinstance(one, int) else one for one in positions]
    all_layers = range(len(model.blocks))
    layers = {
        site: model.anatomy.layers_with(site, all_layers) for site in (*model.anatomy.taps, *model.anatomy.partial)
    }
    collected: dict[Site, list[torch.Tensor]] = {site: [] for site, some in layers.items() if some}
    second: dict[Site, list[torch.Tensor]] = {site: [] for site in collected}  # the other term of a sum
    final: list[torch.Tensor] = []
    with ExitStack() as hooks:  # removes them at its end
        for layer, block in enumerate(model.blocks):
            for site in collected:
                if layer not in layers[site]:
                    continue
                tap = model.anatomy.tap(site)
                module = block.get_submodule(tap.module)
                hooks.enter_context(_keep(module, tap, spans, collected[site]))
                if tap.plus is not None:
                    other = replace(tap, module=tap.plus, plus=None)
                    hooks.enter_context(_keep(block.get_submodule(tap.plus), other, spans, second[site]))
        if model.anatomy.final_norm is not None:
            norm = model.module.get_submodule(model.anatomy.final_norm)
            hooks.enter_context(_keep(norm, Tap("", "input"), spans, final))
        with _eager(model):
            model.run(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    stacked = {site: torch.stack(rows, dim=1).numpy() for site, rows in collected.items()}
    for site, rows in second.items():
        if rows:
            stacked[site] = stacked[site] + torch.stack(rows, dim=1).numpy()
    if Site.HEAD_OUT in stacked and model.ranks > 1:
        stacked[Site.HEAD_OUT] = _of_all_ranks(stacked[Site.HEAD_OUT], model)
    last = final[0].numpy() if final else stacked[Site.RESID_POST][:, -1]
    whole = {site: _at_all_layers(values, layers[site], len(model.blocks)) for site, values in stacked.items()}
    return {**whole, Site.RESID_FINAL: last}


def _at_all_layers(values: NDArray[np.float64], layers: Sequence[int], n_layers: int) -> NDArray[np.float64]:
    """Return (position, layer, feature) with NaN at the layers that `values` do not have."""
    if len(layers) == n_layers:
        return values
    whole = np.full((len(values), n_layers, values.shape[-1]), np.nan)
    whole[:, list(layers)] = values
    return whole


def at_layers(model: LoadedModel, read: Reading, site: Site, layers: Sequence[int]) -> NDArray[np.float64]:
    """Return a site of a reading at those of some layers that have it; `resid_final` as it is."""
    return read[site] if site is Site.RESID_FINAL else read[site][:, list(model.anatomy.layers_with(site, layers))]


def _of_all_ranks(own: NDArray[np.float64], model: LoadedModel) -> NDArray[np.float64]:
    """Return the outputs of the heads of all ranks, in the order of the ranks."""
    parts: list[Any] = [None] * model.ranks
    torch.distributed.all_gather_object(parts, own)
    width = model.dimensions.n_heads * model.dimensions.d_head
    return own if own.shape[-1] == width else np.concatenate(parts, axis=-1)


def _keep(module: torch.nn.Module, tap: Tap, spans: Sequence[tuple[int, int]], into: list[torch.Tensor]) -> Any:
    def rows_of(value: Any) -> None:
        hidden = value[0] if isinstance(value, tuple) else value
        rows = hidden.reshape(-1, hidden.shape[-1])  # some families flatten (prompt, token)
        means = [(rows[start:stop] * tap.scale).double().mean(dim=0) for start, stop in spans]
        into.append(torch.stack(means).cpu() if means else rows[:0].double().cpu())

    if tap.side == "output":
        return module.register_forward_hook(lambda _, __, output: rows_of(output))
    return module.register_forward_pre_hook(
        lambda _, args, kwargs: rows_of(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )


@contextmanager
def _eager(model: LoadedModel) -> Iterator[None]:
    """Use eager attention if the family can switch (Falcon cannot), and the eager sum over experts."""
    chosen = model.config._attn_implementation
    experts = getattr(model.config, "_experts_implementation", None)
    with quiet_transformers():
        model.module.set_attn_implementation("eager")
    if experts is not None:
        model.module.set_experts_implementation("eager")
    try:
        yield
    finally:
        with quiet_transformers():
            model.module.set_attn_implementation(chosen)
        if experts is not None:
            model.module.set_experts_implementation(experts)


def identity_errors(model: LoadedModel, read: Reading) -> dict[str, float]:
    """Return the error of each identity between the sites of a reading, by identity.

    If the matrices are not sharded: attn_out is what the output projection and the norm after it make of head_out.
    Pre-norm: resid_mid = resid_pre + attn_out and resid_post = resid_mid + mlp_out; parallel blocks:
    resid_post = resid_pre + attn_out + mlp_out; post-norm: resid_mid_sum = resid_pre + attn_out. Always:
    resid_pre of a block = resid_post of the block before. The error is the norm of the difference between the two
    sides, divided by the largest norm among the terms and their sum, because terms may cancel. It is the maximum over
    positions and layers. The sites that only some blocks of a hybrid have obey these identities in those blocks; if
    each block is one branch alone, resid_post = resid_pre + attn_out, or resid_post = resid_pre + mlp_out.
    """
    identities = _identities_of_some(model, read)
    read = {site: values for site, values in read.items() if site not in model.anatomy.partial}
    pre, post = read[Site.RESID_PRE], read[Site.RESID_POST]
    identities |= {
        "resid_pre[l+1] = resid_post[l]": ([post[:, :-1]], pre[:, 1:]),
        "resid_final = resid_post of the last block": ([post[:, -1]], read[Site.RESID_FINAL]),
    }
    if Site.ATTN_OUT in read and Site.MLP_OUT in read:
        attention, mlp = read[Site.ATTN_OUT], read[Site.MLP_OUT]
        if Site.RESID_MID_SUM in read:
            middle = read[Site.RESID_MID]
            normed = _normed(model, "attention_output", read[Site.RESID_MID_SUM])
            identities["resid_mid_sum = resid_pre + attn_out"] = ([pre, attention], read[Site.RESID_MID_SUM])
            identities["resid_mid = norm(resid_mid_sum)"] = ([normed], middle)
            identities["resid_post = norm(resid_mid + mlp_out)"] = ([_normed(model, "mlp_output", middle + mlp)], post)
        elif Site.RESID_MID in read:
            identities["resid_mid = resid_pre + attn_out"] = ([pre, attention], read[Site.RESID_MID])
            identities["resid_post = resid_mid + mlp_out"] = ([read[Site.RESID_MID], mlp], post)
        else:
            identities["resid_post = resid_pre + attn_out + mlp_out"] = ([pre, attention, mlp], post)
    elif Site.RESID_MID in read and Site.MLP_OUT in read:  # some blocks have another mixer than attention
        identities["resid_post = resid_mid + mlp_out"] = ([read[Site.RESID_MID], read[Site.MLP_OUT]], post)
    elif Site.RESID_MID in read and Site.ATTN_OUT in read:  # the MLP is the sum of two modules
        identities["resid_mid = resid_pre + attn_out"] = ([pre, read[Site.ATTN_OUT]], read[Site.RESID_MID])
    if Site.HEAD_OUT in read and model.ranks == 1:
        projected = _projected(model, read[Site.HEAD_OUT], range(len(model.blocks)))
        identities["attn_out = projected head_out"] = ([projected], read[Site.ATTN_OUT])
    return {name: _sum_error(*sides) for name, sides in identities.items()}


def _identities_of_some(model: LoadedModel, read: Reading) -> dict[str, _Sides]:
    """Return the identities of the sites that only some blocks have, at these blocks."""
    identities: dict[str, _Sides] = {}
    for site in (Site.ATTN_OUT, Site.MLP_OUT):
        if site in model.anatomy.partial and site in read:
            layers = list(model.anatomy.layers_with(site, range(len(model.blocks))))
            has_middle = site is Site.ATTN_OUT and Site.RESID_MID in read
            end = Site.RESID_MID if has_middle else Site.RESID_POST  # else the block is this branch alone
            terms = [read[one][:, layers] for one in (Site.RESID_PRE, site)]
            identities[f"{end} = resid_pre + {site}"] = (terms, read[end][:, layers])
    if Site.HEAD_OUT in model.anatomy.partial and Site.HEAD_OUT in read and model.ranks == 1:
        layers = list(model.anatomy.layers_with(Site.HEAD_OUT, range(len(model.blocks))))
        projected = _projected(model, read[Site.HEAD_OUT][:, layers], layers)
        identities["attn_out = projected head_out"] = ([projected], read[Site.ATTN_OUT][:, layers])
    return identities


def _sum_error(terms: Sequence[NDArray[np.float64]], total: NDArray[np.float64]) -> float:
    largest = np.max([np.linalg.norm(vectors, axis=-1) for vectors in (*terms, total)], axis=0)
    difference = np.linalg.norm(sum(terms[1:], start=terms[0]) - total, axis=-1)
    return float((difference / np.where(largest == 0, 1.0, largest)).max(initial=0.0))


def _projected(model: LoadedModel, values: NDArray[np.float64], layers: Sequence[int]) -> NDArray[np.float64]:
    """Return what attention adds to the stream, from the outputs of its heads, (position, layer, n_heads·d_head)."""
    anatomy = model.anatomy
    projected = _applied(model, anatomy.tap(Site.HEAD_OUT).module, values, layers) * anatomy.tap(Site.ATTN_OUT).scale
    if anatomy.post_norm or "attention_output" not in anatomy.norms:
        return projected
    return _applied(model, anatomy.norms["attention_output"], projected, layers)


def _normed(model: LoadedModel, norm: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Apply each block's own norm module to (position, layer, d_model)."""
    return _applied(model, model.anatomy.norms[norm], values, range(len(model.blocks)))


@torch.inference_mode()
def _applied(model: LoadedModel, path: str, values: NDArray[np.float64], layers: Sequence[int]) -> NDArray[np.float64]:
    """Apply one module of each of some blocks to (position, layer, feature)."""
    rows = []
    for index, layer in enumerate(layers):
        block = model.blocks[layer]
        module = block.get_submodule(path)
        device = next(block.parameters()).device  # blocks may be on several devices
        stream = torch.from_numpy(values[:, index]).to(device, model.dtype)
        rows.append(module(stream).double().cpu())
    return torch.stack(rows, dim=1).numpy()


def relative_errors(ours: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.float64]:
    """Return ‖x − y‖ / ‖y‖ along the last axis, in float64; never element-wise."""
    reference = np.asarray(reference, dtype=np.float64)
    scale = np.linalg.norm(reference, axis=-1)
    difference = np.linalg.norm(np.asarray(ours, dtype=np.float64) - reference, axis=-1)
    return np.asarray(difference / np.where(scale == 0, 1.0, scale))
