"""Hover labels, lines of chance, switches of axes, and sets that must not set an axis."""

import numpy as np
from support.each import each
from support.sentences import assert_says

from theodolite.drawing.panels import Line, Panel, panels_figure
from theodolite.drawing.references import Reference, reference_lines
from theodolite.drawing.sinks import limit_axes
from theodolite.drawing.switches import add_depth_switch, switches_of

X = list(range(6))


def figure_of(*panels, x_title="layer", ticks=None):
    return panels_figure(panels, x_title=x_title, ticks=ticks or {})


def test_a_hover_label_states_depth_value_interval_and_n():
    line = Line("harmful", [0, 1], [0.5, 0.6], "#d9622b", low=[0.4, np.nan], high=[0.6, np.nan], n="n = 12")
    *_, curve = figure_of(Panel("AUROC", [line])).data
    assert curve.hovertemplate == "%{customdata}: %{y:.5g}%{text}, n = 12<extra>harmful</extra>"
    assert list(curve.customdata) == ["layer 0", "layer 1"]
    assert list(curve.text) == [", 95 % interval [0.4, 0.6]", ""]


def test_a_reference_is_labelled_where_no_curve_is_or_else_in_the_legend():
    low, inside = reference_lines([Reference(0.0, "chance: 0"), Reference(0.8, "bound: 0.8")], [(X, np.full(6, 0.82))])
    assert (low.text[-1], low.textposition, low.showlegend) == ("chance: 0", "top left", False)
    assert (inside.text[-1], inside.textposition) == ("bound: 0.8", "bottom left")
    (crossed,) = reference_lines([Reference(0.0, "random directions: 0")], [(X, [-1, 1, -0.1, 0.1, -0.05, 0.05])])
    assert (crossed.showlegend, crossed.name) == (True, "random directions: 0")
    assert reference_lines([Reference(0.0, "chance: 0")], []) == []


def test_a_reference_has_one_legend_entry_in_all_panels():
    crossing = Line("a", X, [-1, 1, -0.1, 0.1, -0.05, 0.05], "#8a63d2")
    figure = figure_of(*(Panel(title, [crossing], [Reference(0, "zero: 0")]) for title in ("one", "two")))
    assert [trace.showlegend for trace in figure.data if trace.name == "zero: 0"] == [True, False]


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
    figure = figure_of(Panel("", [line]), x_title="depth along the residual stream", ticks=ticks)
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
