"""The parity certificate: what we capture against plain, unpadded, one-at-a-time Hugging Face.

Error is ‖x − y‖ / ‖y‖ for each (prompt, site, layer, position), never element-wise, which reaches 2 where the
vector's error is 1e-6.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from theodolite.capture.engine import Engine
from theodolite.capture.plan import SetPlan, plan_set
from theodolite.errors import ParityError
from theodolite.models.load import LoadedModel, wrap
from theodolite.sites import Site
from theodolite.spec import TokenIds, digest_of

FLOAT32_BOUND = 5e-5
FLOAT32_EXPECTED = 1e-5
HALF_BOUND = 4e-2
HALF_LEAST_COSINE = 0.9995
HALF_FLOAT32_BLOCKS = 4


@dataclass(frozen=True)
class Certificate:
    """How far capture is from plain Hugging Face, on probe prompts.

    Attributes:
        prompts: how many probe prompts.
        dtype: arithmetic of both sides.
        attention: our attention kernel; the reference is eager.
        device: where both ran.
        bound: the largest error that passes.
        max_error: the largest error found, over prompts, sites, layers and positions.
        max_error_by_site: the same for each site.
        least_cosine: the least cosine between ours and the reference.
        float32_blocks_max_error: for half precision, the error of the first blocks run in float32.
        token_ids_sha256: digest of the probe prompts' token ids.
        warning: set where the error passes but is larger than expected.
    """

    prompts: int
    dtype: str
    attention: str
    device: str
    bound: float
    max_error: float
    max_error_by_site: dict[str, float]
    least_cosine: float
    float32_blocks_max_error: float | None
    token_ids_sha256: str
    warning: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return the certificate as JSON-ready values."""
        return asdict(self)


def certify(
    model: LoadedModel,
    sites: Sequence[Site],
    layers: Sequence[int],
    plans: Mapping[str, SetPlan],
    probes: Mapping[str, Sequence[TokenIds]],
) -> Certificate:
    """Measure a certificate on a few prompts of each set, captured in one padded batch behind the set's shared prefix.

    Raises:
        ParityError: the error is beyond the bound, or not a number; the message says where it is largest.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    ours, reference = _both(model, sites, layers, plans, probes)
    errors = {site: _relative_errors(ours[site], reference[site]) for site in ours}
    # NumPy's extremes keep a NaN, which then fails below; Python's would drop it.
    cosine = float(np.min([_least_cosine(ours[site], reference[site]) for site in ours]))
    by_site = {str(site): float(error.max()) for site, error in errors.items()}
    is_float32 = dtype == "float32"
    bound = FLOAT32_BOUND if is_float32 else HALF_BOUND
    blocks_error = None if is_float32 else _float32_blocks_error(model, sites, layers, plans, probes)
    certificate = Certificate(
        prompts=sum(map(len, probes.values())),
        dtype=dtype,
        attention=str(model.config._attn_implementation),
        device=str(model.device),
        bound=bound,
        max_error=float(np.max(list(by_site.values()))),
        max_error_by_site=by_site,
        least_cosine=cosine,
        float32_blocks_max_error=blocks_error,
        token_ids_sha256=digest_of({name: list(chosen) for name, chosen in probes.items()}),
        warning=_warning(is_float32, max(by_site.values())),
    )
    _refuse_failure(certificate, errors)
    return certificate


def _refuse_failure(certificate: Certificate, errors: Mapping[Site, NDArray[np.float64]]) -> None:
    # Each is written so that a NaN fails too.
    passes = certificate.max_error <= certificate.bound
    if certificate.float32_blocks_max_error is not None:
        passes &= certificate.least_cosine >= HALF_LEAST_COSINE
        passes &= certificate.float32_blocks_max_error <= FLOAT32_BOUND
    if passes:
        return
    worst = max(errors, key=lambda site: float(np.nan_to_num(errors[site], nan=np.inf).max()))
    raise ParityError(
        f"captured activations differ from plain Hugging Face: error {certificate.max_error:.1e} at {worst}, "
        f"allowed {certificate.bound:.0e}; least cosine {certificate.least_cosine:.6f}; "
        f"first blocks in float32 {certificate.float32_blocks_max_error} "
        f"({certificate.dtype}, attention {certificate.attention}, {certificate.device}); the run does not start. "
        "Try model.attention: eager, and please report it"
    )


def _warning(is_float32: bool, error: float) -> str | None:
    if is_float32 and error > FLOAT32_EXPECTED:
        return f"the error {error:.1e} passes, but is larger than the {FLOAT32_EXPECTED:.0e} that rounding explains"
    return None


def _both(
    model: LoadedModel,
    sites: Sequence[Site],
    layers: Sequence[int],
    plans: Mapping[str, SetPlan],
    probes: Mapping[str, Sequence[TokenIds]],
) -> tuple[dict[Site, NDArray[np.float64]], dict[Site, NDArray[np.float64]]]:
    """Return ours and the reference at each site as (vector, d_model)."""
    engine = Engine(model, sites, layers)
    ours: dict[Site, list[NDArray[Any]]] = {site: [] for site in (*sites, Site.RESID_FINAL)}
    reference: dict[Site, list[NDArray[Any]]] = {site: [] for site in ours}
    for name, plan in plans.items():
        chosen = probes[name]
        probe_plan = _plan_of_probes(plan, chosen)
        captured = engine.capture(probe_plan, probe_plan.shards[0], chosen)
        for row, ids in enumerate(chosen):
            positions = [position for position in plan.positions if len(ids) + position >= 0]
            plain = plain_sites(model, sites, layers, ids)
            for site in ours:
                mine = captured.activations[site][row, len(plan.positions) - len(positions) :]
                ours[site].append(_as_vectors(mine))
                reference[site].append(_as_vectors(plain[site][positions]))
    join = np.concatenate
    return {site: join(ours[site]) for site in ours}, {site: join(reference[site]) for site in ours}


def _plan_of_probes(plan: SetPlan, probes: Sequence[TokenIds]) -> SetPlan:
    """Put the probes into one batch, behind the run's own shared prefix."""
    whole = plan_set(
        plan.prompt_set,
        probes,
        plan.positions,
        shard_prompts=len(probes),
        batch_tokens=len(probes) * max(map(len, probes)),
        share_prefix=False,
    )
    return SetPlan(
        plan.prompt_set, plan.positions, plan.shared_prefix, whole.shards, whole.tokens, whole.computed_tokens
    )


@torch.inference_mode()
def plain_sites(
    model: LoadedModel, sites: Sequence[Site], layers: Sequence[int], ids: TokenIds
) -> dict[Site, NDArray[np.float64]]:
    """Return a prompt's sites from an ordinary Hugging Face run: alone, unpadded, eager attention.

    Uses none of the capture's taps: `resid_pre` is what Hugging Face reports as hidden states, `resid_mid` is that
    plus what the attention module returns, `resid_post` is what the block returns.

    Returns:
        (token, layer, d_model) for each site, (token, d_model) for `resid_final`.
    """
    attention: list[torch.Tensor] = []
    block_outputs: list[torch.Tensor] = []
    handles = []
    for block in model.blocks:
        handles.append(block.get_submodule(model.anatomy.attention).register_forward_hook(_append_to(attention)))
        handles.append(block.register_forward_hook(_append_to(block_outputs)))
    try:
        with _eager_attention(model):
            outputs = model.module(
                input_ids=torch.tensor([ids], device=model.device), output_hidden_states=True, use_cache=False
            )
    finally:
        for handle in handles:
            handle.remove()
    pre = [hidden.double().cpu() for hidden in outputs.hidden_states[:-1]]
    mid = [
        (hidden.to(added.device) + added).double().cpu()
        for hidden, added in zip(outputs.hidden_states[:-1], attention, strict=True)
    ]
    post = [output.double().cpu() for output in block_outputs]
    by_site = {Site.RESID_PRE: pre, Site.RESID_MID: mid, Site.RESID_POST: post}
    stacked = {site: torch.stack([by_site[site][layer][0] for layer in layers], dim=1).numpy() for site in sites}
    return {**stacked, Site.RESID_FINAL: post[-1][0].numpy()}


def _append_to(into: list[torch.Tensor]) -> Any:
    def keep(_: Any, __: Any, output: Any) -> None:
        into.append((output[0] if isinstance(output, tuple) else output).clone())

    return keep


@contextmanager
def _eager_attention(model: LoadedModel) -> Iterator[None]:
    chosen = model.config._attn_implementation
    model.module.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.module.set_attn_implementation(chosen)


def _float32_blocks_error(
    model: LoadedModel,
    sites: Sequence[Site],
    layers: Sequence[int],
    plans: Mapping[str, SetPlan],
    probes: Mapping[str, Sequence[TokenIds]],
) -> float:
    """Return the error of the model's first blocks, copied to float32: half precision hides small mistakes."""
    head = _first_blocks_in_float32(model)
    kept = [layer for layer in layers if layer < head.dimensions.n_layers]
    ours, reference = _both(head, sites if kept else [], kept, plans, probes)
    return float(np.max([_relative_errors(ours[site], reference[site]).max() for site in ours]))


def _first_blocks_in_float32(model: LoadedModel) -> LoadedModel:
    """Return a float32 copy of embedding, first blocks and final norm; the model itself is left as it was."""
    path, _, name = model.anatomy.blocks.rpartition(".")
    owner = model.module.get_submodule(path)
    blocks = model.blocks
    setattr(owner, name, blocks[:HALF_FLOAT32_BLOCKS])
    try:
        module = copy.deepcopy(model.module).float()
    finally:
        setattr(owner, name, blocks)
    module.config.num_hidden_layers = min(HALF_FLOAT32_BLOCKS, len(blocks))
    return wrap(module, model.anatomy)


def _as_vectors(values: NDArray[Any]) -> NDArray[np.float64]:
    return values.reshape(-1, values.shape[-1]).astype(np.float64)


def _relative_errors(ours: NDArray[np.float64], reference: NDArray[np.float64]) -> NDArray[np.float64]:
    difference = np.linalg.norm(ours - reference, axis=-1)
    scale = np.linalg.norm(reference, axis=-1)
    relative: NDArray[np.float64] = difference / np.where(scale == 0, 1.0, scale)
    return relative


def _least_cosine(ours: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    product = (ours * reference).sum(axis=-1)
    scale = np.linalg.norm(ours, axis=-1) * np.linalg.norm(reference, axis=-1)
    used = ~(scale == 0)  # a NaN stays in, and fails
    return float((product[used] / scale[used]).min(initial=1.0))
