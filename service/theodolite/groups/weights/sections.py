"""Directions of the residual stream that weight matrices of different layers, or of different experts, share."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import xarray as xr

from theodolite.drawing.maps import scale_limits
from theodolite.groups.weights.figures import overlap_map
from theodolite.groups.weights.record import FORMS
from theodolite.groups.weights.sections_experts import expert_facts, expert_figures
from theodolite.sections.parts import Figure, Section, listed, number, percent, texts_of
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_NAMES = {"o": "W_O", "down": "W_down", "q": "W_Q", "k": "W_K", "v": "W_V", "gate": "W_gate", "up": "W_up"}
_WRITTEN = {
    "o": "overlap of the W_O of two layers",
    "down": "overlap of the W_down of two layers",
}
_HOW_TO_READ = (
    "An overlap is 1 if the leading directions of two matrices span the same subspace, and about r/d_model for r "
    "random ones. Hover labels state that of random matrices with the same row lengths, which shows what long rows "
    "explain. “Norms folded” multiplies matrices by the scales γ of their norms."
)
_FORMS = {"stored": "as stored", "folded": "with norms folded"}
_PAIRS = (("down", "q"), ("down", "up"))  # the writers and readers that every run shows


def sections(run: Run) -> list[Section]:
    """Return one section: overlap between layers of the directions that their matrices write and read."""
    weights = read_group(run, "weights")
    rank = int(weights.attrs["rank"])
    title = f"Weights: overlap of the {rank} leading directions of each matrix"
    notes = texts_of(weights.attrs.get("notes", []))
    return [
        Section(
            title,
            [*_facts(weights), *expert_facts(weights)],
            list(expert_figures(weights)),
            maps=list(_maps(weights)),
            notes=notes,
            how_to_read=_HOW_TO_READ,
            headline=_headline(weights),
        )
    ]


def _maps(weights: xr.Dataset) -> Iterator[Figure]:
    """Yield a map of each overlap of the stored matrices, and of the folded ones where they differ."""
    for name, caption in _WRITTEN.items():
        written = weights["writing_overlap"].sel(writing_matrix=name)
        axes = (f"writer {_NAMES[name]}, layer",) * 2
        yield from _pair_of_maps(f"written.{name}", caption, axes, scale_limits(*written.values[0]), written)
    pairs = list(dict.fromkeys([*_PAIRS, *_leading_pairs(weights)]))
    between = weights["writer_reader_overlap"]
    limits = scale_limits(*(values for pair in pairs for values in between.sel(_labels(*pair)).values[0]))
    for writer, reader in pairs:
        name = f"read.{reader}" if writer == "down" else f"read.{writer}.{reader}"
        caption = f"overlap of {_NAMES[writer]} with {_NAMES[reader]} of later layers"
        axes = (f"writer {_NAMES[writer]}, layer", f"reader {_NAMES[reader]}, layer")
        yield from _pair_of_maps(name, caption, axes, limits, between.sel(_labels(writer, reader)))


def _labels(writer: str, reader: str) -> dict[str, str]:
    return {"writing_matrix": writer, "reading_matrix": reader}


def _pair_of_maps(
    name: str,
    caption: str,
    axes: tuple[str, str],
    limits: tuple[float, float],
    overlaps: xr.DataArray,
) -> Iterator[Figure]:
    """Yield the maps of an overlap beside that of random matrices, (matrices, form, layer, layer_other)."""
    for form in _different_forms(overlaps):
        suffix, text = (".folded", f"{caption}, norms folded") if form == "folded" else ("", caption)
        own, null = overlaps.sel(form=form)
        drawn = partial(overlap_map, own, text, axes, limits, null)
        yield Figure(f"weights.{name}{suffix}", text, drawn)


def _different_forms(overlaps: xr.DataArray) -> list[str]:
    """Return the forms of an overlap, (matrices, form, …): without `folded` if norms do not change it."""
    stored, folded = (overlaps.sel(matrices="model", form=form) for form in FORMS)
    return ["stored"] if np.array_equal(stored, folded, equal_nan=True) else list(FORMS)


def _facts(weights: xr.Dataset) -> Iterator[str]:
    random, spread = weights["random_overlap"].values.tolist()
    for name in _WRITTEN:
        written = weights["writing_overlap"].sel(writing_matrix=name)
        for form in _different_forms(written):
            means, nulls = (_near_and_far(values) for values in written.sel(form=form))
            folded = " (norms folded)" if form == "folded" else ""
            if np.isfinite(means[1]):
                near = f"{percent(means[0], 1)} between neighbouring layers, " if np.isfinite(means[0]) else ""
                yield (
                    f"Mean overlap of the directions that {_NAMES[name]}{folded} writes: {near}"
                    f"{percent(means[1], 1)} between other layers ({_null(nulls)}random subspaces give "
                    f"{percent(random, 1)}, ± {100 * spread:.1f} % for a single pair of layers)."
                )
    yield from _reading_facts(weights, random)


def _headline(weights: xr.Dataset) -> str:
    """Return the overlap of what neighbouring layers write, beside that of random matrices; empty if it is unknown."""
    texts = []
    for name in _WRITTEN:
        written = weights["writing_overlap"].sel(writing_matrix=name, form="stored")
        (near, far), (null, _) = (_near_and_far(values) for values in written)
        if np.isfinite(near + far):
            random = f" (random matrices {percent(null, 1)})" if np.isfinite(null) else ""
            texts.append(f"{_NAMES[name]} {percent(near, 1)}{random}")
    return f"Overlap of what neighbouring layers write: {', '.join(texts)}; not tested." if texts else ""


def _near_and_far(overlaps: xr.DataArray) -> tuple[float, float]:
    """Return the mean over neighbouring layers and over other pairs of layers that have both matrices, NaN for none."""
    matrix = overlaps.values
    near, far = (some[np.isfinite(some)] for some in (np.diag(matrix, 1), matrix[np.triu_indices(len(matrix), 2)]))
    return float(near.mean()) if near.size else np.nan, float(far.mean()) if far.size else np.nan


def _null(values: Sequence[float]) -> str:
    """Return what random matrices with the same row lengths give, without missing values."""
    texts = [percent(value, 1) for value in values if np.isfinite(value)]
    return f"random matrices with the same row lengths give {' and '.join(texts)}, "


def _reading_facts(weights: xr.Dataset, random: float) -> Iterator[str]:
    """Yield a sentence about each pair of a writer and a reader that overlaps the most, as stored or folded.

    An overlap counts if it is larger than that of random matrices with the same row lengths.
    """
    between, nulls = weights["writer_reader_overlap"]
    stored, folded = (between.sel(form=form) for form in FORMS)
    n_pairs = int(np.isfinite(stored.max(["layer", "layer_other"])).sum())
    above = _above_chance(weights)
    leading = {text: _most_shared(above.sel(form=form)) for form, text in _FORMS.items()}
    for pair in _leading_pairs(weights):
        forms = " and ".join(form for form, largest in leading.items() if largest == [pair])
        forms = f"both {forms}" if " and " in forms else forms
        of_pair = {"writing_matrix": pair[0], "reading_matrix": pair[1]}
        sentence = (
            f"Of all {n_pairs} combinations of a writing matrix with a reading matrix of later layers{_own(stored)}, "
            f"{_NAMES[pair[0]]} with {_NAMES[pair[1]]} has the largest mean overlap of those above chance, {forms}. "
            f"Over all pairs of layers it is {percent(stored.sel(of_pair).mean(), 1)} as stored and "
            f"{percent(folded.sel(of_pair).mean(), 1)} with norms folded"
        )
        of_null = _null([float(null.mean()) for null in nulls.sel(of_pair)])
        yield f"{sentence} ({of_null}random subspaces give {percent(random, 1)})."
    texts = {}
    for writer in stored["writing_matrix"].values.tolist():
        own, null = (_means(values.sel(writing_matrix=writer)) for values in (between, nulls))
        if np.isfinite(own.sel(form="folded")).any():
            texts[_NAMES[writer]] = " and ".join(
                f"{_range(own.sel(form=form))} ({_range(null.sel(form=form))}) {text}" for form, text in _FORMS.items()
            )
    if texts:
        yield (
            "Mean overlap with each of the reading matrices (in brackets: random matrices with the same row lengths; "
            f"random subspaces give {percent(random, 1)}): {listed(texts)}.{_larger(between, nulls)}"
        )


def _own(between: xr.DataArray) -> str:
    """Return a remark if a writer is also compared with readers of its own block."""
    return " (W_O also with the MLP of its own block)" if np.isfinite(np.einsum("...ii->...i", between)).any() else ""


def _range(means: xr.DataArray) -> str:
    """Return the smallest and the largest of some means."""
    return f"{percent(means.min(), 1)} to {percent(means.max(), 1)}"


def _larger(between: xr.DataArray, nulls: xr.DataArray) -> str:
    """Return in how many combinations the mean overlap is larger than that of the random matrices."""
    excesses = _means(between) - _means(nulls)
    largest = (_largest_excess(excesses.sel(form=form), text) for form, text in _FORMS.items())
    counts = [f"{int((excess > 0).sum())} of {int(np.isfinite(excess).sum())}" for excess in excesses]
    return (
        f" The mean overlap is larger than with random matrices of the same row lengths in {counts[0]} combinations as "
        f"stored, and in {counts[1]} with norms folded (not tested: there is one random draw for each matrix, and "
        "several combinations share a matrix)."
        f"{''.join(largest)}"
    )


def _largest_excess(excess: xr.DataArray, form: str) -> str:
    """Return the writer and the reader with the largest excess, with a space before them; empty without an excess."""
    if not (excess > 0).any():
        return ""
    (writer, reader), *_ = _most_shared(excess)
    largest = 100 * float(excess.sel(writing_matrix=writer, reading_matrix=reader))
    return (
        f" The largest excess {form} is that of {_NAMES[writer]} with {_NAMES[reader]}: {number(largest, 1)} "
        "percentage points."
    )


def _leading_pairs(weights: xr.Dataset) -> list[tuple[str, str]]:
    """Return the pairs with the largest mean overlap above chance, as stored and with norms folded, each pair once."""
    pairs = (_most_shared(means) for means in _above_chance(weights))
    return list(dict.fromkeys(pair for some in pairs for pair in some))


def _above_chance(weights: xr.Dataset) -> xr.DataArray:
    """Return the mean overlaps of writers with readers; NaN where random matrices or subspaces have as large a one."""
    overlaps = _means(weights["writer_reader_overlap"])
    means, null = overlaps.sel(matrices="model", drop=True), overlaps.sel(matrices="random", drop=True)
    return means.where(means > null.clip(min=float(weights["random_overlap"].sel(null="mean"))))


def _means(between: xr.DataArray) -> xr.DataArray:
    return between.mean(["layer", "layer_other"])


def _most_shared(means: xr.DataArray) -> list[tuple[str, str]]:
    """Return the writer and the reader with the largest of some means; an empty list if there are none."""
    if not np.isfinite(means).any():
        return []
    pairs = means.stack(pair=("writing_matrix", "reading_matrix"))
    writer, reader = pairs["pair"].values[int(np.nanargmax(pairs.values))]
    return [(str(writer), str(reader))]
