"""Patch the outputs of heads, attention, MLPs and blocks, and compare with what they write directly into the log-odds.

A patch of a block replaces the outputs of its attention and of its MLP in the same forward, and not the state before
it. So its MLP does not respond to the patch of its attention. The two changes are plain replacements, so they are the
same in blocks that run attention and MLP one after the other, and in blocks that run both in parallel.

The direct effect of a part is that of its changed output alone, added to the stream after the last block: no later part
reads it (path patching of the direct path, Wang et al. 2022; Goldowsky-Dill et al. 2023). Unlike direct logit
attribution, which fixes the divisor of the final norm, it needs no linear approximation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from theodolite.groups.effects.record import ATTENTION, BLOCK, HEAD, MLP
from theodolite.sites import Site
from theodolite_jobs.effects.intact import Intact
from theodolite_jobs.effects.next_token import NextTokenChange
from theodolite_jobs.effects.outcome import Outcome, Reading
from theodolite_jobs.effects.variants import Add, Location, Patch, Variant
from theodolite_jobs.models.loaded import LoadedModel

Run = Callable[[Sequence[Variant], Sequence[Reading]], Outcome]
Changes = Callable[[Outcome], NextTokenChange]

_SITES = {
    HEAD: (Site.HEAD_OUT,),
    ATTENTION: (Site.ATTN_OUT,),
    MLP: (Site.MLP_OUT,),
    BLOCK: (Site.ATTN_OUT, Site.MLP_OUT),
}


@dataclass(frozen=True)
class _Part:
    """A part of a layer, and where its outputs are; `head` is the index of a head."""

    name: str
    layer: int
    head: int | None

    @property
    def locations(self) -> list[Location]:
        return [Location(site, self.layer, self.head) for site in _SITES[self.name]]


def part_locations(model: LoadedModel, layers: Sequence[int]) -> list[Location]:
    """Return where the outputs of a model's parts can be read and replaced."""
    found = [location for layer in layers for part in _parts_of(model, layer) for location in part.locations]
    return list(dict.fromkeys(found))


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

    Parts that the model does not have, and direct effects without the output of attention or in a stream that is no
    sum, are NaN. A block is NaN if one of its two outputs is not known, because then only a part of what it writes
    could be replaced: in hybrid models, for example, some blocks have another mixer than attention.

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
    size = max(1, (columns - 1) // (n_heads + 3))  # layers whose parts fit into one forward
    for some in (range(len(layers))[start : start + size] for start in range(0, len(layers), size)):
        parts = [(index, part) for index in some for part in _parts_of(model, layers[index])]
        variants = [Variant({at: Patch(partners[at]) for at in part.locations}) for _, part in parts]
        attention = {layers[index]: Location(Site.ATTN_OUT, layers[index]) for index in some}
        is_sum = Site.ATTN_OUT in model.anatomy.taps and model.anatomy.branches_add
        outcome = run(variants, [Reading(at) for at in attention.values()] if is_sum else [])
        _store(found, parts, changes(outcome))
        if is_sum:
            steps = _written(intact, partners, parts, dict(zip(attention, outcome.readings, strict=True)))
            last = Location(Site.RESID_POST, len(model.blocks) - 1)
            directly = changes(run([Variant({last: Add(step)}) for step in steps], []))
            for variant, (index, part) in enumerate(parts):
                moved = directly.log_odds[:, variant] - directly.intact_log_odds
                found[f"{part.name}_direct"][_at(index, part)] = moved
    return found


def _parts_of(model: LoadedModel, layer: int) -> list[_Part]:
    """Return the parts of a layer."""
    parts = []
    for name, sites in _SITES.items():
        if all(site in model.anatomy.taps for site in sites):
            heads = range(model.dimensions.n_heads) if name == HEAD else [None]
            parts += [_Part(name, layer, head) for head in heads]
    return parts


def _written(
    intact: Intact,
    partners: Mapping[Location, torch.Tensor],
    parts: Sequence[tuple[int, _Part]],
    attention: Mapping[int, torch.Tensor],
) -> list[torch.Tensor]:
    """Return how the patch of each part changes what the part adds to the stream, (prompt, d_model)."""
    steps = []
    for variant, (_, part) in enumerate(parts):
        if part.name == HEAD:
            changed = {Location(Site.ATTN_OUT, part.layer): attention[part.layer][:, variant]}
        else:
            changed = {at: partners[at] for at in part.locations}
        differences = [after.float() - intact.states[at].float() for at, after in changed.items()]
        steps.append(torch.stack(differences).sum(dim=0))
    return steps


def _store(
    found: Mapping[str, NDArray[np.float64]], parts: Sequence[tuple[int, _Part]], change: NextTokenChange
) -> None:
    moved = change.log_odds - change.intact_log_odds[:, None]
    for variant, (index, part) in enumerate(parts):
        found[f"{part.name}_kl"][_at(index, part)] = change.kl[:, variant]
        found[f"{part.name}_log_odds"][_at(index, part)] = moved[:, variant]


def _at(index: int, part: _Part) -> tuple[slice | int, ...]:
    return (slice(None), index) if part.head is None else (slice(None), index, part.head)
