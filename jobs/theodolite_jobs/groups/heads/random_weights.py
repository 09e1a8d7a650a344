"""The part of the analysis `heads` about random weights: the numbers of circuits of Gaussian matrices."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from theodolite.groups.heads.record import CIRCUITS
from theodolite_jobs.groups.heads.formulas import copying_score_sd_of_gaussian_factors
from theodolite_jobs.groups.heads.layer import Vocabulary, circuits_of
from theodolite_jobs.models.latent import latent_sizes
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.passes.collect import Arrays
from theodolite_jobs.statistics.factors import effective_rank_of_gaussian_factors

Factors = tuple[Sequence[int], Sequence[int]]
"""The widths of the matrices whose products are the two factors of a circuit."""


class Random(NamedTuple):
    """The numbers of the circuits of random heads of one width.

    Attributes:
        ranks: mean effective rank of each circuit, in the order of CIRCUITS.
        copying_sd: standard deviation of the copying score; NaN without the vocabulary.
    """

    ranks: tuple[float, ...]
    copying_sd: float


def random_circuits(weights: Weights, vocabulary: Vocabulary | None) -> tuple[Arrays, dict[str, Any]]:
    """Return the variables of random circuits, and attributes.

    A variable is NaN if one number is not that of all heads. Then `widths` has the numbers of each width of heads. If
    circuits go through latents, `circuits` has those of each circuit, with its largest possible rank.
    """
    by_width = {width: _random(weights, width, vocabulary) for width in sorted(weights.head_widths)}
    ranks = {rank for one in by_width.values() for rank in one.ranks}
    deviations = [one.copying_sd for one in by_width.values()]
    arrays = {
        "effective_rank_random": np.array(ranks.pop() if len(ranks) == 1 else np.nan),
        "copying_score_random_sd": np.array(deviations[0] if len(deviations) == 1 else np.nan),
    }
    if len(by_width) > 1:
        return arrays, {"widths": [_of_width(weights, width, one) for width, one in by_width.items()]}
    if not weights.anatomy.has_latents:
        return arrays, {}
    ((width, only),) = by_width.items()
    rotary = _rotary_factors(weights)
    largest = (min(*left, *right) for left, right in (*_factors(weights, width), rotary))
    ranks_of = *only.ranks, effective_rank_of_gaussian_factors(weights.dimensions.d_model, *rotary)
    numbers = zip(circuits_of(weights), largest, ranks_of, strict=True)
    return arrays, {
        "circuits": {one: {"largest_rank": rank, "effective_rank_random": mean} for one, rank, mean in numbers}
    }


def _of_width(weights: Weights, width: int, random: Random) -> dict[str, Any]:
    """Return the layers with heads of one width, and the numbers of its random circuits that are known."""
    numbers = {"effective_rank_random": random.ranks[0], "copying_score_random_sd": random.copying_sd}
    known = {name: value for name, value in numbers.items() if np.isfinite(value)}
    return {"width": width, "layers": weights.head_widths[width], **known}


def _random(weights: Weights, width: int, vocabulary: Vocabulary | None) -> Random:
    d_model, factors = weights.dimensions.d_model, _factors(weights, width)
    ranks = {one: effective_rank_of_gaussian_factors(d_model, *one) for one in set(factors)}
    value, output = factors[CIRCUITS.index("ov")]
    sd = np.nan if vocabulary is None else copying_score_sd_of_gaussian_factors(vocabulary.centred, value, output)
    return Random(tuple(ranks[one] for one in factors), sd)


def _factors(weights: Weights, width: int) -> list[Factors]:
    """Return the factors of QK and of OV: queries and keys, and values and output."""
    if not weights.anatomy.has_latents:
        return [((width,), (width,))] * len(CIRCUITS)
    sizes = latent_sizes(weights.config)
    query = (sizes.plain,) if sizes.query_latent is None else (sizes.query_latent, sizes.plain)
    return [(query, (sizes.latent, sizes.plain)), ((sizes.latent, sizes.value), (sizes.value,))]


def _rotary_factors(weights: Weights) -> Factors:
    """Return the factors of the rotary part: W_DQ and W_UQ, if queries pass through a latent, and W_KR."""
    sizes = latent_sizes(weights.config)
    query = (sizes.rotary,) if sizes.query_latent is None else (sizes.query_latent, sizes.rotary)
    return query, (sizes.rotary,)
