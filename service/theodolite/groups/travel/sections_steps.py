"""Sentences and tables about the steps through the blocks: path lengths and arcs, cosines, the mean step."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import xarray as xr

from theodolite.groups.schema import LEVEL
from theodolite.groups.travel.record import SUMMARY
from theodolite.sections.parts import MISSING, Table, listed, number, percent

_PATHS = {
    "path_ratio": "Path length divided by displacement (a straight line gives 1)",
    "arc_ratio": "Sum over blocks of the angle between input and output, divided by the angle between the first input "
    "and the last output (1 means that the path follows one great circle, never turns back, and is at most half of "
    "it)",
}
_RATIOS = {"path_ratio": "path length / displacement", "arc_ratio": "sum of angles / angle from first to last"}
_COSINES = {
    "successive_steps": ("the steps of successive blocks", "pairs"),
    "block_step_and_input": ("a block's step and its input", "blocks"),
    "attention_step_and_input": ("attention's step and its input", "blocks"),
    "mlp_step_and_input": ("the MLP's step and its input", "blocks"),
}

STEP_NOTES = (
    "steps at right angles have the measured lengths, and each is at a right angle to all earlier ones",
    "arcs at right angles have the measured lengths. For each, draw the great circle from the first point of the "
    "path to the start of the arc: the arc leaves this circle at a right angle",
    "if the measured ratio is larger than that of steps at right angles, steps partly cancel; if it is smaller, they "
    "partly add up; one long step, such as that of the last block, can reverse this comparison",
    "for a centred cosine, the mean over the prompts of the set is subtracted from each vector; dot products and "
    "squared norms are summed over prompts before the division",
    f"a centred cosine is significant if its two-sided family-wise p over all blocks is at most {LEVEL}. The null "
    "permutes the prompts of one of the two vectors. p is not corrected for the four kinds of cosine and the sets. "
    "With many prompts, small cosines are significant too",
)


def step_facts(travel: xr.Dataset, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield sentences about the paths and steps of all sets, at one position."""

    def of_sets(text_of: Callable[[xr.Dataset], str], at: xr.Dataset = travel) -> str:
        texts = {label: text_of(at.sel(set=name)) for name, label in labels.items()}
        return listed({label: text for label, text in texts.items() if text})

    for name, subject in _PATHS.items():
        if texts := of_sets(partial(_path, name, "whole")):
            before = of_sets(partial(_path, name, "before_last"))
            yield f"{subject}, mean over prompts: {texts}.{f' Without the last block: {before}.' if before else ''}"
    for words in (("add up", "cancel"), ("cancel", "add up")):
        of_both = [label for name, label in labels.items() if _comparisons(travel.sel(set=name)) == words]
        if of_both:
            yield (
                f"By their lengths, the steps of {' and '.join(of_both)} partly {words[0]}, and by their angles they "
                f"partly {words[1]}. Both are true: long steps decide the length of a path; steps that are long "
                "relative to the stream, often those of early blocks, decide the sum of angles."
            )
    for pair, (title, places) in _COSINES.items():
        if texts := of_sets(partial(_cosine, places), travel.sel(vector_pair=pair)):
            yield f"Centred cosine between {title}, mean over {places}: {texts}."
    if texts := of_sets(_common_share):
        yield (
            "Share of a block's step that all prompts of a set have in common (squared length of the mean step divided "
            f"by the mean squared length, without the bias of noise), median over blocks: {texts}."
        )


def step_tables(travel: xr.Dataset, labels: Mapping[str, str]) -> Iterator[Table]:
    """Yield tables of the paths and of the cosines of all sets, at one position; none without rows."""
    by_set = {label: travel.sel(set=name) for name, label in labels.items()}
    if rows := [
        _path_row(name, label, values) for name in _PATHS for label, values in by_set.items() if _has(values, name)
    ]:
        caption = "Paths: each ratio, and its value for steps or arcs at right angles"
        note = (
            "Mean ± standard deviation over prompts. Longest step: the block with the largest part of the sum of the "
            "steps' squared lengths."
        )
        columns = ["ratio", "set", "n", "all blocks", "at right angles", "without the last block", "at right angles"]
        yield Table(caption, [*columns, "longest step"], rows, note)
    if rows := [
        _cosine_row(title, label, at)
        for pair, (title, _) in _COSINES.items()
        for label, values in by_set.items()
        if np.isfinite((at := values.sel(vector_pair=pair))["step_cosine_centred"]).any()
    ]:
        caption = "Centred cosines over blocks or pairs of blocks"
        note = (
            "Below 0, above 0: the number of cosines that are so significantly. The tests use the first prompts of a "
            "set: n tested is their number."
        )
        columns = ["cosine between", "set", "n", "n tested", "mean", "smallest", "largest", "below 0", "above 0"]
        yield Table(caption, [*columns, "of", "mean without centring", "last without centring"], rows, note)


def _has(values: xr.Dataset, name: str) -> bool:
    """Return whether a set has a ratio; a single prompt has no spread, and is left out."""
    return bool(np.isfinite(values[name].sel(path="whole", path_summary="std")))


def _path(name: str, path: str, values: xr.Dataset) -> str:
    """Return a ratio of a set's paths beside that of steps at right angles; empty if it is not known."""
    mean, null = (float(one.sel(path=path)) for one in _means(name, values))
    if not (_has(values, name) and np.isfinite(mean)):
        return ""
    what = "arcs" if name == "arc_ratio" else "steps"
    return f"{mean:.2f} ({what} at right angles give {null:.2f})"


def path_headline(values: xr.Dataset) -> str:
    """Return the path length of one set in displacements, beside that of steps at right angles; empty if unknown."""
    mean, null = (float(one.sel(path="whole")) for one in _means("path_ratio", values))
    if not (_has(values, "path_ratio") and np.isfinite(mean)):
        return ""
    control = f" (steps at right angles: {null:.2f})" if np.isfinite(null) else ""
    return f"the path is {mean:.2f} times the displacement{control}"


def _means(name: str, values: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """Return a ratio's mean over prompts, and its value at right angles, (path,)."""
    return values[name].sel(path_summary="mean"), values[name].sel(path_summary="at_right_angles")


def _comparisons(values: xr.Dataset) -> tuple[str, ...]:
    """Return whether the steps and the arcs of a set add up or cancel; empty if one of the ratios is not known."""
    if not all(_path(name, "whole", values) for name in _PATHS):
        return ()
    ratios = (_means(name, values.sel(path="whole")) for name in _PATHS)
    return tuple("cancel" if mean > null else "add up" for mean, null in ratios)


def _path_row(name: str, label: str, values: xr.Dataset) -> list[str]:
    mean, std = (float(values[name].sel(path="whole", path_summary=one)) for one in SUMMARY)
    means, null = _means(name, values)
    others = (null.sel(path="whole"), means.sel(path="before_last"), null.sel(path="before_last"))
    longest = _longest(values) if name == "path_ratio" else MISSING
    numbers = [f"{mean:.2f} ± {std:.2f}", *(_cell(other) for other in others)]
    return [_RATIOS[name], label, str(int(values["n_samples"])), *numbers, longest]


def _longest(values: xr.Dataset) -> str:
    """Return the longest step's share in the sum of the steps' squared lengths, such as `block 29: 84 %`."""
    n = max(int(values["n_samples"]), 1)
    mean, std = (values["step_norm"].sel(sublayer="block", summary=one) for one in SUMMARY)
    squares = mean**2 + std**2 * (n - 1) / n
    if not np.isfinite(squares).all():
        return MISSING
    top = int(squares.values.argmax())
    return f"block {int(squares['layer'][top])}: {percent(squares[top] / squares.sum(), 0)}"


def _cosine(places: str, values: xr.Dataset) -> str:
    """Return a set's mean cosine over blocks, and its tests; empty if it is not known."""
    cosine, counts = values["step_cosine_centred"].dropna("layer"), _significant(values)
    if not cosine.size:
        return ""
    tested = (
        f" (significantly below 0 in {counts[0]} and above 0 in {counts[1]} of {cosine.size} {places})"
        if counts
        else ""
    )
    return f"{number(cosine.mean(), 2)}{tested}"


def _cosine_row(title: str, label: str, values: xr.Dataset) -> list[str]:
    cosine, counts = values["step_cosine_centred"].dropna("layer"), _significant(values)
    raw = values["step_cosine"].sel(layer=cosine["layer"], summary="mean")
    ends = [_cell(cosine.mean()), _cell(cosine.min()), _cell(cosine.max())]
    tested = [str(count) for count in counts] if counts else [MISSING, MISSING]
    plain = [_cell(raw.mean()), _cell(raw[-1])]
    n_tested = str(int(values["n_tested"])) if counts else MISSING
    return [title, label, str(int(values["n_samples"])), n_tested, *ends, *tested, str(cosine.size), *plain]


def _significant(values: xr.Dataset) -> tuple[int, int] | None:
    """Return how many centred cosines are significantly below and above 0; None if they are not tested."""
    cosine, p = values["step_cosine_centred"], values["step_cosine_centred_null"].sel(null="p_family")
    if not np.isfinite(p).any():
        return None
    found = cosine.where(p <= LEVEL)
    return int((found < 0).sum()), int((found > 0).sum())


def _cell(value: xr.DataArray) -> str:
    return number(value, 2) if np.isfinite(value) else MISSING


def _common_share(values: xr.Dataset) -> str:
    shares = values["step_common_share"].dropna("layer")
    if not shares.size:
        return ""
    low, high, median = (percent(share, 0) for share in (shares.min(), shares.max(), shares.median()))
    return f"{median} ({low} to {high} over {shares.size} blocks)"
