"""Sentences and figures of the section `basis`."""

import numpy as np
import pytest
import xarray as xr
from support.finished_runs import finished_run

from theodolite.figures.basis import maps_figure, steps_figure
from theodolite.groups import GROUPS
from theodolite.sections import basis

LAYERS = 4
VALUES = {
    "affine": 0.9,
    "orthogonal": 0.8,
    "identity": 0.5,
    "step": 0.7,
    "permuted": -0.0001,
}


def group(sublayers=("attention", "mlp", "block"), **changed):
    """Return a result group of one set with 40 prompts, in which only these sublayers were measured."""
    variables = {}
    for variable in GROUPS["basis"].variables:
        shape = [LAYERS if dim == "layer" else 1 for dim in variable.dims]
        variables[variable.name] = (variable.dims, np.full(shape, 0 if variable.dtype == "int64" else np.nan))
    data = xr.Dataset(variables, {"set": ["harmful"], "position": [-1], "layer": range(LAYERS)})
    data["n_samples"][:] = 40
    for sublayer in sublayers:
        for name, value in VALUES.items():
            data[f"r_squared_{name}_{sublayer}"][:] = value
            data[f"r_squared_{name}_{sublayer}_low"][:] = value - 0.04
            data[f"r_squared_{name}_{sublayer}_high"][:] = value + 0.04
        data[f"dimension_{sublayer}"][:] = 8
        data[f"leading_share_{sublayer}"][:] = 0.4
        for name, value in (("low", 0.5), ("median", 1.0), ("high", 2.0)):
            data[f"stretch_{name}_{sublayer}"][:] = value
        data[f"isometry_defect_{sublayer}"][:] = 0.12
        data[f"isometry_defect_random_{sublayer}"][:] = 0.05
    for name, values in changed.items():
        data[name][:] = values
    return data


@pytest.fixture
def section_of(monkeypatch, tmp_path):
    run = finished_run(tmp_path, {"curves": {}})

    def made(data):
        monkeypatch.setattr(basis, "read_group", lambda *_: data)
        monkeypatch.setattr(basis, "colours_of", lambda *_: {"harmful": "#d9622b"})
        (section,) = basis.sections(run)
        return section

    return made


def test_sentences_state_medians_and_their_references(section_of):
    section = section_of(group(r_squared_affine_mlp_low=[0.7, 0.86, 0.86, 0.86]))
    outputs, steps, isometry, last = section.facts
    assert outputs == (
        "Median R² of the outputs of held-out prompts over layers, harmful (n = 40): attention 0.900 for the affine "
        "map, 0.800 for the orthogonal map and 0.500 for the identity (the interval of the affine map is above that of "
        "the orthogonal map in 4 of 4 layers); MLP 0.900 for the affine map, 0.800 for the orthogonal map and 0.500 "
        "for the identity (the interval of the affine map is above that of the orthogonal map in 3 of 4 layers)."
    )
    assert "attention 0.700 (permuted steps 0.000); MLP 0.700 (permuted steps 0.000)." in steps
    quantiles = "median 5 % and 95 % quantiles of the stretch 0.50 and 2.00"
    assert f"attention 0.120 (random matrices 0.050), {quantiles}" in isometry
    assert "would not show that a layer is a change of basis of the whole space" in last
    assert section.title == "Layers as linear maps at position -1 (prompts: 40 harmful)"


def test_layers_with_one_direction_are_named(section_of):
    section = section_of(group(leading_share_mlp=[0.5, 0.995, 0.999, 0.99]))
    (narrow,) = (fact for fact in section.facts if fact.startswith("One direction"))
    assert "with at least 99 % of the variance of harmful" in narrow
    assert narrow.endswith("in 3 of 4 layers of MLP.")


def test_a_family_without_a_middle_shows_whole_blocks(section_of):
    section = section_of(group(sublayers=("block",)))
    assert "block 0.900 for the affine map" in section.facts[0]
    assert "attention" not in " ".join(section.facts)
    drawn = section.figures[0].draw()
    assert drawn.layout.yaxis.title.text == "R² of the output, block"


def test_a_set_without_maps_is_named(section_of):
    section = section_of(group(sublayers=()))
    assert section.facts == [
        "No maps were fitted for harmful (40 prompts). A map needs at least 10 prompts, and the input and output of a "
        "sublayer."
    ]
    assert section.figures == []


def test_maps_have_a_panel_for_each_sublayer_with_intervals():
    figure = maps_figure(group(), "harmful", -1, {"attention": "attention", "mlp": "MLP"})
    curves = [trace for trace in figure.data if trace.mode == "lines+markers"]
    assert [trace.name for trace in curves] == ["affine", "orthogonal", "identity"] * 2
    assert len(figure.data) == 2 * len(curves)  # each has a band
    assert [curves[0].y[0], figure.data[0].y[0]] == pytest.approx([0.9, 0.86])


def test_steps_have_panels_of_r_squared_and_stretch():
    figure = steps_figure(group(), -1, {"attention": "attention", "mlp": "MLP"}, {"harmful": "#d9622b"})
    titles = [figure.layout[axis].title.text for axis in ("yaxis", "yaxis2", "yaxis3", "yaxis4")]
    assert titles == ["R² of the step, attention", "R² of the step, MLP", "stretch, attention", "stretch, MLP"]
    curves = [trace for trace in figure.data if trace.mode == "lines+markers"]
    assert [trace.y[0] for trace in curves] == pytest.approx([0.7, 0.7, 1.0, 1.0])
