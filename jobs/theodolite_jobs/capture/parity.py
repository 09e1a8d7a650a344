"""The parity certificate: what we capture against plain, unpadded, one-at-a-time Hugging Face.

Two things are proven on probe prompts. The places: the sites of a plain run obey the identities that tie them
together. The capture: what comes out of padded batches behind a shared prefix is what the plain run has there. Error is
‖x − y‖ / ‖y‖ for each (prompt, site, layer, position), never element-wise, which reaches 2 where the vector's error is
1e-6.

Where ranks share the model, its plain run is one of all ranks too, for no GPU may hold it whole. That the parts add up
is proven on the first blocks, in float32: cut over the ranks they must give what they give whole. All ranks measure,
in lock step, and nothing that one of them finds may keep it from a forward that the others run.
"""

import copy
import gc
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from theodolite.errors import ParityError
from theodolite.sites import Site
from theodolite.spec import TokenIds, digest_of
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.plan import SetPlan, plan_set
from theodolite_jobs.models.batching import length_class_of
from theodolite_jobs.models.load import LoadedModel, wrap
from theodolite_jobs.models.reference import identity_errors, read_sites, relative_errors

FLOAT32_BOUND = 5e-5
FLOAT32_EXPECTED = 1e-5
HALF_BOUND = 4e-2
HALF_LEAST_COSINE = 0.9995
FIRST_BLOCKS = 4

# One addition's rounding, with room for vectors whose largest features cancel.
IDENTITY_BOUND = 1e-5
HALF_IDENTITY_BOUND = 2e-2

# What may stay of rounding in float64: activations are kept in float32, and most families compute norms and rotary
# angles in float32 whatever the model's dtype (seen: up to 5e-7). A mistake stays as large as it was.
_ROUNDING_IN_FLOAT64 = 5e-6

# A model of at most so many weights is arbitrated whole, of a larger one only the first blocks.
_ARBITRATED_WHOLE = 2 * 10**9


@dataclass(frozen=True)
class Certificate:
    """How far capture is from plain Hugging Face, on probe prompts.

    Attributes:
        prompts: how many probe prompts.
        dtype: arithmetic of both sides.
        attention: our attention kernel; the reference is eager where the family can switch (Falcon cannot).
        device: where both ran.
        sites_known_by: a record of the table of families, or a probe of the loaded model.
        post_norm: the norms follow the sums, so resid_mid − resid_pre is not what attention added.
        bound: the largest error that passes.
        max_error: the largest error found, over prompts, sites, layers and positions.
        max_error_by_site: the same for each site.
        least_cosine: the least cosine between ours and the reference.
        identity_error: how far the sites of the plain run are from the identities that tie them together.
        float32_blocks_max_error: for half precision, and where ranks share the model, the error of the first blocks run
            in float32.
        float32_blocks_identity_error: and how far those are from the identities.
        token_ids_sha256: digest of the probe prompts' token ids.
        warning: set where the error passes but is larger than expected.
        ranks: processes that share the model.
    """

    prompts: int
    dtype: str
    attention: str
    device: str
    sites_known_by: str
    post_norm: bool
    bound: float
    max_error: float
    max_error_by_site: dict[str, float]
    least_cosine: float
    identity_error: float
    float32_blocks_max_error: float | None
    float32_blocks_identity_error: float | None
    token_ids_sha256: str
    warning: str | None
    ranks: int

    def as_dict(self) -> dict[str, Any]:
        """Return the certificate as JSON-ready values."""
        return asdict(self)


@dataclass(frozen=True)
class _Question:
    """What is compared: sites and layers, on the probe prompts of each set, captured as the set's plan says."""

    sites: tuple[Site, ...]
    layers: tuple[int, ...]
    plans: Mapping[str, SetPlan]
    probes: Mapping[str, Sequence[TokenIds]]


@dataclass(frozen=True)
class _Measured:
    """Errors of each site's vectors, of the identities, and the least cosine."""

    errors: dict[Site, NDArray[np.float64]]
    identities: dict[str, float]
    least_cosine: float

    # NumPy's extremes keep a NaN, which then fails; Python's would drop it.
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
) -> Certificate:
    """Measure a certificate on a few prompts of each set, captured in padded batches behind the set's shared prefix.

    Raises:
        ParityError: an error is beyond its bound, or not a number; the message says where it is largest, and whether
            it is rounding or a mistake.
    """
    is_float32 = model.dtype == torch.float32
    question = _Question(tuple(sites), tuple(layers), plans, probes)
    whole = _measure(model, question)
    first = None
    if not is_float32 or model.ranks > 1:
        first = _measure_first_blocks(model, torch.float32, question, _first_count(model))
    certificate = Certificate(
        prompts=sum(map(len, probes.values())),
        dtype=str(model.dtype).removeprefix("torch."),
        attention=str(model.config._attn_implementation),
        device=str(model.device),
        sites_known_by=model.anatomy.known_by,
        post_norm=model.anatomy.post_norm,
        bound=FLOAT32_BOUND if is_float32 else HALF_BOUND,
        max_error=whole.max_error,
        max_error_by_site={str(site): float(error.max()) for site, error in whole.errors.items()},
        least_cosine=whole.least_cosine,
        identity_error=whole.identity_error,
        float32_blocks_max_error=first.max_error if first else None,
        float32_blocks_identity_error=first.identity_error if first else None,
        token_ids_sha256=digest_of({name: list(chosen) for name, chosen in probes.items()}),
        warning=_warning(is_float32, whole.max_error),
        ranks=model.ranks,
    )
    _refuse_wrong_places(first or whole, IDENTITY_BOUND)
    _refuse_wrong_places(whole, IDENTITY_BOUND if is_float32 else HALF_IDENTITY_BOUND)
    if not _passes(certificate):
        arbitration = _arbitrate(model, question)
        raise ParityError(_failure(certificate, whole, arbitration))
    return certificate


def _refuse_wrong_places(measured: _Measured, bound: float) -> None:
    for identity, error in measured.identities.items():
        if not error <= bound:  # a NaN fails too
            raise ParityError(
                f"the sites are not where they are thought to be: {identity} is off by {error:.1e} at "
                f"{identity.split(' ')[0]}, allowed {bound:.0e}; the run does not start. Please report the model"
            )


def _passes(certificate: Certificate) -> bool:
    # Each is written so that a NaN fails too.
    passes = certificate.max_error <= certificate.bound
    if certificate.float32_blocks_max_error is not None:
        passes &= certificate.least_cosine >= HALF_LEAST_COSINE
        passes &= certificate.float32_blocks_max_error <= FLOAT32_BOUND
    return passes


def _failure(certificate: Certificate, whole: _Measured, arbitration: str) -> str:
    worst = max(whole.errors, key=lambda site: float(np.nan_to_num(whole.errors[site], nan=np.inf).max()))
    return (
        f"captured activations differ from plain Hugging Face: error {certificate.max_error:.1e} at {worst}, "
        f"allowed {certificate.bound:.0e}; least cosine {certificate.least_cosine:.6f}; "
        f"first blocks in float32 {certificate.float32_blocks_max_error} "
        f"({certificate.dtype}, attention {certificate.attention}, {certificate.device}); {arbitration}; "
        "the run does not start"
    )


def _arbitrate(model: LoadedModel, question: _Question) -> str:
    """Say whether a failure is rounding, which float64 takes away, or a mistake, which it leaves as it is."""
    if model.ranks > 1:  # another rank may have passed, and would not run along
        return "whether this is rounding was not measured, as ranks share the model; try parallelism: pipeline"
    parameters = sum(weight.numel() for weight in model.module.parameters())
    everything = parameters <= _ARBITRATED_WHOLE
    count = len(model.blocks) if everything else _first_count(model)
    try:
        single, double = (
            _measure_first_blocks(model, dtype, question, count).max_error for dtype in (torch.float32, torch.float64)
        )
    except RuntimeError as error:  # out of memory, or a kernel without float64: the failure itself must be told
        return f"it could not be measured again in float64 ({type(error).__name__})"
    found = f"the first {count} blocks differ by {single:.1e} in float32 and {double:.1e} in float64"
    if not double <= _ROUNDING_IN_FLOAT64:
        return f"{found}: this is not rounding but a mistake, please report it"
    if everything or single > FLOAT32_BOUND:
        return f"{found}: this is rounding, try model.dtype: float32 or model.attention: eager"
    return f"{found}: they do not show it, please report it"


def _warning(is_float32: bool, error: float) -> str | None:
    if is_float32 and error > FLOAT32_EXPECTED:
        return f"the error {error:.1e} passes, but is larger than the {FLOAT32_EXPECTED:.0e} that rounding explains"
    return None


def _measure(model: LoadedModel, question: _Question, reference_model: LoadedModel | None = None) -> _Measured:
    """Compare a capture of the probes with a plain reading of each, by the same model where there is no other."""
    read = reference_model or model
    engine = Engine(model, question.sites, question.layers)
    errors: dict[Site, list[NDArray[np.float64]]] = {site: [] for site in (*question.sites, Site.RESID_FINAL)}
    identities: dict[str, float] = {}
    cosines = [1.0]
    for name, plan in question.plans.items():
        chosen = question.probes[name]
        probe_plan = _plan_of_probes(model, plan, chosen)
        captured = engine.capture(probe_plan, probe_plan.shards[0], chosen)
        for row, ids in enumerate(chosen):
            positions = [position for position in plan.positions if len(ids) + position >= 0]
            plain = read_sites(read, ids, positions)
            for identity, error in identity_errors(read, plain).items():
                identities[identity] = float(np.maximum(identities.get(identity, 0.0), error))
            for site in errors:
                mine = _as_vectors(captured.activations[site][row, len(plan.positions) - len(positions) :])
                reference = _as_vectors(
                    plain[site][:, list(question.layers)] if site is not Site.RESID_FINAL else plain[site]
                )
                errors[site].append(relative_errors(mine, reference))
                cosines.append(_least_cosine(mine, reference))
    return _Measured(
        {site: np.concatenate(found) for site, found in errors.items()}, identities, float(np.min(cosines))
    )


def _plan_of_probes(model: LoadedModel, plan: SetPlan, probes: Sequence[TokenIds]) -> SetPlan:
    """Put the probes into one batch where the model lets them share one, behind the run's own shared prefix."""
    whole = plan_set(
        plan.prompt_set,
        probes,
        plan.positions,
        shard_prompts=len(probes),
        batch_tokens=len(probes) * max(map(len, probes)),
        share_prefix=False,
        length_class=length_class_of(model.config),
    )
    return SetPlan(
        plan.prompt_set, plan.positions, plan.shared_prefix, whole.shards, whole.tokens, whole.computed_tokens
    )


def _measure_first_blocks(model: LoadedModel, dtype: torch.dtype, question: _Question, count: int) -> _Measured:
    """Measure the model's first blocks in another precision: half precision hides small mistakes."""
    head, plain = _first_blocks(model, dtype, count)
    kept = tuple(layer for layer in question.layers if layer < head.dimensions.n_layers)
    measured = _measure(head, replace(question, layers=kept, sites=question.sites if kept else ()), plain)
    if model.ranks > 1:
        del head
        gc.collect()  # the forwards of a cut model hold it in a cycle, and its memory is wanted
    return measured


def _first_count(model: LoadedModel) -> int:
    """Return how many first blocks to measure: four, and on until every kind of layer has occurred."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or [""]
    return min(len(model.blocks), max(FIRST_BLOCKS, *(kinds.index(kind) + 1 for kind in set(kinds))))


def _first_blocks(model: LoadedModel, dtype: torch.dtype, count: int) -> tuple[LoadedModel, LoadedModel]:
    """Return embedding, first blocks and final norm, as they capture and as they are read plainly.

    They are the same copy; or cut as the model is, and whole.
    """
    if model.reload is None or model.ranks == 1:
        copied = _copied_blocks(model, dtype, count)
        return copied, copied
    # A copy of a part would run with the original's weights: its forwards are closures over them.
    name, device = str(dtype).removeprefix("torch."), None if model.device.type == "cpu" else model.device
    return (
        model.reload(dtype=name, blocks=count, ranks=model.ranks),
        model.reload(dtype=name, blocks=count, device_map=device),
    )


def _copied_blocks(model: LoadedModel, dtype: torch.dtype, count: int) -> LoadedModel:
    """Return a copy of embedding, first blocks and final norm; the model itself is left as it was."""
    path, _, name = model.anatomy.blocks.rpartition(".")
    owner = model.module.get_submodule(path)
    blocks = model.blocks
    setattr(owner, name, blocks[:count])
    try:
        module = copy.deepcopy(model.module)
    finally:
        setattr(owner, name, blocks)
    # Not module.to: over several devices that is a closure over the model that was copied.
    torch.nn.Module.to(module, dtype)
    if dtype == torch.float64 and getattr(module.config, "_experts_implementation", "eager") != "eager":
        module.set_experts_implementation("eager")  # the fused kernels have no float64
    for config in (module.config, module.config.get_text_config()):
        config.num_hidden_layers = count
    return wrap(module, model.anatomy)


def _as_vectors(values: NDArray[Any]) -> NDArray[np.float64]:
    return values.reshape(-1, values.shape[-1]).astype(np.float64)


def _least_cosine(ours: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    product = (ours * reference).sum(axis=-1)
    scale = np.linalg.norm(ours, axis=-1) * np.linalg.norm(reference, axis=-1)
    used = ~(scale == 0)  # a NaN stays in, and fails
    return float((product[used] / scale[used]).min(initial=1.0))
