"""Hover labels, lines of chance, switches of axes, and sets that must not set an axis."""

import numpy as np
from support.each import each
from support.sentences import assert_says

from theodolite.drawing.line_names import name_lines, spread
from theodolite.drawing.panels import Line, Panel, Reference, panels_figure
from theodolite.drawing.sinks import limit_axes
from theodolite.drawing.style import DEPTH, depth_ticks
from theodolite.drawing.switches import add_depth_switch, switches_of

COLOURS = ("#d9622b", "#3b82c4")
X = list(range(6))


def figure_of(*panels, x_title="layer", ticks=None):
    return panels_figure(panels, x_title=x_title, ticks=ticks or {})


def test_a_hover_label_states_depth_value_interval_and_n():
    line = Line("harmful", [0, 1], [0.5, 0.6], "#d9622b", low=[0.4, np.nan], high=[0.6, np.nan], n="n = 12")
    *_, curve = figure_of(Panel("AUROC", [line])).data
    assert curve.hovertemplate == "%{customdata}: %{y:.5g}%{text}, n = 12<extra>harmful</extra>"
    assert list(curve.customdata) == ["layer 0", "layer 1"]
    assert list(curve.text) == [", 95 % interval [0.4, 0.6]", ""]


def test_a_simultaneous_band_lies_behind_the_interval_and_both_are_named_where_one_points():
    line = Line("a", X, X, "#8a63d2", low=X, high=X, wide_low=[-1] * 6, wide_high=[7] * 6)
    pale, dark, curve = figure_of(Panel("AUROC", [line])).data
    assert (pale.name, dark.name) == ("simultaneous 95 % band", "95 % interval")
    assert max(pale.y) == 7
    assert curve.text[3] == ", 95 % interval [3, 3], simultaneous 95 % band [-1, 7]"


def test_only_points_that_pass_their_test_are_filled():
    curve = figure_of(Panel("AUROC", [Line("a", X[:3], X[:3], "#8a63d2", passed=[True, False, True])])).data[-1]
    assert list(curve.marker.symbol) == ["circle", "circle-open", "circle"]


def test_chance_is_a_grey_ribbon_behind_the_lines_or_a_line_also_at_one_depth():
    ribbon, *_ = figure_of(Panel("AUROC", [Line("a", X, X, "#8a63d2")], chance=(X, [0.4] * 6, [0.6] * 6))).data
    assert ribbon.fill == "toself"
    assert (min(ribbon.y), max(ribbon.y)) == (0.4, 0.6)
    *_, reference = figure_of(Panel("AUROC", [Line("a", [3], [0.9], "#8a63d2")], [Reference(0.5, "chance: 0.5")])).data
    assert reference.x[0] < 3 < reference.x[1]


def test_an_axis_of_layers_ends_at_the_last_layer():
    line = Line("a", range(30), range(30), "#8a63d2")
    axis = figure_of(Panel("norm", [line])).layout.xaxis
    assert list(axis.tickvals) == [0, 5, 10, 15, 20, 25]
    assert axis.range[1] < 30
    assert depth_ticks(range(60)) == {
        "tickvals": [0, 10, 20, 30, 40, 50],
        "ticktext": ["0", "5", "10", "15", "20", "25"],
    }


def test_each_line_has_its_name_at_its_end_in_its_colour_and_there_is_no_legend():
    lines = [Line("rising", X, X, "#d9622b"), Line("falling", X, [5, 4, 3, 2, 1, np.nan], "#3b82c4")]
    figure = name_lines(figure_of(Panel("one", lines, [Reference(3, "chance: 3")])))
    names = {note.text: note for note in figure.layout.annotations}
    assert set(names) == {"rising", "falling", "╌ chance: 3"}
    assert names["rising"].font.color == "#d9622b"
    low, high = figure.layout.yaxis.range
    for name, end in (("falling", 1), ("╌ chance: 3", 3)):
        np.testing.assert_allclose(names[name].y, (end - low) / (high - low))
    assert not figure.layout.showlegend
    assert figure.layout.yaxis.fixedrange, "names stay where they are if an axis is dragged"


def test_dashed_lines_that_differ_in_their_sets_alone_share_a_name_between_their_ends():
    ends = {"one": 2, "other": 4}
    lines = [Line(name, X, [*X[:-1], end], colour) for (name, end), colour in zip(ends.items(), COLOURS, strict=True)]
    lines += [Line(f"{one.name}, fitted", X, one.y, one.colour, "dash", markers=False) for one in lines]
    figure = name_lines(figure_of(Panel("norm", [*lines, Line("one, permuted", X, X, COLOURS[0], "dot")])))
    names = {note.text: note for note in figure.layout.annotations}
    assert set(names) == {"one", "other", "╌ fitted", "┈ one, permuted"}
    assert names["╌ fitted"].font.color not in COLOURS
    assert names["one"].y < names["╌ fitted"].y < names["other"].y


def test_a_line_that_ends_at_zero_has_its_name_on_a_logarithmic_axis_too():
    line = Line("a", X, [1, 10, 100, 50, 20, 0], "#8a63d2")
    figure = name_lines(figure_of(Panel("norm", [line], positive=True, logarithmic=True)))
    (note,) = figure.layout.annotations
    low, high = figure.layout.yaxis.range
    assert note.text == "a"
    np.testing.assert_allclose(note.y, (np.log10(20) - low) / (high - low))


def test_names_of_lines_that_end_at_one_place_do_not_cover_each_other():
    lines = [Line(f"line {index}", X, np.array(X) + 0.01 * index, "#d9622b") for index in range(4)]
    figure = name_lines(figure_of(Panel("one", lines)))
    at = [note.y for note in figure.layout.annotations]
    assert at == sorted(at)
    row = 13 / 200  # of the panel
    assert min(np.diff(at)) >= row - 1e-9
    assert max(at) <= 1 - row / 2 + 1e-9


def test_a_switch_of_the_axis_moves_the_names():
    figure = name_lines(figure_of(Panel("norm", [Line("a", X[:3], [1, 100, 10], "#8a63d2")], positive=True)))
    (switch,) = switches_of(figure)
    linear, logarithmic = (switch[state]["annotations"][0]["y"] for state in ("off", "on"))
    np.testing.assert_allclose(linear, (10 - 1 + 0.05 * 99) / (1.1 * 99))
    np.testing.assert_allclose(logarithmic, 0.5)


def test_names_are_as_near_as_possible_and_inside_the_panel():
    np.testing.assert_allclose(spread([0.5, 0.5], [0.2, 0.2]), [0.4, 0.6])
    np.testing.assert_allclose(spread([0.2, 0.8], [0.2, 0.2]), [0.2, 0.8])
    np.testing.assert_allclose(spread([0.9, 1.0], [0.2, 0.2]), [0.7, 0.9])
    np.testing.assert_allclose(spread([0.1, 0.2, 0.9], [0.2, 0.2, 0.1]), [0.1, 0.3, 0.9])
    np.testing.assert_allclose(np.diff(spread([0.5] * 3, [0.6] * 3)), 0.6)  # they do not fit


@each("values, is_on", [([1, 10, 99], False), ([1, 10, 101], True), ([0, 1, 50], False)])
def test_an_axis_is_logarithmic_first_if_its_values_span_more_than_two_decades(values, is_on):
    figure = figure_of(Panel("variance", [Line("a", X[:3], values, "#8a63d2")], positive=True))
    (switch,) = switches_of(figure)
    assert (switch["group"], switch["label"], switch["is_on"]) == ("logarithmic", "variance", is_on)
    assert figure.layout.yaxis.type == ("log" if is_on else "linear")
    assert switch["on"]["yaxis"]["type"] == "log"
    assert switch["off"]["yaxis"] == {
        "type": "linear",
        "tickvals": None,
        "ticktext": None,
        "dtick": None,
        "uirevision": "linear",
    }


def test_a_panel_without_a_positive_value_or_of_other_values_has_no_switch():
    zero = figure_of(Panel("variance", [Line("a", X[:2], [0, np.nan], "#8a63d2")], positive=True))
    cosine = figure_of(Panel("cosine", [Line("a", X[:2], [1e-4, 1], "#8a63d2")]))
    assert switches_of(zero) == switches_of(cosine) == []


def test_relative_depth_renames_the_ticks_and_moves_no_point():
    ticks = {"tickvals": [0, 6], "ticktext": ["0-pre", "3-pre"]}
    line = Line("a", X, X, "#8a63d2")
    figure = figure_of(Panel("", [line]), x_title=DEPTH, ticks=ticks)
    (switch,) = switches_of(add_depth_switch(figure, n_layers=5))
    assert not switch["is_on"]
    assert list(figure.layout.xaxis.ticktext) == ["0-pre", "3-pre"]
    assert switch["on"]["xaxis"]["tickvals"][10] == 10  # the output of the last of five blocks
    assert switch["on"]["xaxis"]["ticktext"][5] == "0.5"
    assert switch["on"]["xaxis"]["title"]["text"].startswith("relative depth")
    of_layers = add_depth_switch(figure_of(Panel("", [line])), n_layers=5)
    assert switches_of(of_layers)[0]["on"]["xaxis"]["tickvals"][10] == 5
    of_ranks = add_depth_switch(figure_of(Panel("", [line]), x_title="rank"), n_layers=5)
    assert switches_of(of_ranks) == []


def lines_of(sink, positive=True):
    lines = [Line("harmful", X, [1, 2, 3, 4, 5, 6], "#d9622b"), Line("nouns, mid", X, sink, "#3b82c4")]
    return figure_of(Panel("norm", lines, positive=positive))


def test_a_sink_does_not_set_the_axis_and_a_note_says_so():
    figure = lines_of([1e4] * 6)
    limit_axes(figure, {"nouns": "nouns (first token: an attention sink)"})
    (switch,) = switches_of(figure)
    (note,) = figure.layout.annotations
    assert_says(note.text, "outside the axis … : nouns (first token: an attention sink)")
    low, high = switch["off"]["yaxis"]["range"]
    assert low < 1 < 6 < high < 10
    np.testing.assert_allclose(np.log10([1, 6]), switch["on"]["yaxis"]["range"], atol=0.06)
    assert list(figure.layout.yaxis.range) == switch["on"]["yaxis"]["range"]


def test_a_sink_that_only_one_kind_of_axis_cannot_show_is_named_with_this_axis():
    far_below = lines_of([0.001] * 6)  # on a linear axis it lies close to 1
    limit_axes(far_below, {"nouns": "nouns"})
    (note,) = far_below.layout.annotations
    assert_says(note.text, "outside the axis … logarithmic axis … nouns")
    far_above = lines_of([20] * 6)  # on a logarithmic axis, 1 to 20 is not twice as long as 1 to 6
    limit_axes(far_above, {"nouns": "nouns"})
    (note,) = far_above.layout.annotations
    assert_says(note.text, "outside the axis … linear axis … nouns")
    (switch,) = switches_of(far_above)
    assert [switch["on"]["yaxis"]["range"], switch["off"]["yaxis"]["range"][1] < 20] == [None, True]


def test_only_sinks_with_points_outside_the_axis_are_named():
    lines = [
        Line("harmful", X, [1, 2, 3, 4, 5, 6], "#d9622b"),
        Line("inside", X, [2, 2, 3, 3, 4, 4], "#3b82c4"),
        Line("partly", X, [1, 2, 3, 4, 5, 700], "#3b82c4"),
    ]
    figure = figure_of(Panel("norm", lines))
    limit_axes(figure, {"inside": "inside", "partly": "partly"})
    (note,) = figure.layout.annotations
    assert_says(note.text, "outside the axis … : partly")


def test_a_sink_among_the_others_and_a_figure_of_sinks_alone_keep_their_axis():
    figure = lines_of([3] * 6, positive=False)
    limit_axes(figure, {"nouns": "nouns"})
    assert figure.layout.yaxis.range is None
    alone = lines_of([1e4] * 6)
    limit_axes(alone, {"nouns": "nouns", "harmful": "harmful"})
    assert alone.layout.yaxis.range is None
    assert not alone.layout.annotations
