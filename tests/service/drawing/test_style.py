"""What all figures share: scales by powers of ten, and lines that coincide."""

import numpy as np
import xarray as xr
from support.each import each

from theodolite.drawing.head_map import head_map
from theodolite.drawing.maps import layer_map
from theodolite.drawing.panels import Line, Panel, panels_figure
from theodolite.drawing.style import logarithmic_axis


@each(
    "values, texts",
    [
        ([1, 250], ["1", "10", "100", "1000"]),
        ([2e-4, 3], ["10<sup>-4</sup>", "10<sup>-3</sup>", "10<sup>-2</sup>", "10<sup>-1</sup>"]),
        ([3, 2e4], ["10<sup>0</sup>", "10<sup>1</sup>", "10<sup>2</sup>", "10<sup>3</sup>", "10<sup>4</sup>"]),
        ([2, 9, np.nan, 0], ["2", "5", "10"]),
    ],
)
def test_ticks_of_a_logarithmic_axis_are_all_written_alike(values, texts):
    axis = logarithmic_axis(values)
    assert axis["ticktext"][: len(texts)] == texts
    assert len(axis["tickvals"]) == len(axis["ticktext"])


def test_an_axis_without_a_positive_number_is_still_one():
    assert logarithmic_axis([np.nan, 0])["type"] == "log"


def test_the_first_colour_is_broad_behind_the_others():
    lines = [Line(name, [0, 1], [1, 2], colour) for name, colour in (("a", "#d9622b"), ("b", "#3b82c4"))]
    first, second = panels_figure([Panel("same", lines)], x_title="x", ticks={}).data
    assert first.line.width > 2 * second.line.width
    assert first.zorder < second.zorder


def test_maps_side_by_side_are_of_one_width_whatever_their_scales_say():
    layers = np.arange(3)
    values = xr.DataArray(np.eye(3), {"layer": layers, "layer_other": layers}, ["layer", "layer_other"])
    heads = xr.DataArray(np.full((3, 2), 1234.5), {"layer": layers, "head": [0, 1]}, ["layer", "head"])
    margins = [figure.layout.margin for figure in (layer_map(values, "one"), head_map(heads, "other"))]
    assert margins[0] == margins[1]
    assert margins[0].autoexpand is False
