"""The rotary part of scores in multi-head latent attention: its effective ranks, beside those of random factors."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import xarray as xr

from theodolite.drawing.head_map import head_map
from theodolite.groups.heads.figures_rotary import rotary_figure
from theodolite.groups.heads.record import ROTARY
from theodolite.query.heads import head_name
from theodolite.sections.parts import Figure, Section, listed, texts_of

_LISTED_OFFSETS = 8  # of more, a sentence states the range

_HOW_TO_READ = (
    "In multi-head latent attention, a score is the sum of QK, without positions, and the rotary part, which depends "
    "on the offset between query and key. The effective rank is n if a part has n equal singular values and no others. "
    "Random matrices have the same one at all offsets. Bands are ranges over heads or offsets."
)

_NOTES = (
    "singular values of QK and of the rotary part cannot be compared in size: the model divides the keys of QK by the "
    "root mean square of each token's latent, and the keys of the rotary part by nothing. So this section does not say "
    "which of the two terms of a score is larger",
    "all heads of a layer share the keys of the rotary part, so their numbers depend on each other",
)


_ZERO = "The rotary part of all heads is zero."


def rotary_sections(heads: xr.Dataset) -> list[Section]:
    """Return the section on the rotary part; none if the heads have no such part."""
    if ROTARY not in heads["circuit"]:
        return []
    rotary = heads.sel(circuit=ROTARY).dropna("rank", how="all", subset=["singular_values"])
    caption = "Rotary part at offset 0: effective rank"
    at_0 = rotary["effective_rank"].sel(offset=0)
    return [
        Section(
            f"Heads: rotary part of the scores, {rotary.sizes['rank']} entries of each query and key",
            list(_facts(rotary)),
            [
                Figure(
                    "heads.rotary.effective_rank",
                    "Effective rank of the rotary part by layer",
                    partial(rotary_figure, rotary),
                )
            ],
            maps=[Figure("heads.rotary.map", caption, partial(head_map, at_0, caption))],
            notes=[*texts_of(rotary.attrs["rotary_notes"]), *_NOTES],
            how_to_read=_HOW_TO_READ,
            headline=_headline(rotary),
        )
    ]


def _facts(rotary: xr.Dataset) -> Iterator[str]:
    """Yield the effective ranks at offset 0, the number of heads below the mean of random factors, other offsets."""
    ranks, random = rotary["effective_rank"], _random_rank(rotary)
    at_0 = ranks.sel(offset=0).transpose("layer", "head")
    n = int(np.isfinite(at_0).sum())
    if not n:
        yield _ZERO
        return
    ends = {"smallest": int(np.nanargmin(at_0.values)), "largest": int(np.nanargmax(at_0.values))}
    texts = [f"{name} {at_0.values.flat[index]:.1f}, of {_head_at(at_0, index)}" for name, index in ends.items()]
    yield (
        f"Median effective rank of the rotary part at offset 0, of at most {rotary.sizes['rank']}: "
        f"{float(at_0.median()):.1f} over n = {n} heads ({'; '.join(texts)}). Random Gaussian matrices of the same "
        f"shapes have {random:.1f} on average, at all offsets; {int((at_0 < random).sum())} of {n} heads have less."
    )
    medians = ranks.drop_sel(offset=0).median(("layer", "head"))
    labels, values = medians["offset"].values.tolist(), medians.values.tolist()
    if len(labels) > _LISTED_OFFSETS:
        yield (
            f"Median effective rank at the {len(labels)} other offsets, {labels[0]} to {labels[-1]}: "
            f"{min(values):.1f} to {max(values):.1f}."
        )
    elif labels:
        texts_of_offsets = {f"offset {one}:": f"{value:.1f}" for one, value in zip(labels, values, strict=True)}
        yield f"Median effective rank at the other offsets: {listed(texts_of_offsets)}."


def _random_rank(rotary: xr.Dataset) -> float:
    """Return the mean effective rank of random matrices of the same shapes."""
    return float(rotary.attrs["circuits"][ROTARY]["effective_rank_random"])


def _headline(rotary: xr.Dataset) -> str:
    """Return the median effective rank at offset 0 beside that of random matrices, and how many heads have less."""
    at_0, random = rotary["effective_rank"].sel(offset=0), _random_rank(rotary)
    n = int(np.isfinite(at_0).sum())
    if not n:
        return _ZERO
    return (
        f"Median effective rank of the rotary part, of at most {rotary.sizes['rank']}: {float(at_0.median()):.1f}; "
        f"random matrices have {random:.1f}, and {int((at_0 < random).sum())} of {n} heads have less."
    )


def _head_at(values: xr.DataArray, index: int) -> str:
    """Return the name of the head at an index of the flat array, (layer, head)."""
    layer, head = np.unravel_index(index, values.shape)
    return head_name(int(values["layer"][layer]), int(values["head"][head]))
