"""Patch the outputs of heads, attention and MLPs, and compare with what they write directly into the log-odds.

The direct effect of a part is that of its changed output alone, added to the stream after the last block: no later part
reads it (path patching of the direct path, Wang et al. 2022; Goldowsky-Dill et al. 2023). Unlike direct logit
attribution, which fixes the divisor of the final norm, it needs no linear approximation.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from theodolite.groups.effects import ATTENTION, HEAD, MLP
from theodolite.sites import Site
from theodolite_jobs.effects.intact import Intact
from theodolite_jobs.effects.next_token import NextTokenChange
from theodolite_jobs.effects.outcome import Outcome, Reading
from theodolite_jobs.effects.variants import Add, Location, Patch, Variant
from theodolite_jobs.models.load import LoadedModel

Run = Callable[[Sequence[Variant], Sequence[Reading]], Outcome]
Changes = Callable[[Outcome], NextTokenChange]

_SITES = {HEAD: Site.HEAD_OUT, ATTENTION: Site.ATTN_OUT, MLP: Site.MLP_OUT}


def part_locations(model: LoadedModel, layers: Sequence[int]) -> list[Location]:
    """Return where the outputs of a model's parts can be read and replaced."""
    return [location for layer in layers for _, location in _parts_of(model, layer)]


def measure_parts(
    model: LoadedModel,
    intact: Intact,
    layers: Sequence[int],
    partners: Mapping[Location, torch.Tensor],
    run: Run,
    changes: Changes,
    columns: int,
) -> dict[str, NDArray[np.float64]]:
    """Return `PART_kl`, `PART_log_odds` and `PART_direct` of each part, (prompt, layer[, head]).

    Parts that the model does not have, heads that ranks share, and direct effects without the output of attention or in
    a stream that is no sum, are NaN.

    Args:
        model: the model.
        intact: the intact forward of the prompts, with the states at `part_locations`.
        layers: the layers.
        partners: the states of the other prompts of the pairs, at `part_locations`.
        run: runs variants.
        changes: returns what an outcome changes in the next token.
        columns: the largest number of tokens of a prompt that run at once.
    """
    n_heads = model.dimensions.n_heads
    found = {
        f"{part}_{name}": np.full((len(intact.tokens), len(layers), *([n_heads] if part == HEAD else [])), np.nan)
        for part in _SITES
        for name in ("kl", "log_odds", "direct")
    }
    size = max(1, (columns - 1) // (n_heads + 2))
    for some in (range(len(layers))[start : start + size] for start in range(0, len(layers), size)):
        keys, variants = [], []
        for index in some:
            for key, location in _parts_of(model, layers[index]):
                keys.append((key, index, location))
                variants.append(Variant({location: Patch(partners[location])}))
        attention = {layers[index]: Location(Site.ATTN_OUT, layers[index]) for index in some}
        is_sum = Site.ATTN_OUT in model.anatomy.taps and not model.anatomy.post_norm
        outcome = run(variants, [Reading(at) for at in attention.values()] if is_sum else [])
        _store(found, keys, changes(outcome))
        if is_sum:
            steps = _written(intact, partners, keys, dict(zip(attention, outcome.readings, strict=True)))
            last = Location(Site.RESID_POST, len(model.blocks) - 1)
            directly = changes(run([Variant({last: Add(step)}) for step in steps], []))
            for variant, (part, index, location) in enumerate(keys):
                moved = directly.log_odds[:, variant] - directly.intact_log_odds
                found[f"{part}_direct"][_at(index, location)] = moved
    return found


def _parts_of(model: LoadedModel, layer: int) -> list[tuple[str, Location]]:
    """Return the parts of a layer with their locations; a rank has only some of the heads, so there are none."""
    parts = []
    for part, site in _SITES.items():
        if site in model.anatomy.taps and not (part == HEAD and model.ranks > 1):
            heads = range(model.dimensions.n_heads) if part == HEAD else [None]
            parts += [(part, Location(site, layer, head)) for head in heads]
    return parts


def _written(
    intact: Intact,
    partners: Mapping[Location, torch.Tensor],
    keys: Sequence[tuple[str, int, Location]],
    attention: Mapping[int, torch.Tensor],
) -> list[torch.Tensor]:
    """Return how the patch of each part changes what the part adds to the stream, (prompt, d_model)."""
    steps = []
    for variant, (part, _, location) in enumerate(keys):
        own = Location(Site.MLP_OUT if part == MLP else Site.ATTN_OUT, location.layer)
        after = partners[own] if part == MLP else attention[location.layer][:, variant]
        steps.append(after.float() - intact.states[own].float())
    return steps


def _store(
    found: Mapping[str, NDArray[np.float64]], keys: Sequence[tuple[str, int, Location]], change: NextTokenChange
) -> None:
    moved = change.log_odds - change.intact_log_odds[:, None]
    for variant, (part, index, location) in enumerate(keys):
        found[f"{part}_kl"][_at(index, location)] = change.kl[:, variant]
        found[f"{part}_log_odds"][_at(index, location)] = moved[:, variant]


def _at(index: int, location: Location) -> tuple[slice | int, ...]:
    return (slice(None), index) if location.head is None else (slice(None), index, location.head)
