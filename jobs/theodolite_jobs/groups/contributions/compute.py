"""The analysis `contributions`: what heads, MLPs and the embedding write onto the difference of the means."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.contributions.record import PARTS
from theodolite.sites import Site, leaving_block
from theodolite.store.runs import Run
from theodolite_jobs.groups.contributions.formulas import (
    head_outputs,
    standardised_differences,
    sum_error,
    total_of_shares,
    vectors_along,
    written_along,
)
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.passes.selections import block_states, first_captured
from theodolite_jobs.results.circuits import read_circuits
from theodolite_jobs.results.context import Context, Result, missing_arrays
from theodolite_jobs.results.permuted_labels import PermutedContrast, permuted_contrast
from theodolite_jobs.statistics.held_out import difference_weights
from theodolite_jobs.statistics.norms import unit
from theodolite_jobs.statistics.permutations import permutation_test
from theodolite_jobs.statistics.ratio import ratio
from theodolite_jobs.tasks import run_tasks, shared

Floats = NDArray[np.float64]


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("contributions", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from the first stored samples of each contrast, layer by layer.

    In post-norm models the stream is no sum, and all numbers are NaN. Without all layers or the output of the last
    block, those of the last block's output are NaN. In a hybrid, the numbers of heads and MLPs are NaN in blocks
    without them, and what other mixers add is no part.

    Raises:
        ModelError: a projection of attention is missing.
        RunDamagedError: a shard differs from its commit record, or contains a number that is not finite.
    """
    weights = context.weights
    coordinates = {**context.coordinates, "head": range(weights.dimensions.n_heads)}
    arrays = missing_arrays("contributions", coordinates)
    with context.tasks():
        for at in np.ndindex(len(context.contrasts), len(coordinates["position"])):
            label, position = list(context.contrasts)[at[0]], coordinates["position"][at[1]]
            contrast = None if weights.anatomy.post_norm else permuted_contrast(context, label, position)
            if contrast is not None:
                for name, values in _of_contrast(context, weights, contrast, label).items():
                    arrays[name][at] = values
    return Result(arrays, coordinates, {"contrasts": context.contrasts})


class _Layer(NamedTuple):
    """The contributions of one layer.

    Attributes:
        heads: along the difference of the means after the last block, (draw, head); None if that is unknown, and NaN in
            a layer without heads.
        mlp: likewise, (draw,).
        local: the group's variables of this layer along the direction after its attention.
        standardised: the standardised difference along this direction, (draw, head).
        error: decomposition error; None in a layer without heads.
    """

    heads: Floats | None
    mlp: Floats | None
    local: dict[str, Floats]
    standardised: Floats
    error: float | None


def _of_contrast(context: Context, weights: Weights, contrast: PermutedContrast, label: str) -> dict[str, Any]:
    run, layers = context.run, context.run.record.layers
    final = first_captured(run, leaving_block(run.record.model.n_layers - 1, run.record.model.n_layers))
    start = block_states(run, 0)[0]
    is_whole = final is not None and start is not None and list(layers) == list(range(run.record.model.n_layers))
    differences = contrast.differences(run, *final) if is_whole and final else None
    directions = None if differences is None else unit(differences)
    arguments = [(run, weights, shared(contrast), layer, shared(directions)) for layer in layers]
    stage = f"contributions to {label}"
    found = list(run_tasks(_layer, arguments, context.progress, stage, rounds=1))
    arrays: dict[str, Any] = {
        "n_used": [len(side.samples) for side in (contrast.positive, contrast.negative)],
        "decomposition_error": np.max([layer.error for layer in found if layer.error is not None]),
        **{name: np.stack([layer.local[name] for layer in found]) for name in found[0].local},
    }
    # Both signs count: a head can write against the direction.
    standardised = np.abs(np.stack([layer.standardised for layer in found], axis=1))
    arrays["head_standardised_null"] = permutation_test(standardised).stacked()
    if differences is None or directions is None or start is None:
        return arrays
    lengths = np.linalg.norm(differences, axis=1)
    parts = {
        "head_share": np.stack([layer.heads for layer in found if layer.heads is not None], axis=1),
        "mlp_share": np.stack([layer.mlp for layer in found if layer.mlp is not None], axis=1),
        "embedding_share": vectors_along(contrast.read(run, *start), difference_weights(contrast.labels), directions),
    }
    # The share and not the contribution: if the sets differ at all, most parts write more than with permuted labels.
    shares = ratio(
        np.concatenate([part.reshape(len(lengths), -1) for part in parts.values()], axis=1), lengths[:, None]
    )
    ends = np.cumsum([part[0].size for part in parts.values()])[:-1]
    of_parts, nulls = np.split(shares, ends, axis=1), np.split(permutation_test(shares).stacked(), ends)
    for (name, part), own, null in zip(parts.items(), of_parts, nulls, strict=True):
        arrays[name] = own[0].reshape(part.shape[1:])
        arrays[f"{name}_null"] = null.reshape(*part.shape[1:], -1)
    totals = [total_of_shares(own) for own in of_parts[: len(PARTS)]]
    arrays["total"], arrays["total_null"] = (np.stack(values) for values in zip(*totals, strict=True))
    return {**arrays, "final_difference": lengths[0]}


def _layer(run: Run, weights: Weights, contrast: PermutedContrast, layer: int, directions: Floats | None) -> _Layer:
    """Return the contributions of the heads and of the MLP of one layer."""
    anatomy, n_heads = weights.anatomy, weights.dimensions.n_heads
    outputs = _captured(run, contrast, Site.HEAD_OUT, layer)  # a hybrid has layers without them
    heads = None if outputs is None else head_outputs(outputs, read_circuits(weights, layer))
    summed = None if heads is None else heads.attention()
    places = block_states(run, layer)
    start, middle, end = (None if place is None else contrast.samples(run, *place) for place in places)
    attention = _captured(run, contrast, Site.ATTN_OUT, layer)
    if attention is None and start is not None and middle is not None:
        attention = middle - start  # what another mixer adds, in a layer without heads
    after = middle if middle is not None else end
    local = {
        "head_difference": np.full(n_heads, np.nan),
        "head_standardised": np.full(n_heads, np.nan),
        "attention_difference": np.array(np.nan),
    }
    draw_weights = difference_weights(contrast.labels)
    standardised = np.full((len(contrast.labels), n_heads), np.nan)
    if after is not None and heads is not None and summed is not None:
        after_directions = unit(draw_weights @ after)
        difference, standardised = standardised_differences(heads, after_directions, contrast.labels)
        local["head_difference"], local["head_standardised"] = difference[0], standardised[0]
        whole = summed if attention is None else attention
        local["attention_difference"] = np.asarray(draw_weights[0] @ whole @ after_directions[0])
    error = None
    if summed is not None:
        error = np.nan if attention is None or after is None else sum_error(attention, summed, after)
    if directions is None or start is None or end is None:
        return _Layer(None, None, local, standardised, error)
    of_heads, of_mlp = np.full((len(directions), n_heads), np.nan), np.full(len(directions), np.nan)
    if heads is not None:
        of_heads = written_along(heads, draw_weights, directions)
    if anatomy.layers_without_mlp:  # each block is attention, another mixer or an MLP alone
        mlp = end - start if layer not in anatomy.layers_without_mlp else None
    else:
        mixer = summed if attention is None else attention
        mlp = None if mixer is None else end - start - mixer
    if mlp is not None:
        of_mlp = vectors_along(mlp, draw_weights, directions)
    return _Layer(of_heads, of_mlp, local, standardised, error)


def _captured(run: Run, contrast: PermutedContrast, site: Site, layer: int) -> Floats | None:
    place = first_captured(run, [(site, layer)])
    return None if place is None else contrast.samples(run, *place)
