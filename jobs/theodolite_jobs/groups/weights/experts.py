"""The part of the analysis `weights` about experts: overlaps of the directions of a layer's experts."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from theodolite_jobs.groups.weights.formulas import leading_columns, overlap, pairwise_overlaps

MATRICES = ("down", "gate", "up")

DRAWS = 4
"""Number of routed experts of a layer for which random matrices are drawn, so 6 pairs of random matrices."""

Expert = int | str | None
Floats = NDArray[np.float64]


class ExpertOverlaps(NamedTuple):
    """The overlaps of one layer's experts with each other.

    Attributes:
        experts: the routed experts, then the shared one if there is one.
        rank: number of directions that are compared.
        overlaps: by matrix, the overlap of each pair of experts, (expert, expert).
        nulls: by matrix, the mean overlap of pairs of random matrices.
        left_out: by matrix, the experts without overlaps, because their matrix has too few independent columns.
    """

    experts: Sequence[str]
    rank: int
    overlaps: Mapping[str, Floats]
    nulls: Mapping[str, float]
    left_out: Mapping[str, Sequence[str]]


class ExpertBases:
    """The leading directions of one layer's experts, which are added matrix by matrix."""

    def __init__(self, layer: int, rank: int, experts: Sequence[Expert]) -> None:
        """Start without directions; `experts` are those of the layer, as `Weights.experts` states them."""
        self._layer, self._rank = layer, rank
        self._experts = [expert for expert in experts if expert is not None]
        routed = [expert for expert in self._experts if isinstance(expert, int)]
        self._drawn = {routed[len(routed) * index // DRAWS] for index in range(DRAWS)} if routed else set()
        self._bases: dict[str, list[Floats]] = {}
        self._random: dict[str, list[Floats]] = {}

    def add(self, matrix: str, expert: int | str, columns: Floats, square: Floats) -> None:
        """Add M of one expert, (d_model, …), with MMᵀ; experts come in their order.

        A random matrix is Gaussian and seeded. Each of its rows has the length of the same row of M.
        """
        basis = leading_columns(columns, square, self._rank)
        self._bases.setdefault(matrix, []).append(basis)
        if expert in self._drawn and np.isfinite(basis).all():
            rng = np.random.default_rng([self._layer, MATRICES.index(matrix), expert])
            draw = rng.standard_normal(columns.shape)
            draw *= np.sqrt(np.diag(square) / np.square(draw).sum(axis=1))[:, None]
            random = leading_columns(draw, draw @ draw.T, self._rank)
            self._random.setdefault(matrix, []).append(random)

    def overlaps(self) -> ExpertOverlaps | None:
        """Return the overlaps of all pairs of experts; None for a layer without experts.

        If an expert has fewer columns than the rank, that many directions of all experts are compared.
        """
        if not self._bases:
            return None
        rank = min(basis.shape[1] for bases in self._bases.values() for basis in bases)
        overlaps = {
            name: pairwise_overlaps(np.stack([basis[:, :rank] for basis in bases]))
            for name, bases in self._bases.items()
        }
        names = [str(expert) for expert in self._experts]
        left_out = {
            name: [expert for expert, basis in zip(names, bases, strict=True) if np.isnan(basis).any()]
            for name, bases in self._bases.items()
        }
        nulls = {}
        for name, bases in self._random.items():
            pairs = combinations([basis[:, :rank] for basis in bases], 2)
            nulls[name] = float(np.mean([overlap(*pair) for pair in pairs])) if len(bases) > 1 else np.nan
        return ExpertOverlaps(names, rank, overlaps, nulls, left_out)


def expert_coordinates(layers: Sequence[ExpertOverlaps | None]) -> dict[str, Sequence[Any]]:
    """Return the labels of the dimensions of `expert_arrays`; they are empty for a model without experts."""
    names = next((of_layer.experts for of_layer in layers if of_layer), [])
    matrices = MATRICES if names else []
    return {"mlp_matrix": matrices, "expert_or_shared": names, "expert_or_shared_other": names}


def expert_arrays(layers: Sequence[ExpertOverlaps | None]) -> dict[str, Floats]:
    """Return the overlaps of experts, (matrix, layer, expert, expert), and of random matrices, (matrix, layer).

    They are NaN for layers without experts, and for a matrix that the experts do not have.
    """
    n_experts = len(expert_coordinates(layers)["expert_or_shared"])
    overlaps = np.full((len(MATRICES), len(layers), n_experts, n_experts), np.nan)
    nulls = np.full((len(MATRICES), len(layers)), np.nan)
    for layer, of_layer in enumerate(layers):
        for name, values in of_layer.overlaps.items() if of_layer else ():
            overlaps[MATRICES.index(name), layer] = values
        for name, value in of_layer.nulls.items() if of_layer else ():
            nulls[MATRICES.index(name), layer] = value
    return {"expert_overlap": overlaps, "expert_overlap_null": nulls}


def expert_attributes(layers: Sequence[ExpertOverlaps | None]) -> dict[str, int]:
    """Return the number of directions of experts that are compared; nothing for a model without experts."""
    ranks = [of_layer.rank for of_layer in layers if of_layer]
    return {"expert_rank": min(ranks)} if ranks else {}


def expert_notes(layers: Sequence[ExpertOverlaps | None], rank: int) -> Iterator[str]:
    """Yield a note if the experts are narrower than the rank, and one on the experts without overlaps."""
    found = expert_attributes(layers).get("expert_rank", rank)
    if found < rank:
        yield f"overlaps of experts compare {found} directions, since an expert has {found} hidden units"
    for layer, of_layer in enumerate(layers):
        for matrix, experts in of_layer.left_out.items() if of_layer else ():
            if experts:
                yield (
                    f"overlaps of W_{matrix} leave out expert{'s' * (len(experts) > 1)} {', '.join(experts)} of layer "
                    f"{layer}, with fewer than {found} independent directions"
                )
