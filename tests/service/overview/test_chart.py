"""Charts: lines, bands, marks of axes, brackets and strips, with gaps where numbers are missing."""

import re

import numpy as np
import pytest
from support.each import each

from theodolite.drawing.swarm import swarm
from theodolite.overview.chart import SIZE, Band, Chart, Curve, round_ticks

X = np.arange(8.0)
Y = np.linspace(0.5, 0.9, 8)


def points(path):
    """Return the pieces of a path, each as a list of (across, down)."""
    pieces = [re.findall(r"([\d.]+) ([\d.]+)", piece) for piece in path.split("M")[1:]]
    return [[(float(across), float(down)) for across, down in piece] for piece in pieces]


def missing(values, *indices):
    values = values.copy()
    values[list(indices)] = np.nan
    return values


def test_a_line_goes_through_all_values_and_has_gaps_where_they_are_missing():
    chart = Chart("", X, [Curve(Y, "main")])
    (piece,) = points(chart.path(Y))
    assert piece[0] == pytest.approx((0, SIZE * 1.06 / 1.12), abs=0.1)  # 6 % of the range is room at each end
    assert piece[-1] == pytest.approx((SIZE, SIZE * 0.06 / 1.12), abs=0.1)
    assert np.ptp(np.diff(np.array(piece), axis=0), axis=0) == pytest.approx([0, 0], abs=0.2)
    assert [len(piece) for piece in points(chart.path(missing(Y, 0, 3, 4)))] == [2, 3]
    assert chart.path(np.full(8, np.nan)) == ""


def test_a_band_is_closed_and_has_gaps_where_an_end_is_missing():
    band = Band(missing(Y - 0.1, 2), missing(Y + 0.1, 5), "band")
    chart = Chart("", X, [Curve(Y, "main")], [band])
    pieces = points(chart.area(band))
    assert [len(piece) for piece in pieces] == [4, 4, 4]
    assert chart.area(band).count("Z") == 3
    assert "nan" not in chart.area(band)
    assert chart.area(Band(np.full(8, np.nan), Y, "band")) == ""
    assert chart.ends[0] < 0.4 < 1.0 < chart.ends[1], "the axis has room for the band"


def test_markers_are_filled_where_a_test_passes_and_absent_where_a_value_is():
    curve = Curve(missing(Y, 7), "main", filled=X > 4)
    chart = Chart("", X, [curve])
    assert chart.dots(curve, filled=True).count("h0") == 2
    assert chart.dots(curve, filled=False).count("h0") == 5
    assert chart.dots(Curve(Y, "main"), filled=True) == ""


@each(
    "low, high, ticks",
    [
        (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.47, 1.03, [0.6, 0.8, 1.0]),
        (-0.03, 0.03, [-0.02, 0.0, 0.02]),
        (1e-9, 3e-9, [1e-9, 1.5e-9, 2e-9, 2.5e-9, 3e-9]),
        (990.0, 1010.0, [990, 995, 1000, 1005, 1010]),
    ],
)
def test_marks_are_round_numbers(low, high, ticks):
    found = round_ticks(low, high)
    assert found == pytest.approx(ticks)
    assert "-0" not in [f"{tick:g}" for tick in found]


def test_a_logarithmic_axis_has_powers_of_ten_and_equal_factors_are_equally_far():
    y = np.array([0.05, 0.5, 5.0, 50.0])
    chart = Chart("", X[:4], [Curve(y, "main")], logarithmic=True)
    (piece,) = points(chart.path(y))
    assert np.ptp(np.diff([down for _, down in piece])) < 0.2
    assert [text for _, text in chart.ticks] == ["0.1", "1", "10"]
    narrow = Chart("", X[:2], [Curve(np.array([2.0, 3.0]), "main")], logarithmic=True)
    assert len(narrow.ticks) == 1
    at_zero = Chart("", X[:3], [Curve(np.array([0.0, 1.0, 10.0]), "main")], logarithmic=True)
    assert points(at_zero.path(at_zero.curves[0].y))[0][0][1] == SIZE, "zero lies at the lower end"


def test_constant_values_and_one_layer_have_a_chart():
    chart = Chart("", X[:1], [Curve(np.array([0.7]), "main", "end")], bracket=np.array([True]), strip=np.array([0.2]))
    assert points(chart.path(chart.curves[0].y)) == [[(0.0, 500.0)]]
    assert chart.bracket_spans == chart.unreliable_spans == [(0.0, 100.0)]
    assert chart.strip_cells == [(0.0, 100.0, 0.2)]
    assert chart.layer_ticks == [(0.0, "0")]
    assert [text for _, _, text in chart.end_labels] == ["end"]
    for empty in (Chart("", X, [Curve(np.full(8, np.nan), "main", "end")]), Chart("", X, [Curve(X * 0, "main")])):
        assert np.isfinite(empty.ends).all()
        assert empty.ends[0] < empty.ends[1]
        assert empty.ticks
        assert not empty.end_labels


def test_layers_are_marked_at_their_inputs_at_about_six_depths():
    chart = Chart("", np.arange(60.0), [Curve(np.arange(60.0), "main")])
    assert [text for _, text in chart.layer_ticks] == ["0", "5", "10", "15", "20", "25"]
    assert [left for left, _ in chart.layer_ticks] == pytest.approx([100 * 10 * at / 59 for at in range(6)])
    from_mid = Chart("", np.array([1.0, 3.0, 5.0]), [Curve(Y[:3], "main")])
    assert [text for _, text in from_mid.layer_ticks] == ["1", "2"]
    assert chart.depths.split() == [str(depth) for depth in range(60)]


def test_a_bracket_spans_neighbouring_depths_and_missing_reliability_is_not_hatched():
    bracket = np.array([False, True, True, False, False, False, False, True])
    strip = np.array([0.1, 0.4, 0.6, np.nan, 1.0, 1.0, 1.0, 1.0])
    chart = Chart("", X, [Curve(Y, "main")], bracket=bracket, strip=strip)
    step = 100 / 7
    assert np.array(chart.bracket_spans) == pytest.approx(np.array([[step / 2, 2 * step], [6.5 * step, step / 2]]))
    assert np.array(chart.unreliable_spans) == pytest.approx(np.array([[0, 1.5 * step]]))
    assert [cell[2] for cell in chart.strip_cells] == [0.1, 0.4, 0.6, 0.0, 1.0, 1.0, 1.0, 1.0]
    assert Chart("", X, [Curve(Y, "main")]).bracket_spans == []


def test_labels_at_the_ends_of_lines_are_apart_and_inside_the_box():
    curves = [Curve(Y + shift, "main", f"line {index}") for index, shift in enumerate((0, 0.001, 0.002, -0.3))]
    chart = Chart("", X, curves, levels=[(0.2, "level"), (0.2, "")])
    tops = [top for top, _, _ in chart.end_labels]
    assert [text for _, _, text in chart.end_labels] == ["line 2", "line 1", "line 0", "line 3", "level"]
    assert min(np.diff(tops)) > 7.9
    assert tops[-1] <= 100


def test_a_swarm_stacks_points_of_a_column_and_keeps_far_points_at_the_ends():
    scores = np.array([-9.0, -np.inf, 0.0, 0.01, 0.02, 9.0, np.inf])
    column, places = swarm(scores, (-5.0, 5.0), bins=10)
    assert column.tolist() == [0, 0, 5, 5, 5, 9, 9]
    assert sorted(places[:2]) == [0, 1]
    assert places[2:5].tolist() == [0, 1, 2]
    assert sorted(places[5:]) == [0, 1]
