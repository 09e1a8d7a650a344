"""Sentences on how far a run is from what others published of the same model."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import xarray as xr

from theodolite.figures.curves import ContrastView
from theodolite.query.published import (
    Deviation,
    PublishedCurve,
    SelectedDirection,
    largest_deviation,
    measured_values,
)
from theodolite.sites import depth_label

# Cosines have a scale of their own; everything else is compared as a share.
_ABSOLUTE = {"cosine_of_means"}

_SAID = {
    "cosine_of_means": "the plain cosine of means",
    "difference_norm": "the norm of the difference of means",
    "variance_mean": "the mean variance",
    "variance_max": "the largest variance",
}


def published_facts(
    curves: xr.Dataset,
    view: ContrastView,
    published: Sequence[PublishedCurve],
    directions: Sequence[SelectedDirection],
) -> Iterator[str]:
    """Yield a sentence for each source: each statistic's largest deviation, where it is, and the source's prompts.

    Args:
        curves: the result group `curves`.
        view: the contrast and the position.
        published: what was published of them.
        directions: which directions others chose there.
    """
    for (source, note, n_per_set), of_source in groupby(published, lambda one: (one.source, one.note, one.n_per_set)):
        deviations = [clause for one in of_source if (clause := _deviation(curves, view, one))]
        if deviations:
            prompts = "prompts a set not stated" if n_per_set is None else f"{n_per_set} prompts a set"
            yield f"Farthest from what is published ({source}; {prompts}; {note}): {'; '.join(deviations)}."
    for direction in directions:
        yield f"{direction.source} takes its direction of refusal at this position from {direction.layer}-pre."


def _deviation(curves: xr.Dataset, view: ContrastView, published: PublishedCurve) -> str | None:
    measured = measured_values(curves, published, view.contrast, view.position)
    relative = published.statistic not in _ABSOLUTE
    farthest = largest_deviation(measured, published, relative=relative)
    if farthest is None:
        return None
    of = f" of {published.prompt_set}" if published.prompt_set else ""
    return f"{_SAID[published.statistic]}{of} is {_how_far(farthest, relative)}"


def _how_far(farthest: Deviation, relative: bool) -> str:
    distance = f"{abs(farthest.share):.0%}".replace("%", " %") if relative else f"{abs(farthest.difference):.4f}"
    way = "higher" if farthest.difference > 0 else "lower"
    return (
        f"{distance} {way} at {depth_label(farthest.depth)} ({farthest.here:.4g}, published {farthest.published:.4g})"
    )
