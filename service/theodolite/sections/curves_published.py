"""Sentences that compare a run with published values of the same model."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import xarray as xr

from theodolite.figures.curves import ContrastView
from theodolite.query.published import Deviation, PublishedCurve, SelectedDirection, largest_deviation, measured_values
from theodolite.sections.parts import layer_text, percent

# Differences of a cosine are absolute; those of other statistics are shares of the published value.
_ABSOLUTE = {"cosine_of_means"}

_NAMES = {
    "cosine_of_means": "plain cosine of means",
    "difference_norm": "norm of the difference of means",
    "variance_mean": "mean variance",
    "variance_max": "largest variance",
}


def published_facts(
    curves: xr.Dataset, view: ContrastView, published: Sequence[PublishedCurve], directions: Sequence[SelectedDirection]
) -> Iterator[str]:
    """Yield a sentence for each source: the largest difference of each statistic, its depth, and the source's prompts.

    Args:
        curves: the result group `curves`.
        view: the contrast and the position.
        published: the published curves of this contrast and position.
        directions: the published choices of a direction at this position.
    """
    by_source = groupby(published, lambda curve: (curve.source, curve.note, curve.n_per_set))
    for (source, note, n_per_set), curves_of_source in by_source:
        deviations = [text for curve in curves_of_source if (text := _deviation(curves, view, curve))]
        if deviations:
            prompts = "number of prompts not stated" if n_per_set is None else f"{n_per_set} prompts in each set"
            yield f"Largest differences from published values ({source}; {prompts}; {note}): {'; '.join(deviations)}."
    for direction in directions:
        layer = layer_text(2 * direction.layer)
        yield f"{direction.source} takes its direction of refusal at this position from {layer}."


def _deviation(curves: xr.Dataset, view: ContrastView, published: PublishedCurve) -> str | None:
    measured = measured_values(curves, published, view.contrast, view.position)
    relative = published.statistic not in _ABSOLUTE
    largest = largest_deviation(measured, published, relative=relative)
    if largest is None:
        return None
    of_set = f" of {published.prompt_set}" if published.prompt_set else ""
    return f"{_NAMES[published.statistic]}{of_set} {_difference(largest, relative)}"


def _difference(largest: Deviation, relative: bool) -> str:
    size = percent(abs(largest.share), 0) if relative else f"{abs(largest.difference):.4f}"
    sign = "higher" if largest.difference > 0 else "lower"
    values = f"measured: {largest.measured:.4g}, published: {largest.published:.4g}"
    return f"{size} {sign} at {layer_text(largest.depth)} ({values})"
