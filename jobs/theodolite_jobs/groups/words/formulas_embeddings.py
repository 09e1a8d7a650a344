"""Lengths of the embeddings of a vocabulary, and their distances to a norm's sphere. Pure, averages in float64."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from theodolite_jobs.groups.words.formulas import BLOCK_TOKENS, Rows
from theodolite_jobs.statistics.norms import Norm, standardised, unit


def embedding_sphere(rows: Rows, n_tokens: int, norm: Norm) -> list[dict[str, float | str | int]]:
    """Return distances between embeddings and their projections on the norm's sphere: one row for each setting.

    The settings are the embeddings as stored, centred, scaled, and both. Centring subtracts the mean over the
    vocabulary; scaling multiplies by √d_model over the mean length. The projection is the norm without scale and bias.
    The distances are L2 and 1 − cosine, as mean and standard deviation (n−1) over the vocabulary; rows of zeros are
    left out. Source: arXiv 2309.07315, §3.1.
    """
    blocks = [slice(start, min(start + BLOCK_TOKENS, n_tokens)) for start in range(0, n_tokens, BLOCK_TOKENS)]
    total, length = np.zeros(len(norm.scale)), 0.0
    for block in blocks:
        exact = rows(block).double().numpy()
        total += exact.sum(axis=0)
        length += float(np.linalg.norm(exact, axis=1).sum())
    centre, factor = total / n_tokens, np.sqrt(len(norm.scale)) * n_tokens / length
    settings: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
        "original": lambda e: e,
        "centred": lambda e: e - centre,
        "scaled": lambda e: e * factor,
        "centred and scaled": lambda e: (e - centre) * factor,
    }
    distances: dict[str, list[NDArray[np.float64]]] = {name: [] for name in settings}
    for block in blocks:
        exact = rows(block).double().numpy()
        sphere = standardised(exact, norm)
        for name, change in settings.items():
            changed = change(exact)
            # For unit vectors, |u − v|²/2 equals 1 − cosine and is never negative.
            cosine = ((unit(changed) - unit(sphere)) ** 2).sum(axis=1) / 2
            distances[name].append(np.stack([np.linalg.norm(changed - sphere, axis=1), cosine]))
    table: list[dict[str, float | str | int]] = []
    for name, parts in distances.items():
        whole = np.concatenate(parts, axis=1)
        usable = np.isfinite(whole).all(axis=0)  # a row of zeros has no direction
        l2, cosine = whole[:, usable]
        row: dict[str, float | str | int] = {"setting": name, "n": int(usable.sum())}
        row |= {"l2_mean": float(l2.mean()), "l2_std": float(l2.std(ddof=1))}
        row |= {"cosine_distance_mean": float(cosine.mean()), "cosine_distance_std": float(cosine.std(ddof=1))}
        table.append(row)
    return table


def embedding_lengths(rows: Rows, n_tokens: int, norm: Norm) -> dict[str, NDArray[np.float64]]:
    """Return ‖e‖ of each token, ‖γ⊙e‖ if the norm has a scale γ, and both plus β·e if it has a bias β, by measure."""
    parts: dict[str, list[NDArray[np.float64]]] = {}
    for start in range(0, n_tokens, BLOCK_TOKENS):
        exact = rows(slice(start, min(start + BLOCK_TOKENS, n_tokens))).double().numpy()
        measures = {"norm": np.linalg.norm(exact, axis=1)}
        if (norm.scale != 1).any():
            measures["scaled norm"] = np.linalg.norm(exact * norm.scale, axis=1)
        if norm.bias.any():
            toward = exact @ norm.bias
            measures |= {f"{name} + bias": lengths + toward for name, lengths in measures.items()}
        for name, values in measures.items():
            parts.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in parts.items()}
