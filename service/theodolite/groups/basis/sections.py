"""How well affine and orthogonal maps predict the output of each sublayer from its input."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import xarray as xr

from theodolite.groups.basis.figures import maps_figure, steps_figure
from theodolite.groups.basis.record import QUANTILES
from theodolite.query.first_tokens import set_labels
from theodolite.sections.parts import (
    MISSING,
    Figure,
    Section,
    Table,
    colours_of,
    labelled,
    last_position,
    leading_sets,
    listed,
    number,
    percent,
    prompt_counts,
    token_notes,
)
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_BRANCHES = {"attention": "attention", "mlp": "the MLP"}
_BLOCK = {"block": "the block"}  # for families without a stream between attention and MLP
_KINDS = {"affine map": "affine", "orthogonal map": "orthogonal", "identity": "identity"}
_MAPS = ("orthogonal", "affine", "identity")  # in the order of the finding
_ONE_DIRECTION = 0.99  # share of the variance of the input
_DEFECT_ERROR = (
    0.014  # of an isometry defect: the largest in the simulations of docs/science/basis.md, with d_model 192
)

_HOW_TO_READ = (
    "R² is 1 if a map predicts held-out outputs exactly, and 0 if only their mean. The identity, the orthogonal map (a "
    "rotation or reflection with one scale) and the affine map each add a constant. The step is output minus input. "
    "The stretches are those of the affine map; their band is from the 5 % to the 95 % quantile."
)

_COUNTS = (
    "the affine map counts as better or worse than the orthogonal one if the 95 % interval of the difference of their "
    "R² excludes 0; by chance, this happens in about one of 20 layers. Layers with a constant input do not count",
    "a small isometry defect alone is weak evidence for a rotation: it is also small if the map adds little to its "
    f"input. In simulations, a computed defect differed from the true one by at most {_DEFECT_ERROR}",
    "the R² of fitted maps and the isometry defect rise with the number of prompts, so compare sets only if their n is "
    "equal",
)


def sections(run: Run) -> list[Section]:
    """Return one section: R² of maps through sublayers and their stretch, at the last position."""
    basis = read_group(run, "basis")
    position, colours = last_position(basis), colours_of(run, basis)
    all_labels = set_labels(run, position)
    labels = {name: all_labels[name] for name in colours}
    by_set = {name: basis.sel(set=name, position=position) for name in colours}
    measured = {name: sublayers for name, values in by_set.items() if (sublayers := _measured(values))}
    figures = [
        Figure(
            f"basis.maps.{name}",
            f"R² of held-out outputs for maps of the input, {labels[name]}",
            partial(maps_figure, basis, name, position, sublayers),
        )
        for name, sublayers in measured.items()
    ]
    facts = list(_facts(by_set, labels, measured))
    if measured:
        drawn, sublayers = {name: colours[name] for name in measured}, next(iter(measured.values()))
        caption = "R² of held-out steps for an affine map of the input, and stretch of this map"
        steps = labelled(partial(steps_figure, basis, position, sublayers, drawn), labels)
        figures.append(Figure("basis.steps", caption, steps))
        facts.append(
            "These maps are tested only in the directions in which these prompts differ at this position. Even R² = 1 "
            f"would not show that a layer is a change of basis of the whole space ({run.record.model.d_model} "
            "dimensions)."
        )
    title = f"Layers as linear maps at position {position} ({prompt_counts(basis, labels)})"
    notes = [*(_COUNTS if measured else ()), *token_notes(run, labels, position)]
    how_to_read, finding = (_HOW_TO_READ, _finding(by_set, labels, measured)) if measured else ("", "")
    tables = _tables(by_set, labels, measured)
    headline = _headline(by_set, measured, leading_sets(run, labels))
    return [Section(title, facts, figures, [], tables, notes, how_to_read, finding, headline)]


def _headline(by_set: Mapping[str, xr.Dataset], measured: Mapping[str, Mapping[str, str]], names: Sequence[str]) -> str:
    """Return the R² of an affine map through each sublayer beside that of the input, of the first named set."""
    name = next((name for name in names if name in measured), None)
    if name is None:
        return "No maps were fitted, so nothing can be concluded." if by_set else ""
    explained = {
        of: [_explained(by_set[name].sel(sublayer=one), kind) for kind in ("affine", "identity")]
        for one, of in measured[name].items()
    }
    known = {of: shares for of, shares in explained.items() if all(shares)}
    if not known:
        return ""
    outputs = [f"{affine} of {of}'s" for of, (affine, _) in known.items()]
    outputs[0] += " output"
    inputs = " and ".join(identity for _, identity in known.values())
    return f"For {name} prompts, affine maps explain {' and '.join(outputs)}; the input alone {inputs}."


def _explained(values: xr.Dataset, kind: str) -> str:
    """Return the median R² of a map over the layers of a sublayer as percent; empty if it is unknown."""
    median = _used(values, values["r_squared"].sel(map=kind)).median()
    return percent(median, 0) if np.isfinite(median) else ""


def _finding(
    by_set: Mapping[str, xr.Dataset], labels: Mapping[str, str], measured: Mapping[str, Mapping[str, str]]
) -> str:
    """Return the R² of the three maps through each sublayer, of the first set with maps."""
    name, sublayers = next(iter(measured.items()))
    values = by_set[name]
    texts = []
    for one, of in sublayers.items():
        at = values.sel(sublayer=one)
        orthogonal, affine, identity = (_explained(at, kind) for kind in _MAPS)
        if not affine:  # no input varies
            continue
        counted = _better(at)
        better = f" (significantly better in {counted[0]} of {counted[2]} layers, each tested alone)" if counted else ""
        texts.append(
            f"{of[0].upper()}{of[1:]}: an orthogonal map with one scale explains {orthogonal}, an affine map {affine}"
            f"{better}, the input plus a constant {identity}."
        )
    if not texts:
        return ""
    return (
        "Maps from inputs to outputs, tested on prompts that were not used to fit them, explain these shares of the "
        "variance of the outputs (an output is the stream after attention or the MLP, so it contains the input), in "
        f"the directions in which these prompts differ ({labels[name]}, n = {int(values['n_samples'])}, medians over "
        f"layers). {' '.join(texts)} A large share for the orthogonal map does not show that layers are rotations."
    )


def _measured(values: xr.Dataset) -> dict[str, str]:
    """Return the titles of the sublayers of one set that have maps: attention and MLP, or else the block."""
    affine = values["r_squared"].sel(map="affine", estimate="value")

    def with_maps(titles: Mapping[str, str]) -> dict[str, str]:
        return {one: of for one, of in titles.items() if np.isfinite(affine.sel(sublayer=one)).any()}

    return with_maps(_BRANCHES) or with_maps(_BLOCK)


def _facts(
    by_set: Mapping[str, xr.Dataset], labels: Mapping[str, str], measured: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Yield sentences about each sublayer: R² of the outputs, R² of the steps and the distance from an isometry."""
    for name, values in by_set.items():
        if name not in measured:
            yield (
                f"No maps were fitted for {labels[name]} ({int(values['n_samples'])} prompts). A map needs at least 10 "
                "prompts, and the input and output of a sublayer."
            )
    subjects: Mapping[str, Callable[[xr.Dataset], str]] = {
        "R² of the outputs of held-out prompts, for {of}, median over layers": _outputs,
        "R² of the steps of held-out prompts, for the affine map of {of}, median over layers": _steps,
        "Isometry defect of the affine map of {of}, on leading directions of its input, median over layers": _isometry,
        "Layers of {of} whose R² one direction decides, because at least 99 % of the variance of the input lies along "
        "it": _narrow,
    }
    for subject, text_of in subjects.items():
        for sublayer, of in _sublayers(measured).items():
            texts = {
                labels[name]: text_of(by_set[name].sel(sublayer=sublayer))
                for name in measured
                if sublayer in measured[name]
            }
            if known := {label: text for label, text in texts.items() if text}:
                yield f"{subject.format(of=of)}: {listed(known)}."


def _tables(
    by_set: Mapping[str, xr.Dataset], labels: Mapping[str, str], measured: Mapping[str, Mapping[str, str]]
) -> list[Table]:
    """Return tables of the medians over layers: R² of all maps, and the stretch of the affine map."""
    places = [
        ([of, labels[name], str(int(by_set[name]["n_samples"]))], by_set[name].sel(sublayer=sublayer))
        for sublayer, of in _sublayers(measured).items()
        for name in measured
        if sublayer in measured[name]
    ]
    rows = [[*place, *_r_squared_cells(values)] for place, values in places]
    stretch = [
        [*place, *_stretch_cells(values)] for place, values in places if np.isfinite(values["isometry_defect"]).any()
    ]
    columns = ["sublayer", "set", "n"]
    maps = [*_KINDS, "step, affine", "step, permuted", "affine better", "affine worse", "layers"]
    ends = ["directions", "defect", "largest", "random steps", "larger in", "layers", "5 % stretch", "95 % stretch"]
    better = "Better, worse: the number of layers in which the affine map is better or worse than the orthogonal map."
    larger = (
        "Larger in: the number of layers in which the defect exceeds that of random steps by more than "
        f"{_DEFECT_ERROR}, the largest error in simulations."
    )
    tables = [
        Table("R² of held-out prompts, medians over layers", columns + maps, rows, better),
        Table("Isometry defect and stretches of the affine map, medians over layers", columns + ends, stretch, larger),
    ]
    return [table for table in tables if table.rows]


def _sublayers(measured: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the titles of the sublayers that any set has maps of."""
    return {one: of for titles in measured.values() for one, of in titles.items()}


def _outputs(values: xr.Dataset) -> str:
    return ", ".join(f"{name} {_median(values, values['r_squared'].sel(map=kind))}" for name, kind in _KINDS.items())


def _r_squared_cells(values: xr.Dataset) -> list[str]:
    of_maps = [values["r_squared"].sel(map=kind) for kind in _KINDS.values()]
    counted = _better(values)
    counts = [str(count) for count in counted] if counted else [MISSING] * 3
    shown = [*of_maps, values["r_squared_step"], values["r_squared_permuted"]]
    return [*(_median(values, r_squared) for r_squared in shown), *counts]


def _better(values: xr.Dataset) -> tuple[int, int, int] | None:
    """Return in how many layers the affine map is better and worse than the orthogonal one, of how many.

    None if it is not known.
    """
    gain = values["r_squared_gain"]
    low, high = gain.sel(estimate="low"), gain.sel(estimate="high")
    if not np.isfinite(low).any():
        return None
    return int((low > 0).sum()), int((high < 0).sum()), int(np.isfinite(_used(values, gain)).sum())


def _steps(values: xr.Dataset) -> str:
    permuted = _median(values, values["r_squared_permuted"])
    return f"{_median(values, values['r_squared_step'])} (permuted steps give {permuted})"


def _isometry(values: xr.Dataset) -> str:
    """Return the isometry defect beside that of random steps; empty without leading directions."""
    defect, random = values["isometry_defect"], values["isometry_defect_random"]
    if not np.isfinite(defect).any():
        return ""
    larger, known = int((defect > random + _DEFECT_ERROR).sum()), int(np.isfinite(defect).sum())
    return (
        f"{number(defect.median(), 4)} (random steps of the same length give {number(random.median(), 4)}; larger by "
        f"more than the error in {larger} of {known} layers)"
    )


def _stretch_cells(values: xr.Dataset) -> list[str]:
    defect, random = values["isometry_defect"], values["isometry_defect_random"]
    numbers = [number(one, 4) for one in (defect.median(), defect.max(), random.median())]
    counts = [str(int((defect > random + _DEFECT_ERROR).sum())), str(int(np.isfinite(defect).sum()))]
    stretches = [number(values["stretch"].sel(quantile=end).median(), 2) for end in (min(QUANTILES), max(QUANTILES))]
    return [number(_dimensions(values), 0), *numbers, *counts, *stretches]


def _dimensions(values: xr.Dataset) -> float:
    """Return the median number of leading directions, over the layers that have some."""
    return float(values["dimension"].where(values["dimension"] > 0).median())


def _narrow(values: xr.Dataset) -> str:
    n_narrow = int((values["leading_share"] >= _ONE_DIRECTION).sum())
    affine = values["r_squared"].sel(map="affine", estimate="value")
    return f"{n_narrow} of {int(np.isfinite(affine).sum())}" if n_narrow else ""


def _median(values: xr.Dataset, r_squared: xr.DataArray) -> str:
    return number(_used(values, r_squared).median(), 3)


def _used(values: xr.Dataset, r_squared: xr.DataArray) -> xr.DataArray:
    """Return a sublayer's R² by layer, NaN in layers whose input does not vary."""
    return r_squared.sel(estimate="value").where(values["r_squared"].sel(map="affine", estimate="value") != 0)
