"""The parity certificate: compare captured activations with Hugging Face runs of single, unpadded prompts.

The check has two parts, both on probe prompts. First, the sites of a plain run must obey the identities that relate
them. Second, the activations that were captured in padded batches behind a shared prefix must equal those of the plain
run. Each batch has prompts of at least two lengths, so that an error of padding or of batching cannot stay hidden. The
error is ‖x − y‖ / ‖y‖ for each (prompt, site, layer, position). It is not element-wise: an element-wise error reaches 2
where the vector's error is 1e-6.

If the rounding of float32 is larger than usual, the bound is measured: the captured activations may be no farther from
a run in float64 throughout than the plain run is, and captured in float64, they must equal the plain run.

In half precision, tens of probes show how far rounding moves a plain run from float32, and the captured activations may
be no farther (`rounding`). The first blocks also run in float32, where a mistake cannot hide in the rounding.

If ranks share the model, all ranks run the plain run too, because the model may not fit into one GPU. The first blocks,
in float32, prove the sharding: sharded over the ranks, they must give the same activations as unsharded. All ranks
measure in lock step, so a rank's result must never make it skip a forward that the other ranks run.
"""

import copy
import gc
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from theodolite.digests import digest_of
from theodolite.errors import ParityError
from theodolite.sites import Site
from theodolite_jobs.capture.comparison import (
    Comparison,
    Measured,
    change_by_padding,
    distance_from_float64,
    measure,
)
from theodolite_jobs.capture.plan import SetLayout
from theodolite_jobs.capture.probes import Probes, few_probes, many_probes
from theodolite_jobs.capture.rounding import FARTHER, OUTLIER, ROUNDING, Limits, excess
from theodolite_jobs.models.load import keep_first_blocks, wrap
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.precision import check_finite, throughout_float64
from theodolite_jobs.models.routing import routing_kind

FLOAT32_BOUND = 5e-5
FLOAT32_EXPECTED = 1e-5
FIRST_BLOCKS = 4

# The rounding of one addition, with a margin for vectors whose largest features cancel.
IDENTITY_BOUND = 1e-5
HALF_IDENTITY_BOUND = 2e-2

# The largest rounding error in float64 throughout. It is not zero: activations are stored in float32. A mistake is as
# large as in float32.
_ROUNDING_IN_FLOAT64 = 1e-6

# Arbitration runs all blocks of a model with at most this many weights, and only the first blocks of a larger one.
_MAX_WEIGHTS_FOR_ALL_BLOCKS = 2 * 10**9


@dataclass(frozen=True)
class Certificate:
    """The measured difference between captured activations and plain Hugging Face runs, on probe prompts."""

    prompts: int  # the number of probe prompts
    dtype: str  # of both runs
    attention: str  # the kernel of the capture; the reference is eager if the family can switch (Falcon cannot)
    device: str  # of both runs
    sites_known_by: str  # `record` if the sites come from the table of families, `probe` if from the loaded model
    post_norm: bool  # the norms follow the sums, so resid_mid − resid_pre is not the attention output
    branches_add: bool  # resid_mid − resid_pre and resid_post − resid_mid are the outputs of attention and of the MLP
    bound: float | None  # the largest error that passes; None in half precision, which is compared with float32
    # The largest distance of plain float32 from float64: in the first blocks on the probe with the largest error, or
    # on all probes if the bound was measured. None if ranks share the model, or without memory or kernels for float64.
    float32_rounding: float | None
    max_error: float  # the largest error over prompts, sites, layers and positions
    max_error_by_site: dict[str, float]
    least_cosine: float  # the smallest cosine between a captured vector and its reference
    identity_error: float  # the largest error of the identities between the sites of the plain run
    float32_blocks_max_error: float | None  # of the first blocks in float32; None for a float32 model in one process
    float32_blocks_identity_error: float | None  # likewise
    # In half precision, for each site: the median and the 95 % quantile, over probes and layers, of the distance from
    # float32 of the `captured` and of the `plain` activations.
    float32_distances: dict[str, dict[str, list[float]]] | None
    routing: Literal["not compared", "no experts", "compared", "unknown"]  # `not compared` in float32
    routing_flips: int  # tokens that captured and plain run route to different experts, summed over layers
    routed: int  # the compared routings, over tokens and layers
    token_ids_sha256: str  # digest of the probe prompts' token ids
    warning: str | None  # a message if the error passes, but rounding in the first blocks does not explain it
    ranks: int  # the number of processes that share the model


def certify(
    model: LoadedModel,
    sites: Sequence[Site],
    layers: Sequence[int],
    layouts: Mapping[str, SetLayout],
    probes: Probes,
    float32_bound: float = FLOAT32_BOUND,
) -> Certificate:
    """Return the certificate alone; see `certify_with_limits`."""
    return certify_with_limits(model, sites, layers, layouts, probes, float32_bound)[0]


def certify_with_limits(
    model: LoadedModel,
    sites: Sequence[Site],
    layers: Sequence[int],
    layouts: Mapping[str, SetLayout],
    probes: Probes,
    float32_bound: float = FLOAT32_BOUND,
) -> tuple[Certificate, Limits]:
    """Return a certificate from a few prompts of each set, captured in padded batches behind the set's shared prefix.

    `float32_bound` is the largest error that passes in float32.

    Raises:
        ModelError: a weight has NaN or infinity, and activations too.
        ParityError: an error exceeds its bound or is NaN; the message names the site with the largest error, and says
            whether the cause is rounding or a mistake.
    """
    is_half = model.dtype in ROUNDING
    chosen = few_probes(model, layouts, probes)
    few = Comparison(tuple(sites), tuple(layers), layouts, chosen, chosen)
    many = replace(few, probes=many_probes(chosen, layouts, probes))
    comparison = many if is_half else few
    whole = measure(model, comparison, exact=torch.float32 if is_half else None)
    first: Measured | None = None
    warning: str | None = None
    if is_half or model.ranks > 1:
        first = _measure_first_blocks(model, torch.float32, few, first_block_count(model))
    measured = _float32_rounding(model, many, whole, first, float32_bound)
    rounding = _rounding_of_first_blocks(model, few, first if is_half else whole) if measured is None else measured
    if measured is not None:
        float32_bound = (OUTLIER + 1) * measured + FLOAT32_EXPECTED  # both runs may be that far from float64
        warning = (
            f"Plain Hugging Face in float32 is up to {measured:.1e} from float64, so the check allows "
            f"{float32_bound:.1e}; in float64, the captured activations equal the plain ones"
        )
    else:
        warning = _warning(first if is_half else whole, rounding)
    certificate = Certificate(
        prompts=sum(map(len, comparison.probes.values())),
        dtype=str(model.dtype).removeprefix("torch."),
        attention=str(model.config._attn_implementation),
        device=str(model.device),
        sites_known_by=model.anatomy.known_by,
        post_norm=model.anatomy.post_norm,
        branches_add=model.anatomy.branches_add,
        bound=None if is_half else float32_bound,
        float32_rounding=rounding,
        max_error=whole.max_error,
        max_error_by_site={str(site): float(error.max()) for site, error in whole.errors.items()},
        least_cosine=whole.min_cosine,
        identity_error=whole.identity_error,
        float32_blocks_max_error=first.max_error if first else None,
        float32_blocks_identity_error=first.identity_error if first else None,
        float32_distances=whole.rounding.summary() if whole.rounding else None,
        routing=whole.rounding.routing if whole.rounding else "not compared",
        routing_flips=whole.rounding.flips if whole.rounding else 0,
        routed=whole.rounding.routed if whole.rounding else 0,
        token_ids_sha256=digest_of({name: list(chosen) for name, chosen in comparison.probes.items()}),
        warning=warning,
        ranks=model.ranks,
    )
    _check_identities(model, first or whole, IDENTITY_BOUND)
    _check_identities(model, whole, HALF_IDENTITY_BOUND if is_half else IDENTITY_BOUND)
    if (failure := _failure(model, whole, first, float32_bound)) is not None:
        raise ParityError(
            f"captured activations differ from plain Hugging Face: {failure}; "
            f"first blocks in float32 {certificate.float32_blocks_max_error} "
            f"({certificate.dtype}, attention {certificate.attention}, {certificate.device}); "
            f"{_arbitrate(model, few, float32_bound)}; the run does not start"
        )
    limits = whole.rounding.limits() if whole.rounding else ({}, routing_kind(model))
    unit = ROUNDING.get(model.dtype, FLOAT32_EXPECTED)
    return certificate, Limits(float32_bound, unit, *limits)


def _float32_rounding(
    model: LoadedModel, comparison: Comparison, whole: Measured, first: Measured | None, float32_bound: float
) -> float | None:
    """Return the largest distance of plain float32 vectors from float64, if rounding explains a too large error.

    It does under two conditions: captured in float64 throughout, the vectors equal plain ones, so there is no mistake;
    and the largest distance of captured vectors from float64 is at most `OUTLIER` times that of plain ones, which
    tells how exact float32 is in this model. Else, or if no error is too large, it is None.
    """
    suspect = whole if model.dtype not in ROUNDING else first
    if model.ranks > 1 or suspect is None or not float32_bound < suspect.max_error < math.inf:
        return None
    count = _arbitrated_block_count(model)
    try:
        if suspect is first:
            count = first_block_count(model)
            single = _copied_blocks(model, torch.float32, count)
            rounding = measure(single, _of_first_blocks(comparison, single), exact=torch.float64).rounding
        else:
            rounding = measure(model, comparison, exact=torch.float64).rounding
        double = _measure_first_blocks(model, torch.float64, replace(comparison, probes=comparison.few), count)
    except RuntimeError:  # out of memory, or a kernel without float64
        return None
    assert rounding is not None
    runs = (rounding.captured, rounding.plain)
    captured, plain = (float(np.max([one.max() for one in run.values()])) for run in runs)
    explained = captured <= OUTLIER * plain + FLOAT32_EXPECTED
    return plain if explained and double.max_error <= _ROUNDING_IN_FLOAT64 else None


def _rounding_of_first_blocks(model: LoadedModel, comparison: Comparison, measured: Measured | None) -> float | None:
    """Return how far plain float32 is from float64 in the first blocks, on the probe with the largest error.

    It needs the memory of one block and of the embedding in float64. None as in `Certificate`.
    """
    if model.ranks > 1 or measured is None or not math.isfinite(measured.max_error):
        return None
    head = _first_blocks(model, first_block_count(model))
    try:
        return distance_from_float64(head, _of_first_blocks(comparison, head), *measured.worst)
    except RuntimeError:  # out of memory, or a kernel without float64
        return None


def _warning(measured: Measured | None, rounding: float | None) -> str | None:
    """Return a message if an error in float32 is large, and larger than rounding explains; else None.

    Rounding explains the distance of the plain run from float64, and a captured run that does not count as farther.
    """
    if measured is None or not measured.max_error > max(FLOAT32_EXPECTED, (FARTHER + 1) * (rounding or 0)):
        return None
    explained = (
        "and how much of it is rounding was not measured"
        if rounding is None
        else f"but plain float32 is at most {rounding:.1e} from float64 in the first blocks, on the same probe prompt"
    )
    return f"The largest error in float32, {measured.max_error:.1e}, passes the check, {explained}"


def _arbitrated_block_count(model: LoadedModel) -> int:
    """Return the number of blocks that are compared in float64: all of them, unless the model is large."""
    parameters = sum(weight.numel() for weight in model.module.parameters())
    return len(model.blocks) if parameters <= _MAX_WEIGHTS_FOR_ALL_BLOCKS else first_block_count(model)


def _failure(model: LoadedModel, whole: Measured, first: Measured | None, float32_bound: float) -> str | None:
    """Return what is wrong with the measured errors, or None. Each comparison is written so that a NaN fails."""
    worst = max(whole.errors, key=lambda site: float(np.nan_to_num(whole.errors[site], nan=np.inf).max()))
    error = f"error {whole.max_error:.1e} at {worst}"
    cosine = f"smallest cosine {whole.min_cosine:.6f}"
    if whole.rounding is not None:
        if (far := excess(whole.rounding, ROUNDING[model.dtype])) is not None:
            return f"{error}, {cosine}; they are farther from float32 than rounding explains: {far}"
        if not math.isfinite(whole.max_error):
            return error
    elif not whole.max_error <= float32_bound:
        return f"{error}, allowed {float32_bound:.0e}; {cosine}"
    if first is not None and not first.max_error <= float32_bound:
        return f"{error}; the first blocks in float32 differ by more than {float32_bound:.0e}"
    return None


def _check_identities(model: LoadedModel, measured: Measured, bound: float) -> None:
    for identity, error in measured.identities.items():
        if not math.isfinite(error):
            check_finite(model.module)
            raise ParityError(
                f"{identity.split(' ')[0]} has NaN or infinity for a probe prompt, also in plain Hugging Face: set "
                "model.dtype to bfloat16 or float32; the run does not start"
            )
        if error > bound:
            raise ParityError(
                f"a site is not read from the correct module: the identity {identity} has the error {error:.1e} at "
                f"{identity.split(' ')[0]}, allowed {bound:.0e}; the run does not start. Please report the model"
            )


def _arbitrate(model: LoadedModel, comparison: Comparison, float32_bound: float) -> str:
    """Return a sentence that says whether a failure is rounding (float64 removes it) or a mistake (it remains)."""
    if model.ranks > 1:  # another rank may have passed, and would not take part in more forwards
        return (
            "whether this is rounding was not measured, because ranks share the model; "
            "set THEODOLITE_PARALLELISM to pipeline"
        )
    count = _arbitrated_block_count(model)
    everything = count == len(model.blocks)
    try:
        single, double = (
            _measure_first_blocks(model, dtype, comparison, count).max_error for dtype in (torch.float32, torch.float64)
        )
        change = 0.0
        if not double <= _ROUNDING_IN_FLOAT64 and model.anatomy.causal:
            with throughout_float64():
                change = change_by_padding(_copied_blocks(model, torch.float64, count), comparison)
    except RuntimeError as error:  # out of memory, or a kernel without float64: still report the failure
        return f"the error could not be measured again in float64 ({type(error).__name__})"
    differences = f"the first {count} blocks differ by {single:.1e} in float32 and {double:.1e} in float64"
    if change > _ROUNDING_IN_FLOAT64:
        return (
            f"{differences}; plain Hugging Face itself changes by {change:.1e} in float64 if padding follows a prompt: "
            "its vectors depend on later tokens, or they are not continuous (as with ties in a sparse selection of "
            "tokens), so no padded batch can equal it"
        )
    if not double <= _ROUNDING_IN_FLOAT64:
        return f"{differences}: this is not rounding but a mistake; please report it"
    if everything or single > float32_bound:
        return f"{differences}: this is rounding; set model.dtype to float32 or model.attention to eager"
    return f"{differences}: these blocks do not show the cause; please report it"


def _measure_first_blocks(model: LoadedModel, dtype: torch.dtype, comparison: Comparison, count: int) -> Measured:
    """Measure embedding, first blocks and final norm in another dtype, because half precision hides small mistakes.

    If ranks share the model, the captured blocks are sharded like the model, and those of the reference are not.
    """
    if model.reload is None or model.ranks == 1:
        head = plain = _copied_blocks(model, dtype, count)
    else:
        # Load again instead of copying: a sharded copy's forwards are closures over the original's weights.
        name, device = str(dtype).removeprefix("torch."), None if model.device.type == "cpu" else model.device
        head = model.reload(dtype=name, blocks=count, ranks=model.ranks)
        plain = model.reload(dtype=name, blocks=count, device_map=device)
    with throughout_float64() if dtype == torch.float64 else nullcontext():
        measured = measure(head, _of_first_blocks(comparison, head), plain)
    if model.ranks > 1:
        del head
        gc.collect()  # a sharded model's forwards refer back to it; the cycle would keep its memory
    return measured


def _of_first_blocks(comparison: Comparison, head: LoadedModel) -> Comparison:
    """Return a comparison of the layers that a model of the first blocks has, and of the sites of these layers."""
    layers = tuple(layer for layer in comparison.layers if layer < head.dimensions.n_layers)
    blocks = (site for site in comparison.sites if site is not Site.RESID_FINAL)
    sites = tuple(site for site in blocks if head.anatomy.layers_with(site, layers))
    return replace(comparison, layers=layers, sites=(*sites, Site.RESID_FINAL))


def first_block_count(model: LoadedModel) -> int:
    """Return the number of first blocks to measure: four, or more until every kind of layer has occurred."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or [""]
    return min(len(model.blocks), max(FIRST_BLOCKS, *(kinds.index(kind) + 1 for kind in set(kinds))))


def _copied_blocks(model: LoadedModel, dtype: torch.dtype, count: int) -> LoadedModel:
    """Return a copy of embedding, first blocks and final norm; the model itself does not change."""
    head = _first_blocks(model, count, share=False)
    # Not module.to: on a model spread over several devices it is a closure over the original model.
    torch.nn.Module.to(head.module, dtype)
    if dtype == torch.float64 and getattr(head.config, "_experts_implementation", "eager") != "eager":
        head.module.set_experts_implementation("eager")  # the fused kernels have no float64
    return head


def _first_blocks(model: LoadedModel, count: int, *, share: bool = True) -> LoadedModel:
    """Return embedding, first blocks and final norm as a model of its own, which shares its weights or copies them."""
    path, _, name = model.anatomy.blocks.rpartition(".")
    owner = model.module.get_submodule(path)
    blocks = model.blocks
    tensors = (*model.module.parameters(), *model.module.buffers()) if share else ()
    setattr(owner, name, blocks[:count])
    try:
        module = copy.deepcopy(model.module, {id(tensor): tensor for tensor in tensors})
    finally:
        setattr(owner, name, blocks)
    keep_first_blocks(module.config, count)
    return replace(wrap(module, model.anatomy), dimensions=replace(model.dimensions, n_layers=count))
