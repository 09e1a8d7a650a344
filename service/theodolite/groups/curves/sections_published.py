"""Sentences that compare a run with published values of the same model."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import xarray as xr

from theodolite.groups.curves.figures import ContrastView
from theodolite.query.first_tokens import set_labels
from theodolite.query.published import (
    Deviation,
    PublishedCurve,
    SelectedDirection,
    expected_values,
    has_same_prompts,
    largest_deviation,
    measured_values,
)
from theodolite.sections.parts import layer_text, percent
from theodolite.store.runs import Run

# Differences of a cosine are absolute; those of other statistics are shares of the published value.
_ABSOLUTE = {"cosine_of_means"}

_NAMES = {
    "cosine_of_means": "plain cosine of means",
    "difference_norm": "norm of the difference of means",
    "variance_mean": "mean variance",
    "variance_max": "largest variance",
}


def published_facts(
    run: Run,
    curves: xr.Dataset,
    view: ContrastView,
    published: Sequence[PublishedCurve],
    directions: Sequence[SelectedDirection],
) -> Iterator[str]:
    """Yield sentences about the differences from each source, their depths, and the prompts of the source and the run.

    Args:
        run: the run.
        curves: the results of its analysis `curves`.
        view: the contrast and the position.
        published: the published curves of this contrast and position.
        directions: the published choices of a direction at this position.
    """
    prompts, labels = run.record.spec.prompts, set_labels(run, view.position)
    by_source = groupby(published, lambda curve: (curve.source, curve.note, curve.n_per_set))
    for (source, note, n_per_set), curves_of_source in by_source:
        numbers = f"{n_per_set} prompts in each set, this run has {_own_numbers(curves, view)}"
        deviations = []
        for curve in curves_of_source:
            is_same = has_same_prompts(curve, prompts[view.positive], prompts[view.negative])
            sentence = None if is_same else _prediction(curves, view, curve)
            if sentence:
                yield f"{sentence} ({source}; {numbers}; {note})."
            elif text := _deviation(curves, view, curve, labels, is_same):
                deviations.append(text)
        if deviations:
            yield f"Largest differences from published values ({source}; {numbers}; {note}): {'; '.join(deviations)}."
    for direction in directions:
        layer = layer_text(2 * direction.layer)
        yield f"{direction.source} takes its direction of refusal at this position from {layer}."


def _own_numbers(curves: xr.Dataset, view: ContrastView) -> str:
    at = {"contrast": view.contrast, "position": view.position}
    return " and ".join(map(str, curves["n_used"].sel(at).values))


def _prediction(curves: xr.Dataset, view: ContrastView, published: PublishedCurve) -> str | None:
    """Return a sentence without its end about a published plain cosine and the one that the run predicts."""
    expected = expected_values(curves, published, view.contrast, view.position)
    if not expected:
        return None
    inside = sum(one.is_inside for one in expected)
    farthest = max(expected, key=lambda one: one.distance)
    return (
        f"{inside} of {len(expected)} published plain cosines of means lie in the 95 % interval that this run predicts "
        f"for {published.n_per_set} other prompts of the same kind in each set; the interval includes "
        f"±{published.accuracy:g} for the source's arithmetic. "
        f"The farthest from the prediction is at {layer_text(farthest.depth)}: published {farthest.published:.4g}, "
        f"predicted {farthest.value:.4f} [{farthest.low:.4f}, {farthest.high:.4f}]"
    )


def _deviation(
    curves: xr.Dataset, view: ContrastView, published: PublishedCurve, labels: Mapping[str, str], is_same: bool
) -> str | None:
    measured = measured_values(curves, published, view.contrast, view.position)
    relative = published.statistic not in _ABSOLUTE
    largest = largest_deviation(measured, published, relative=relative)
    if largest is None:
        return None
    of_set = f" of {labels[published.prompt_set]}" if published.prompt_set else ""
    if relative:
        reason = ""
    elif is_same:
        reason = f", on the source's own prompts; its arithmetic explains up to {published.accuracy:g}"
    else:
        reason = ", not corrected for the numbers of prompts, on which the plain cosine depends"
    return f"{_NAMES[published.statistic]}{of_set} {_difference(largest, relative)}{reason}"


def _difference(largest: Deviation, relative: bool) -> str:
    size = percent(abs(largest.share), 0) if relative else f"{abs(largest.difference):.4f}"
    sign = "higher" if largest.difference > 0 else "lower"
    values = f"measured: {largest.measured:.4g}, published: {largest.published:.4g}"
    return f"{size} {sign} at {layer_text(largest.depth)} ({values})"
