"""How well affine and orthogonal maps predict the output of each sublayer from its input."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import xarray as xr

from theodolite.figures.basis import maps_figure, steps_figure
from theodolite.query.first_tokens import set_labels
from theodolite.sections.parts import Figure, Section, colours_of, labelled, last_position, prompt_counts
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_BRANCHES = {"attention": "attention", "mlp": "MLP"}
_BLOCK = {"block": "block"}  # for families without a stream between attention and MLP

_HOW_TO_READ = (
    "R² is 1 if a map predicts the outputs of held-out prompts exactly, and 0 if it predicts no better than the mean "
    "output. The identity maps an input to itself plus a constant. The orthogonal map is a rotation or reflection with "
    "one scale, plus a constant. The affine map is any linear map plus a constant. It exceeds the orthogonal map "
    "if the layer stretches directions differently. The step is output minus input. Bands of R² are 95 % intervals. "
    "Bands of the stretch are its 5 % to 95 % quantiles over leading directions of the input. R² is 0 where the input "
    "does not vary, as in block 0 at a token that all prompts share."
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
    facts = [
        fact for name, values in by_set.items() for fact in _set_facts(values, labels[name], measured.get(name, {}))
    ]
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
    return [Section(title, facts, figures, how_to_read=_HOW_TO_READ if measured else "")]


def _measured(values: xr.Dataset) -> dict[str, str]:
    """Return the titles of the sublayers of one set that have maps: attention and MLP, or else the block."""

    def with_maps(titles: Mapping[str, str]) -> dict[str, str]:
        return {one: of for one, of in titles.items() if np.isfinite(values[f"r_squared_affine_{one}"]).any()}

    return with_maps(_BRANCHES) or with_maps(_BLOCK)


def _set_facts(values: xr.Dataset, label: str, sublayers: Mapping[str, str]) -> Iterator[str]:
    """Yield sentences about one set: R² of the outputs, R² of the steps and the distance from an isometry."""
    n = int(values["n_samples"])
    if not sublayers:
        yield (
            f"No maps were fitted for {label} ({n} prompts). A map needs at least 10 prompts, and the input and output "
            "of a sublayer."
        )
        return
    parts = [_sublayer_parts(values, sublayer, of) for sublayer, of in sublayers.items()]
    outputs, steps, stretches, narrow = ([part for part in of_kind if part] for of_kind in zip(*parts, strict=True))
    yield f"Median R² of the outputs of held-out prompts over layers, {label} (n = {n}): {'; '.join(outputs)}."
    yield f"Median R² of the steps, for the affine map, {label} (n = {n}): {'; '.join(steps)}."
    if stretches:
        yield (
            f"Median isometry defect of the affine map on leading directions of its input, {label} (n = {n}): "
            f"{'; '.join(stretches)}. The defect of a scaled rotation is 0."
        )
    if narrow:
        yield (
            f"One direction of the input, with at least 99 % of the variance of {label}, decides R² of the outputs in "
            f"{' and in '.join(narrow)}."
        )


def _sublayer_parts(values: xr.Dataset, sublayer: str, of: str) -> tuple[str, str, str, str]:
    """Return the parts of the sentences about one sublayer: outputs, steps, isometry, narrow inputs; empty if none."""

    def median(statistic: str, digits: int = 3) -> str:
        number = round(float(values[f"{statistic}_{sublayer}"].median()), digits)
        return f"{number + 0.0:.{digits}f}"  # which turns -0 into 0

    n_layers = int(np.isfinite(values[f"r_squared_affine_{sublayer}"]).sum())
    above = values[f"r_squared_affine_{sublayer}_low"] > values[f"r_squared_orthogonal_{sublayer}_high"]
    outputs = (
        f"{of} {median('r_squared_affine')} for the affine map, {median('r_squared_orthogonal')} for the orthogonal "
        f"map and {median('r_squared_identity')} for the identity (the interval of the affine map is above that of "
        f"the orthogonal map in {int(above.sum())} of {n_layers} layers)"
    )
    steps = f"{of} {median('r_squared_step')} (permuted steps {median('r_squared_permuted')})"
    stretches = narrow = ""
    if np.isfinite(values[f"isometry_defect_{sublayer}"]).any():
        stretches = (
            f"{of} {median('isometry_defect')} (random matrices {median('isometry_defect_random')}), median 5 % and "
            f"95 % quantiles of the stretch {median('stretch_low', 2)} and {median('stretch_high', 2)}"
        )
    n_narrow = int((values[f"leading_share_{sublayer}"] >= 0.99).sum())
    if n_narrow:
        narrow = f"{n_narrow} of {n_layers} layers of {of}"
    return outputs, steps, stretches, narrow
