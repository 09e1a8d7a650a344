"""The analysis `heads`: QK and OV circuits of all attention heads, one task for each layer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite.digests import digest_of
from theodolite.groups import GROUPS
from theodolite.store.manifest import drop_groups, drop_outdated, finished_groups
from theodolite.store.result_reader import read_group
from theodolite.store.result_writer import check_claim, claim_layers, write_layer
from theodolite_jobs.groups.heads.layer import (
    PROJECTIONS,
    SIDES,
    Vocabulary,
    circuits_of,
    decompose_layer,
    largest_width,
    vocabulary_products,
)
from theodolite_jobs.groups.heads.random_weights import random_circuits
from theodolite_jobs.groups.heads.rotary import rotary_notes
from theodolite_jobs.groups.heads.stream import CapturedInputs, Directions
from theodolite_jobs.models.anatomy import check_circuits
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.passes.collect import Arrays
from theodolite_jobs.results.circuits import notes_on, vectors_digest
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.results.devices import available_device
from theodolite_jobs.statistics.factors import coverage_rank, effective_rank, stable_rank
from theodolite_jobs.statistics.permutations import permutation_test
from theodolite_jobs.tasks import run_tasks, shared

_LAYER_AXIS = {
    "singular_values": 2,
    "null_dimension": 1,
    "null_variance": 3,
    "copying_score": 0,
    "direction_alignment": 2,
    "vector_cosine": 2,
}
"""The axis along which the arrays of the layers are stacked: before the head axis."""

_VECTOR_BYTES = 128 * 2**20  # of finished vectors in memory for each core


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest, with the captured activations and directions that heads use."""
    heads, has_prompts = context.spec.heads, bool(context.run.record.sets)
    stream = {
        "captured": context.captured,
        "directions": digest_of(context.digest_inputs("directions", context.contrasts)) if has_prompts else None,
    }
    return {"vectors": vectors_digest(heads), "offsets": heads.offsets, **stream}


def compute(context: Context) -> Result:
    """Write each layer's vectors when its task ends, and return the other variables of the group.

    Raises:
        ModelError: a projection is missing, or a weight is not finite.
        UnsupportedModelError: the family's heads have no circuits.
        StoreError: another process computes the group with other options.
    """
    run, heads, weights = context.run, context.spec.heads, context.weights
    check_circuits(weights.anatomy, weights.config.model_type)
    # Without vectors, only singular values are requested, so copying scores are left out.
    vocabulary = vocabulary_products(weights, heads.fold_norm, available_device()) if heads.vectors else None
    with context.tasks():
        drop_outdated(run, {"heads": context.stale["heads"]})
        if "words" in finished_groups(run) and read_group(run, "words").attrs["vectors"] != vectors_digest(heads):
            drop_groups(run, ["words"])  # its tables decode other vectors
        claim_layers(run, "heads", context.stale["heads"])
        result = _all_layers(context, weights, vocabulary)
        check_claim(run, "heads", context.stale["heads"])
    return result


def _all_layers(context: Context, weights: Weights, vocabulary: Vocabulary | None) -> Result:
    run, heads, sizes, keys_of = context.run, context.spec.heads, weights.dimensions, weights.anatomy.keys_of
    stream, directions = CapturedInputs(context), Directions(context, weights)
    coordinates: Mapping[str, Sequence[Any]] = {
        "circuit": circuits_of(weights),
        "offset": heads.offsets,
        "layer": range(sizes.n_layers),
        "head": range(sizes.n_heads),
        "rank": range(largest_width(weights)),
        "vector": range(min(heads.vectors, largest_width(weights))),
        "d_model": range(sizes.d_model),
        "projection": PROJECTIONS,
        "set": stream.sets,
        "position": stream.positions,
        "contrast": directions.contrasts,
        "side": SIDES,
    }
    lengths = {dim: len(labels) for dim, labels in coordinates.items()}
    vector_bytes = 4 * 2 * lengths["circuit"] * lengths["offset"] * lengths["head"] * lengths["vector"] * sizes.d_model
    rounds = max(1, min(8, _VECTOR_BYTES // (vector_bytes + 1)))
    random, attributes = random_circuits(weights, vocabulary)
    shape, vocabulary = (lengths["set"], lengths["position"]), shared(vocabulary)
    parts: list[Arrays] = []
    checksums: dict[str, str] = {}

    def progress(first: int, stage: str, done: int, _: int) -> None:
        context.progress(stage, first + done, sizes.n_layers)

    for layers, samples in stream.by_layer(sizes.n_layers):
        arguments = []
        for layer in layers:
            known = replace(directions.around(layer), samples=samples.get(layer, {}))
            arguments.append((weights, layer, heads, known, shape, vocabulary))
        for part in run_tasks(decompose_layer, arguments, partial(progress, layers[0]), "heads", rounds):
            for name in GROUPS["heads"].by_layer:
                checksums |= write_layer(run, "heads", name, lengths, len(parts), part.pop(name))
            parts.append(part)
    arrays = {name: np.stack([part[name] for part in parts], axis) for name, axis in _LAYER_AXIS.items()}
    for layer, source in keys_of.items():  # they have the same keys, of the same stream
        of_keys = arrays["null_variance"][:, :, PROJECTIONS.index("key")]
        of_keys[:, :, layer] = of_keys[:, :, source]
    values = np.nan_to_num(arrays["singular_values"])  # a missing value adds nothing; of zeros alone, ranks are missing
    arrays |= {"coverage_99": coverage_rank(values), "effective_rank": effective_rank(values)}
    arrays |= {"stable_rank": stable_rank(values), "n_samples": stream.counts(), **random}
    arrays["direction_alignment_null"] = _tests(parts, arrays["direction_alignment"].shape)
    attributes |= {
        "options": heads.model_dump(mode="json"),
        "notes": notes_on(weights, heads.fold_norm),
        "direction_prompts": directions.n_prompts,
        "direction_position": directions.position,
    }
    if weights.anatomy.has_latents:
        attributes["rotary_notes"] = rotary_notes(weights, heads.fold_norm)
    if keys_of:
        attributes["keys_of"] = {str(layer): source for layer, source in keys_of.items()}
    return Result(arrays, coordinates, attributes, layers=checksums)


def _tests(parts: Sequence[Arrays], shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the permutation tests of all alignments, (…, null); the heads of all layers on one side are one family.

    Args:
        parts: the arrays of each layer.
        shape: (contrast, side, layer, head).
    """
    tests = np.full((*shape, len(GROUPS["heads"].labels["null"])), np.nan)
    if shape[0]:
        draws = np.stack([part["alignment_draws"] for part in parts], axis=3)  # (contrast, side, draw, layer, head)
        for contrast, side in np.ndindex(shape[:2]):
            tests[contrast, side, ..., :-1] = permutation_test(draws[contrast, side]).stacked()
            tests[contrast, side, ..., -1] = permutation_test(-draws[contrast, side]).p_family  # p_low_family
    return tests
