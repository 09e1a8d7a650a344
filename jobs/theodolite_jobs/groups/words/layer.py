"""Dask task on one layer's circuits: decode them into tables of token ids; the driver adds texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from theodolite_jobs.groups.words.formulas import (
    RankedTokens,
    Request,
    Rows,
    Standardisation,
    alignment,
    augmented,
    on_device,
    standardised_rows,
    top_tokens,
    with_bias,
)
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import input_embeddings, read_circuits
from theodolite_jobs.statistics.factors import Circuits
from theodolite_jobs.statistics.norms import Norm, normalised, projected

LAYER_SUM = -1
"""The head index in rows for the sum over all heads of a layer."""

READ_VECTORS = ("qk left", "qk right", "ov left")
"""The singular vectors on the input side of attention; `ov right` is on its output side."""

BOTH_ENDS = ("top", "bottom")

Frames = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Decoding:
    """The options of decoding circuits into tokens.

    Attributes:
        count: number of tokens in each list.
        n_tokens: number of rows of the vocabulary that the tokenizer uses.
        nouns: token ids of the nouns.
        noun_embeddings: inputs of the first block for the nouns, (noun, d_model).
        fold_norm: whether the norm before attention is folded into the circuits.
        tied: whether the unembedding is the embedding.
        standardisation: of the inputs of the first block by the norm before attention; None if no layer has this norm.
    """

    count: int
    n_tokens: int
    nouns: NDArray[np.int64]
    noun_embeddings: NDArray[np.float64]
    fold_norm: bool
    tied: bool
    standardisation: Standardisation | None


def layer_words(
    weights: Weights,
    layer: int,
    decoding: Decoding,
    vectors: Mapping[str, NDArray[np.float32]],
    device: torch.device,
) -> Frames:
    """Return one layer's rows of each table.

    `vectors` are the leading singular vectors, (head, vector, d_model), by `READ_VECTORS` and `ov right`. They are
    multiplied with the vocabulary on `device`.
    """
    circuits = read_circuits(weights, layer, fold_norm=decoding.fold_norm)
    norm, stream = circuits.input_norm, decoding.noun_embeddings
    read = stream if norm is None else normalised(stream, norm)
    biases, queries = _bias_vectors(circuits), read @ circuits.query @ circuits.rotations[0]
    read_tokens, noun_keys, bias_tokens = _decode_read(
        weights, circuits, decoding, [vectors[name] for name in READ_VECTORS], queries, list(biases.values()), device
    )
    written = Request(vectors["ov right"], BOTH_ENDS)
    bias = weights.unembedding_bias()
    values = Request(augmented(_values(weights, layer, circuits, stream, read), bias), ("top",))
    logits = on_device(with_bias(weights.unembedding, bias), device)
    value_tokens, written_tokens = top_tokens(logits, decoding.n_tokens, [values, written], decoding.count, device)
    heads = [_head_rows(layer, name, tokens, "read") for name, tokens in zip(READ_VECTORS, read_tokens, strict=True)]
    if decoding.tied:
        heads += [_head_rows(layer, "ov right", written_tokens, "embedding")]
    else:
        stored = on_device(weights.embedding, device)
        (stored_tokens,) = top_tokens(stored, decoding.n_tokens, [written], decoding.count, device)
        heads += [_head_rows(layer, "ov right", stored_tokens, "embedding")]
        heads += [_head_rows(layer, "ov right", written_tokens, "unembedding")]
    each = np.arange(len(circuits.query))
    frames = {
        "head_tokens": pd.concat(heads, ignore_index=True),
        "noun_keys": _noun_rows(layer, each, decoding.nouns, noun_keys),
        "noun_values": _noun_rows(layer, np.append(each, LAYER_SUM), decoding.nouns, value_tokens["top"]),
        "noun_alignment": _alignment_rows(layer, read, queries, circuits, decoding.nouns),
    }
    if biases:
        rows = [
            _rows_of_ends(layer, ends, {}).assign(side=side) for side, ends in zip(biases, bias_tokens, strict=True)
        ]
        frames["bias_tokens"] = pd.concat(rows, ignore_index=True).drop(columns="vector")
    return frames


def decoding_norm(weights: Weights, layer: int) -> Norm | None:
    """Return the final norm; in post-norm models, which have none, the norm after the layer's attention."""
    final = weights.final_norm()
    if final is None and weights.anatomy.post_norm:
        final = weights.norm(layer, "attention_output")
    return final


def _decode_read(
    weights: Weights,
    circuits: Circuits,
    decoding: Decoding,
    vectors: Sequence[NDArray[np.float32]],
    queries: NDArray[np.float64],
    biases: Sequence[NDArray[np.float64]],
    device: torch.device,
) -> tuple[list[dict[str, RankedTokens]], RankedTokens, list[dict[str, RankedTokens]]]:
    """Return the tokens of vectors, of the nouns' queries, and of biases, decoded against attention's input.

    One pass over the table serves all requests. Attention reads a token as n·scale + bias, with standardised rows n. So
    the product of a vector and the scale multiplies n, and the bias adds a constant to all scores of a vector. The keys
    of the tokens are additional columns of the table.
    """
    norm, d_model = circuits.input_norm, weights.dimensions.d_model
    scale = np.ones(d_model) if norm is None else norm.scale
    bias = np.zeros(d_model) if norm is None else norm.bias
    plain, to_keys, keys_bias = key_parts(weights, circuits, decoding, device)

    def rows(some: slice) -> torch.Tensor:
        table = plain(some)
        return torch.cat([table, table @ to_keys + keys_bias], dim=1)

    probes: list[NDArray[Any]] = [*vectors, *(vector[:, None] for vector in biases)]
    requests = [Request(probe * scale, BOTH_ENDS) for probe in probes]
    for kv_head in range(len(circuits.key)):
        own = queries[circuits.kv_head_of == kv_head]
        requests.append(Request(own, ("top",), d_model + kv_head * own.shape[-1]))
    tokens = top_tokens(rows, decoding.n_tokens, requests, decoding.count, device)
    shifted = [
        {end: ranked.shifted(probe @ bias) for end, ranked in ends.items()}
        for probe, ends in zip(probes, tokens, strict=False)
    ]
    keys_by_head = [ends["top"] for ends in tokens[len(probes) :]]
    ids, scores = ([getattr(ranked, name) for ranked in keys_by_head] for name in ("ids", "scores"))
    return shifted[: len(vectors)], RankedTokens(np.concatenate(ids), np.concatenate(scores)), shifted[len(vectors) :]


def key_parts(
    weights: Weights, circuits: Circuits, decoding: Decoding, device: torch.device
) -> tuple[Rows, torch.Tensor, torch.Tensor]:
    """Return the rows n of attention's input before its scale, and W and c of the keys nW + c, on a device in float32.

    W is (d_model, key-value head × d_head), and c is (key-value head × d_head). Without a norm, n is the input itself.
    """
    keys, norm = circuits.key.transpose(1, 0, 2).reshape(circuits.key.shape[1], -1), circuits.input_norm
    plain, scaled, shift = on_device(input_embeddings(weights), device), keys, np.zeros(keys.shape[1])
    if norm is not None:
        scaled, shift = norm.scale[:, None] * keys, norm.bias @ keys
        assert decoding.standardisation is not None
        plain = standardised_rows(plain, decoding.standardisation, device)
    to_keys, keys_bias = (torch.from_numpy(values.astype(np.float32)).to(device) for values in (scaled, shift))
    return plain, to_keys, keys_bias


def _bias_vectors(circuits: Circuits) -> dict[str, NDArray[np.float64]]:
    """Return W_Q b_Kᵀ for the query side and b_Q W_Kᵀ for the key side, (head, d_model), without missing biases."""
    vectors = {}
    if circuits.key_bias is not None:
        rotated = circuits.key_bias[circuits.kv_head_of] @ circuits.rotations[0].T
        vectors["query"] = np.einsum("hdk,hk->hd", circuits.query, rotated)
    if circuits.query_bias is not None:
        rotated = circuits.query_bias @ circuits.rotations[0]
        vectors["key"] = np.einsum("hdk,hk->hd", circuits.key[circuits.kv_head_of], rotated)
    return vectors


def _values(
    weights: Weights, layer: int, circuits: Circuits, stream: NDArray[np.float64], read: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return norm_f(e + Δ) with the output Δ of each head, and of all heads, for each noun, (head + 1, noun, d_model).

    A head adds ê W_V W_O + b_V W_O + b_O; the sum over heads has b_O once. If the family normalises attention's output,
    the norm divides each head's output by the norm of the layer's sum.
    """
    out = (read @ circuits.value)[circuits.kv_head_of]
    if circuits.value_bias is not None:
        out = out + circuits.value_bias[circuits.kv_head_of][:, None]
    added = out @ circuits.output.transpose(0, 2, 1)
    bias = 0.0 if circuits.output_bias is None else circuits.output_bias
    together = added.sum(axis=0) + bias
    added = np.concatenate([added + bias, together[None]])
    norm = circuits.output_norm
    if norm is not None:
        variance = (projected(together, norm) ** 2).mean(axis=-1, keepdims=True)
        added = projected(added, norm) / np.sqrt(variance + norm.epsilon) * norm.scale + norm.bias
    final, state = decoding_norm(weights, layer), stream + added * circuits.output_scale
    return state if final is None else normalised(state, final)


def _head_rows(layer: int, name: str, ends: Mapping[str, RankedTokens], against: str) -> pd.DataFrame:
    circuit, side = name.split()
    return _rows_of_ends(layer, ends, {"circuit": circuit, "side": side}).assign(against=against)


def _rows_of_ends(layer: int, ends: Mapping[str, RankedTokens], columns: Mapping[str, str]) -> pd.DataFrame:
    parts = [_rows(layer, tokens, ("head", "vector")).assign(**columns, end=end) for end, tokens in ends.items()]
    return pd.concat(parts, ignore_index=True)


def _noun_rows(layer: int, heads: NDArray[np.int64], nouns: NDArray[np.int64], tokens: RankedTokens) -> pd.DataFrame:
    frame = _rows(layer, tokens, ("head", "noun_id"))
    frame["head"], frame["noun_id"] = heads[frame["head"]].astype(np.int32), nouns[frame["noun_id"]].astype(np.int32)
    return frame


def _alignment_rows(
    layer: int,
    read: NDArray[np.float64],
    queries: NDArray[np.float64],
    circuits: Circuits,
    nouns: NDArray[np.int64],
) -> pd.DataFrame:
    parts, keys = [], read @ circuits.key
    for head, kv_head in enumerate(circuits.kv_head_of):
        result = alignment(read, queries[head], keys[kv_head])
        frame = pd.DataFrame({"layer": layer, "head": head, "noun_id": nouns, "correlation": result["correlation"]})
        frame["nearest_before_id"], frame["nearest_after_id"] = nouns[result["before"]], nouns[result["after"]]
        parts.append(frame.assign(own_rank=result["own_rank"]))
    whole = pd.concat(parts, ignore_index=True)
    return whole.astype({name: np.int32 for name in whole.columns if name != "correlation"})


def _rows(layer: int, tokens: RankedTokens, dims: tuple[str, str]) -> pd.DataFrame:
    """Return a row for each token of each list: layer, the list's two indices, the token's index, id and score."""
    columns: dict[str, Any] = {"layer": np.full(tokens.ids.size, layer, dtype=np.int32)}
    indices = np.indices(tokens.ids.shape, dtype=np.int32)
    columns |= dict(zip((*dims, "place"), (index.ravel() for index in indices), strict=True))
    columns |= {"token_id": tokens.ids.ravel().astype(np.int32), "score": tokens.scores.ravel().astype(np.float32)}
    return pd.DataFrame(columns)
