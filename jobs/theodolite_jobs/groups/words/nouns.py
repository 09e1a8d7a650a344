"""Nouns through attention heads: relatedness, subject heads and keys at rotary offsets, one task for each layer."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from theodolite.groups.schema import NULL_AND_LIMIT
from theodolite.groups.words.record import CONTROLS
from theodolite_jobs.groups.words.formulas import Request, top_tokens
from theodolite_jobs.groups.words.formulas_nouns import (
    kept_share,
    noun_permutations,
    own_first,
    random_bases,
    random_relatedness,
    rank_profiles,
    relatedness,
)
from theodolite_jobs.groups.words.layer import Decoding, Frames, key_parts
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import read_circuits
from theodolite_jobs.results.devices import available_device
from theodolite_jobs.statistics.factors import Circuits
from theodolite_jobs.statistics.norms import normalised
from theodolite_jobs.statistics.permutations import permutation_test
from theodolite_jobs.tasks import Progress, run_tasks, shared

OFFSETS = (1, 4, 16)
"""Offsets (query position minus key position) whose keys are compared with those at offset 0."""

OFFSET_NOUNS = 20
"""Number of nouns, the first ones, whose keys are compared at other offsets; each noun costs a pass per offset."""


class LayerNouns(NamedTuple):
    """One layer's statistics of nouns: in row 0 the value of each head, then its values in the draws.

    Attributes:
        relatedness: under permutations of nouns, (draw, head).
        random: the relatedness, then that of random matrices, (draw, head).
        own_first: share of nouns whose own key has the largest score, under permutations of nouns, (draw, head).
        offsets: rows of the table `noun_offsets`; None without rotary positions or without nouns.
    """

    relatedness: NDArray[np.float64]
    random: NDArray[np.float64]
    own_first: NDArray[np.float64]
    offsets: pd.DataFrame | None


def noun_results(
    weights: Weights, decoding: Decoding, progress: Progress
) -> tuple[dict[str, NDArray[np.float64]], Frames]:
    """Return arrays over heads, (layer, head, …), and the tables noun_offsets and noun_scores.

    The table noun_offsets is left out for models without rotary positions, and noun_scores if no head has a z.
    """
    sizes = weights.dimensions
    n_rows = min(len(decoding.nouns), sizes.d_model)
    bases = shared(random_bases(sizes.d_model, min(sizes.d_head, sizes.d_model), n_rows))
    given = shared(decoding)
    arguments = [(weights, layer, given, bases) for layer in range(sizes.n_layers)]
    layers = list(run_tasks(layer_nouns, arguments, progress, "nouns", rounds=1))
    arrays = {name: np.stack([getattr(layer, name)[0] for layer in layers]) for name in ("relatedness", "own_first")}
    of_controls = {"permuted": [layer.relatedness for layer in layers], "random": [layer.random for layer in layers]}
    arrays["relatedness_null"] = np.stack([_tested(of_controls[control]) for control in CONTROLS], axis=-2)
    arrays["own_first_null"] = _tested([layer.own_first for layer in layers])
    tables = {}
    if offsets := [layer.offsets for layer in layers if layer.offsets is not None]:
        tables["noun_offsets"] = pd.concat(offsets, ignore_index=True)
    z = arrays["relatedness_null"][..., CONTROLS.index("permuted"), NULL_AND_LIMIT.index("z")]
    if np.isfinite(z).any():
        layer, head = np.unravel_index(np.nanargmax(z), z.shape)
        tables["noun_scores"] = noun_scores(weights, int(layer), int(head), decoding)
    return arrays, tables


def layer_nouns(weights: Weights, layer: int, decoding: Decoding, bases: NDArray[np.float64]) -> LayerNouns:
    """Return one layer's statistics of nouns; `bases` are from `random_bases`."""
    is_rotary = weights.anatomy.positions.startswith("rotary")
    circuits = read_circuits(weights, layer, (0, *OFFSETS) if is_rotary else (0,), fold_norm=decoding.fold_norm)
    read = _read(circuits, decoding)
    before, permutations = rank_profiles(read @ read.T), noun_permutations(len(read))
    # The rows of `coordinates` are the nouns in an orthonormal basis of their span.
    coordinates = np.asarray(np.linalg.qr(read.T, mode="r")).T
    rows = coordinates @ bases
    columns: dict[str, list[NDArray[np.float64]]] = {"relatedness": [], "random": [], "own_first": []}
    for head in range(len(circuits.query)):
        keys = circuits.rotations[0] @ (read @ circuits.key[circuits.kv_head_of[head]]).T
        scores = read @ circuits.query[head] @ keys
        columns["relatedness"].append(relatedness(before, rank_profiles(scores), permutations))
        triangle = np.linalg.qr(circuits.query[head].astype(np.float64), mode="r")
        drawn = random_relatedness(before, rows, triangle @ keys)
        columns["random"].append(np.append(columns["relatedness"][-1][0], drawn))
        columns["own_first"].append(own_first(scores, permutations))
    stacked = {name: np.stack(values, axis=1) for name, values in columns.items()}
    offsets = _offset_rows(weights, layer, circuits, decoding, read) if is_rotary and len(read) else None
    return LayerNouns(**stacked, offsets=offsets)


def noun_scores(weights: Weights, layer: int, head: int, decoding: Decoding) -> pd.DataFrame:
    """Return the similarity and the score of each pair of nouns in one head, as rows of the table noun_scores."""
    circuits = read_circuits(weights, layer, fold_norm=decoding.fold_norm)
    read = _read(circuits, decoding)
    keys = circuits.rotations[0] @ (read @ circuits.key[circuits.kv_head_of[head]]).T
    query, key = (index.ravel() for index in np.indices((len(read), len(read))))
    columns = {"noun_id": decoding.nouns[query].astype(np.int32), "key_id": decoding.nouns[key].astype(np.int32)}
    values = {"similarity": (read @ read.T).ravel(), "score": (read @ circuits.query[head] @ keys).ravel()}
    return pd.DataFrame({"layer": np.int32(layer), "head": np.int32(head), **columns, **values})


def own_key_shares(keys: pd.DataFrame, spellings: NDArray[np.int64], n_heads: int) -> NDArray[np.float64]:
    """Return the share of nouns that have a spelling of themselves among their keys, for each head of a layer.

    Args:
        keys: one layer's rows of the table noun_keys.
        spellings: from `spellings_of`.
        n_heads: number of heads.
    """
    own = spellings[keys["token_id"]] == spellings[keys["noun_id"]]
    by_noun = keys.assign(own=own).groupby(["head", "noun_id"])["own"].any()
    return np.asarray(by_noun.groupby("head").mean().reindex(range(n_heads)), dtype=np.float64)


def spellings_of(texts: Iterable[str]) -> NDArray[np.int64]:
    """Return a number for each token; tokens that differ only in case and surrounding spaces have the same number."""
    return np.asarray(np.unique([text.strip().casefold() for text in texts], return_inverse=True)[1])


def own_key_chance(nouns: NDArray[np.int64], spellings: NDArray[np.int64], n_keys: int) -> float:
    """Return the mean share of nouns with a spelling of themselves among random keys; NaN without nouns."""
    variants = np.bincount(spellings)[spellings[nouns]]
    return float(np.mean(1 - (1 - n_keys / len(spellings)) ** variants)) if len(nouns) else float("nan")


def _tested(layers: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the tests of a statistic, (layer, head, null), from its values in the draws, (draw, head), of each layer.

    The family of the family-wise p is all heads of all layers.
    """
    return permutation_test(np.stack(layers, axis=1)).stacked()


def _read(circuits: Circuits, decoding: Decoding) -> NDArray[np.float64]:
    """Return the nouns as attention reads them, (noun, d_model)."""
    norm, stream = circuits.input_norm, decoding.noun_embeddings
    return stream if norm is None else normalised(stream, norm)


def _offset_rows(
    weights: Weights, layer: int, circuits: Circuits, decoding: Decoding, read: NDArray[np.float64]
) -> pd.DataFrame:
    """Return the share of each head's keys at offset 0 that it has at other offsets, as a mean over the first nouns."""
    (n_heads, _, width), some = circuits.query.shape, read[:OFFSET_NOUNS]
    requests = [
        Request(some @ circuits.query[head] @ rotation, ("top",), int(kv_head) * width)
        for rotation in circuits.rotations.values()
        for head, kv_head in enumerate(circuits.kv_head_of)
    ]
    device = available_device()
    plain, to_keys, keys_bias = key_parts(weights, circuits, decoding, device)

    def keys(some: slice) -> torch.Tensor:
        return plain(some) @ to_keys + keys_bias

    found = top_tokens(keys, decoding.n_tokens, requests, decoding.count, device)
    ids = {
        offset: np.stack([ends["top"].ids for ends in found[start : start + n_heads]])
        for start, offset in zip(range(0, len(found), n_heads), circuits.rotations, strict=True)
    }
    columns = {"layer": np.int32(layer), "head": np.arange(n_heads, dtype=np.int32)}
    frames = [
        pd.DataFrame({**columns, "offset": np.int32(offset), "share_kept": kept_share(ids[0], at).mean(axis=1)})
        for offset, at in ids.items()
        if offset
    ]
    return pd.concat(frames, ignore_index=True).assign(n=np.int32(len(some)))
