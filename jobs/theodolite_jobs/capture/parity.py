"""The parity certificate: compare captured activations with Hugging Face runs of single, unpadded prompts.

The check has two parts, both on probe prompts. First, the sites of a plain run must obey the identities that relate
them. Second, the activations that were captured in padded batches behind a shared prefix must equal those of the plain
run. Each batch has prompts of at least two lengths, so that an error of padding or of batching cannot stay hidden. The
error is ‖x − y‖ / ‖y‖ for each (prompt, site, layer, position). It is not element-wise: an element-wise error reaches 2
where the vector's error is 1e-6.

If ranks share the model, all ranks run the plain run too, because the model may not fit into one GPU. The first blocks,
in float32, prove the sharding: sharded over the ranks, they must give the same activations as unsharded. All ranks
measure in lock step, so a rank's result must never make it skip a forward that the other ranks run.
"""

import copy
import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from theodolite.digests import digest_of
from theodolite.errors import ParityError
from theodolite.sites import Site
from theodolite.spec import TokenIds
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.plan import SetPlan, ShardPlan
from theodolite_jobs.models.batching import length_class_of
from theodolite_jobs.models.load import LoadedModel, wrap
from theodolite_jobs.models.reference import identity_errors, read_sites, relative_errors

FLOAT32_BOUND = 5e-5
FLOAT32_EXPECTED = 1e-5
HALF_BOUND = 4e-2
HALF_MIN_COSINE = 0.9995
FIRST_BLOCKS = 4

# The rounding of one addition, with a margin for vectors whose largest features cancel.
IDENTITY_BOUND = 1e-5
HALF_IDENTITY_BOUND = 2e-2

# The largest rounding error in float64. It is not zero: activations are stored in float32, and most families compute
# norms and rotary angles in float32 for every dtype (measured: up to 5e-7). A mistake is as large as in float32.
_ROUNDING_IN_FLOAT64 = 5e-6

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
    bound: float  # the largest error that passes
    max_error: float  # the largest error over prompts, sites, layers and positions
    max_error_by_site: dict[str, float]
    least_cosine: float  # the smallest cosine between a captured vector and its reference
    identity_error: float  # the largest error of the identities between the sites of the plain run
    float32_blocks_max_error: float | None  # of the first blocks in float32; None for a float32 model in one process
    float32_blocks_identity_error: float | None  # likewise
    token_ids_sha256: str  # digest of the probe prompts' token ids
    warning: str | None  # a message if the error passes but is larger than expected
    ranks: int  # the number of processes that share the model


@dataclass(frozen=True)
class _Comparison:
    """The sites and layers to compare, on the probe prompts of each set, which are captured by the set's plan."""

    sites: tuple[Site, ...]
    layers: tuple[int, ...]
    plans: Mapping[str, SetPlan]
    probes: Mapping[str, Sequence[TokenIds]]


@dataclass(frozen=True)
class _Measured:
    """The errors of each site's vectors and of the identities, and the smallest cosine."""

    errors: dict[Site, NDArray[np.float64]]
    identities: dict[str, float]
    min_cosine: float

    # np.max returns NaN if any value is NaN, which then fails the check; Python's max could drop it.
    @property
    def max_error(self) -> float:
        return float(np.max([error.max() for error in self.errors.values()]))

    @property
    def identity_error(self) -> float:
        return float(np.max(list(self.identities.values())))


def certify(
    model: LoadedModel,
    sites: Sequence[Site],
    layers: Sequence[int],
    plans: Mapping[str, SetPlan],
    probes: Mapping[str, Sequence[TokenIds]],
    float32_bound: float = FLOAT32_BOUND,
) -> Certificate:
    """Return a certificate from a few prompts of each set, captured in padded batches behind the set's shared prefix.

    `float32_bound` is the largest error that passes in float32.

    Raises:
        ParityError: an error exceeds its bound or is NaN; the message names the site with the largest error, and says
            whether the cause is rounding or a mistake.
    """
    is_float32 = model.dtype == torch.float32
    probes = {name: _with_other_lengths(model, plans[name], chosen) for name, chosen in probes.items()}
    comparison = _Comparison(tuple(sites), tuple(layers), plans, probes)
    whole = _measure(model, comparison)
    first: _Measured | None = None
    warning: str | None = None
    if not is_float32 or model.ranks > 1:
        first = _measure_first_blocks(model, torch.float32, comparison, first_block_count(model))
    if is_float32 and whole.max_error > FLOAT32_EXPECTED:
        expected = f"rounding explains at most {FLOAT32_EXPECTED:.0e}"
        warning = f"The error {whole.max_error:.1e} passes the check, but {expected}"
    certificate = Certificate(
        prompts=sum(map(len, probes.values())),
        dtype=str(model.dtype).removeprefix("torch."),
        attention=str(model.config._attn_implementation),
        device=str(model.device),
        sites_known_by=model.anatomy.known_by,
        post_norm=model.anatomy.post_norm,
        bound=float32_bound if is_float32 else HALF_BOUND,
        max_error=whole.max_error,
        max_error_by_site={str(site): float(error.max()) for site, error in whole.errors.items()},
        least_cosine=whole.min_cosine,
        identity_error=whole.identity_error,
        float32_blocks_max_error=first.max_error if first else None,
        float32_blocks_identity_error=first.identity_error if first else None,
        token_ids_sha256=digest_of({name: list(chosen) for name, chosen in probes.items()}),
        warning=warning,
        ranks=model.ranks,
    )
    _check_identities(first or whole, IDENTITY_BOUND)
    _check_identities(whole, IDENTITY_BOUND if is_float32 else HALF_IDENTITY_BOUND)
    passes = whole.max_error <= certificate.bound  # each comparison is written so that a NaN fails
    if first is not None:
        passes = passes and whole.min_cosine >= HALF_MIN_COSINE and first.max_error <= float32_bound
    if not passes:
        worst = max(whole.errors, key=lambda site: float(np.nan_to_num(whole.errors[site], nan=np.inf).max()))
        raise ParityError(
            f"captured activations differ from plain Hugging Face: error {certificate.max_error:.1e} at {worst}, "
            f"allowed {certificate.bound:.0e}; smallest cosine {certificate.least_cosine:.6f}; "
            f"first blocks in float32 {certificate.float32_blocks_max_error} "
            f"({certificate.dtype}, attention {certificate.attention}, {certificate.device}); "
            f"{_arbitrate(model, comparison, float32_bound)}; the run does not start"
        )
    return certificate


def _check_identities(measured: _Measured, bound: float) -> None:
    for identity, error in measured.identities.items():
        if not math.isfinite(error):
            raise ParityError(
                f"{identity.split(' ')[0]} has NaN or infinity for a probe prompt, also in plain Hugging Face: set "
                "model.dtype to bfloat16 or float32; the run does not start"
            )
        if error > bound:
            raise ParityError(
                f"a site is not read from the correct module: the identity {identity} has the error {error:.1e} at "
                f"{identity.split(' ')[0]}, allowed {bound:.0e}; the run does not start. Please report the model"
            )


def _arbitrate(model: LoadedModel, comparison: _Comparison, float32_bound: float) -> str:
    """Return a sentence that says whether a failure is rounding (float64 removes it) or a mistake (it remains)."""
    if model.ranks > 1:  # another rank may have passed, and would not take part in more forwards
        return (
            "whether this is rounding was not measured, because ranks share the model; "
            "set THEODOLITE_PARALLELISM to pipeline"
        )
    parameters = sum(weight.numel() for weight in model.module.parameters())
    everything = parameters <= _MAX_WEIGHTS_FOR_ALL_BLOCKS
    count = len(model.blocks) if everything else first_block_count(model)
    try:
        single, double = (
            _measure_first_blocks(model, dtype, comparison, count).max_error for dtype in (torch.float32, torch.float64)
        )
    except RuntimeError as error:  # out of memory, or a kernel without float64: still report the failure
        return f"the error could not be measured again in float64 ({type(error).__name__})"
    differences = f"the first {count} blocks differ by {single:.1e} in float32 and {double:.1e} in float64"
    if not double <= _ROUNDING_IN_FLOAT64:
        return f"{differences}: this is not rounding but a mistake; please report it"
    if everything or single > float32_bound:
        return f"{differences}: this is rounding; set model.dtype to float32 or model.attention to eager"
    return f"{differences}: these blocks do not show the cause; please report it"


def _measure(model: LoadedModel, comparison: _Comparison, reference_model: LoadedModel | None = None) -> _Measured:
    """Compare the captured probes with a plain run of each, by `reference_model` or else by the same model."""
    reference = reference_model or model
    engine = Engine(model, comparison.sites, comparison.layers)
    errors: dict[Site, list[NDArray[np.float64]]] = {site: [] for site in comparison.sites}
    identities: dict[str, float] = {}
    cosines = [1.0]
    for name, plan in comparison.plans.items():
        chosen = comparison.probes[name]
        probe_plan = _plan_of_probes(model, plan, chosen)
        captured = engine.capture(probe_plan, probe_plan.shards[0], chosen)
        for row, ids in enumerate(chosen):
            positions = [position for position in plan.positions if len(ids) + position >= 0]
            plain = read_sites(reference, ids, positions)
            for identity, error in identity_errors(reference, plain).items():
                identities[identity] = float(np.maximum(identities.get(identity, 0.0), error))
            for site in errors:
                reading = plain[site] if site is Site.RESID_FINAL else plain[site][:, list(comparison.layers)]
                theirs = reading.reshape(-1, reading.shape[-1])
                ours = captured.activations[site][row, len(plan.positions) - len(positions) :].astype(np.float64)
                ours = ours.reshape(theirs.shape)  # a vector of head_out has all heads
                errors[site].append(relative_errors(ours, theirs))
                cosines.append(_min_cosine(ours, theirs))
    joined = {site: np.concatenate(parts) for site, parts in errors.items()}
    return _Measured(joined, identities, float(np.min(cosines)))


def _with_other_lengths(model: LoadedModel, plan: SetPlan, probes: Sequence[TokenIds]) -> list[TokenIds]:
    """Return the probes, and another prompt for each probe that would be in a batch without padding.

    The other prompt is the probe without its end; if that is too short, it is the probe with its tokens behind the
    shared prefix twice. If a prompt of another length cannot be in the same batch, it is the probe with these tokens in
    reverse order.
    """
    class_of, shared = length_class_of(model.config), plan.shared_prefix
    shortest = max(1, shared - min(plan.positions))  # captured positions follow the shared prefix
    chosen = list(probes)
    for ids in probes:
        lengths = {len(other) for other in chosen if class_of(len(other)) == class_of(len(ids))}
        if len(lengths) > 1:
            continue
        cut, doubled = ids[: max(shortest, len(ids) // 2)], (*ids, *ids[shared:])
        others = [other for other in (cut, doubled) if shortest <= len(other) <= model.dimensions.context_length]
        in_batch = [one for one in others if len(one) != len(ids) and class_of(len(one)) == class_of(len(ids))]
        chosen.append([*in_batch, (*ids[:shared], *reversed(ids[shared:]))][0])
    return chosen


def _plan_of_probes(model: LoadedModel, plan: SetPlan, probes: Sequence[TokenIds]) -> SetPlan:
    """Return a plan with all probes of a length class in one batch, behind the run's own shared prefix."""
    class_of = length_class_of(model.config)
    classes = [class_of(len(ids)) for ids in probes]
    batches = tuple(tuple(probe for probe, own in enumerate(classes) if own == one) for one in dict.fromkeys(classes))
    return replace(plan, shards=(ShardPlan(plan.prompt_set, 0, 0, len(probes), batches),))


def _measure_first_blocks(model: LoadedModel, dtype: torch.dtype, comparison: _Comparison, count: int) -> _Measured:
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
    layers = tuple(layer for layer in comparison.layers if layer < head.dimensions.n_layers)
    sites = tuple(site for site in comparison.sites if layers and site is not Site.RESID_FINAL)
    measured = _measure(head, replace(comparison, layers=layers, sites=(*sites, Site.RESID_FINAL)), plain)
    if model.ranks > 1:
        del head
        gc.collect()  # a sharded model's forwards refer back to it; the cycle would keep its memory
    return measured


def first_block_count(model: LoadedModel) -> int:
    """Return the number of first blocks to measure: four, or more until every kind of layer has occurred."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or [""]
    return min(len(model.blocks), max(FIRST_BLOCKS, *(kinds.index(kind) + 1 for kind in set(kinds))))


def _copied_blocks(model: LoadedModel, dtype: torch.dtype, count: int) -> LoadedModel:
    """Return a copy of embedding, first blocks and final norm; the model itself does not change."""
    path, _, name = model.anatomy.blocks.rpartition(".")
    owner = model.module.get_submodule(path)
    blocks = model.blocks
    setattr(owner, name, blocks[:count])
    try:
        module = copy.deepcopy(model.module)
    finally:
        setattr(owner, name, blocks)
    # Not module.to: on a model spread over several devices it is a closure over the original model.
    torch.nn.Module.to(module, dtype)
    if dtype == torch.float64 and getattr(module.config, "_experts_implementation", "eager") != "eager":
        module.set_experts_implementation("eager")  # the fused kernels have no float64
    for config in (module.config, module.config.get_text_config()):
        config.num_hidden_layers = count
    return wrap(module, model.anatomy)


def _min_cosine(ours: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    product = (ours * reference).sum(axis=-1)
    scale = np.linalg.norm(ours, axis=-1) * np.linalg.norm(reference, axis=-1)
    used = ~(scale == 0)  # a NaN is not dropped, and fails the check
    return float((product[used] / scale[used]).min(initial=1.0))
