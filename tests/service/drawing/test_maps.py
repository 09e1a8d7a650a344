"""The scale of a map shows its structure, and its axes and labels say what is compared."""

import numpy as np
import pytest
import xarray as xr
from support.each import each

from theodolite.drawing.maps import layer_map, scale_limits
from theodolite.groups.heads.figures import composition_map


def of_layers(values):
    layers = range(len(values))
    return xr.DataArray(values, {"layer": layers, "layer_other": layers}, ("layer", "layer_other"))


def similar(low, high, diagonal=1.0, n=12):
    values = np.linspace(low, high, n * n).reshape(n, n)
    np.fill_diagonal(values, diagonal)
    return values


def test_the_diagonal_does_not_set_the_scale_and_its_ends_are_stated():
    (heat,) = layer_map(of_layers(similar(0.1, 0.2)), "overlap").data
    assert 0.1 <= heat.zmin < heat.zmax <= 0.2
    texts = heat.colorbar.ticktext
    assert (texts[0], texts[-1]) == ("≤0.1025", "≥0.1975")
    assert all(0.1 < float(text) < 0.2 for text in texts[1:-1])
    assert len(texts) >= 4


def test_zero_is_the_middle_of_a_scale_with_both_signs():
    (heat,) = layer_map(of_layers(similar(-0.1, 0.3)), "cosine").data
    assert heat.zmin == -heat.zmax
    assert 0.25 < heat.zmax < 0.3
    (positive,) = layer_map(of_layers(similar(0.2, 0.3)), "cosine").data
    assert positive.zmin > 0


def test_several_maps_share_one_scale():
    low, high = scale_limits(similar(0.1, 0.2), similar(0.5, 0.6))
    assert low < 0.15
    assert high > 0.55


@pytest.mark.nightly
@each("seed", range(200))
def test_the_labels_of_any_scale_are_its_ticks_to_a_twentieth_of_its_length(seed):
    rng = np.random.default_rng(seed)
    low, high = sorted(rng.normal(size=2) * 10.0 ** rng.integers(-4, 7))
    if seed % 3 == 0:
        low, high = round(low, 1), round(low, 1) + rng.choice([0.3, 0.6, 3.0, 30.0])
    (heat,) = layer_map(of_layers(similar(low, high)), "overlap", limits=(low, high)).data
    numbers = [float(text.strip("≤≥")) for text in heat.colorbar.ticktext]
    np.testing.assert_allclose(numbers, heat.colorbar.tickvals, atol=(high - low) / 20)
    assert numbers == sorted(numbers)


@each("limits", [(0.0, 0.3), (-0.15, 0.15)])
def test_scales_whose_third_is_a_power_of_ten_have_ticks(limits):
    (heat,) = layer_map(of_layers(similar(*limits)), "overlap", limits=limits).data
    assert len(heat.colorbar.tickvals) > 2


@each("values", [[[5e9, 5e9], [5e9, 5e9]], [[1.0]], [[1.0, np.nan], [np.nan, 1.0]], [[1.0, 0.5], [0.5, 1.0]]])
def test_a_map_without_different_values_beside_its_diagonal_has_a_scale(values):
    (heat,) = layer_map(of_layers(np.array(values)), "overlap").data
    assert heat.zmin < heat.zmax


def test_the_hover_label_states_both_layers_and_chance():
    values, chance = of_layers(similar(0.1, 0.2, n=3)), of_layers(np.full((3, 3), 0.05))
    (heat,) = layer_map(values, "overlap", axes=("writer W_O, layer", "reader W_Q, layer"), chance=chance).data
    assert heat.hovertemplate.startswith("writer W_O, layer %{y}, reader W_Q, layer %{x}: %{z:.3f}%{customdata}")
    assert heat.customdata[0][1] == ", chance 0.050"
    (same,) = layer_map(values, "cosine").data
    assert same.hovertemplate.startswith("layers %{y} and %{x}")


def test_compositions_are_between_a_writer_and_a_reader():
    score = xr.DataArray(
        np.random.default_rng(0).random((3, 2, 3, 2)),
        {"layer": range(3), "head": range(2), "layer_other": range(3), "head_other": range(2)},
    )
    figure = composition_map(score, "Q-composition")
    assert figure.layout.yaxis.title.text == "writer, layer"
    assert figure.layout.xaxis.title.text == "reader, layer"
