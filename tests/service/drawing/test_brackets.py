"""Brackets over the depths that may have the extreme value, and the figures that draw them."""

import numpy as np
import xarray as xr
from support.finished_runs import finished_run

from theodolite.drawing.brackets import bracket
from theodolite.sections.catalogue import draw_figure

CURVES = np.array([0.5, 0.6, 0.9, 0.9, 0.7])


def located(*values):
    return xr.DataArray(list(values), {"depth": np.arange(len(values))}, ("depth",))


def test_each_range_of_depths_has_a_bracket_above_the_curves():
    (line,) = bracket(located(0, 1, 1, 0, 1), CURVES)
    assert list(line.x) == [0.7, 0.7, 2.3, 2.3, None, 3.7, 3.7, 4.3, 4.3, None]
    assert min(one for one in line.y if one is not None) > CURVES.max()
    assert line.y[0] < line.y[1], "the ends of a bracket point to the curves"
    assert line.name == "may be the largest (95 %)"
    assert bracket(located(1), CURVES, "smallest")[0].name == "may be the smallest (95 %)"


def test_depths_without_a_value_do_not_interrupt_a_range():
    (line,) = bracket(located(np.nan, 1, np.nan, 1, 0), CURVES)
    assert list(line.x) == [0.7, 0.7, 3.3, 3.3, None]


def test_without_located_depths_there_is_no_bracket():
    assert bracket(located(*[np.nan] * 5), CURVES) == []
    assert bracket(located(1, 1), [np.nan, np.nan]) == []


def test_the_figures_of_separation_and_curves_have_brackets_and_the_difference_from_words(tmp_path):
    at_one = np.zeros((1, 2, 1, 4))
    at_one[0, 1, 0, 2] = 1
    groups = {
        "curves": {
            "cosine_of_means_debiased": {"value": {"raw": 0.9}},
            "cosine_of_means_debiased_location": {"raw": at_one},
            "variance_mean": {"raw": 1.0},
        },
        "moments": {},
        "directions": {},
        "separation": {"auroc": {"value": 0.9, "low": 0.8, "high": 0.95}},
        "permutations": {
            "score_auroc": 0.1,
            "beyond": {"words": {"auroc": 0.1, "ridge_auroc": 0.1}},
            "location": {"auroc": at_one},
        },
    }
    run = finished_run(tmp_path, groups)
    for name, label in (("separation.refusal", "largest"), ("curves.refusal.-1", "smallest")):
        figure = draw_figure(run, name)
        (line,) = (trace for trace in figure.data if trace.name == f"may be the {label} (95 %)")
        assert list(line.x) == [4.7, 4.7, 5.3, 5.3, None]
    figure = draw_figure(run, "separation.refusal")
    titles = [axis.title.text for axis in figure.select_yaxes()]
    assert titles[:2] == ["AUROC", "AUROC minus words"]
    assert {trace.name for trace in figure.data} >= {"difference of means", "ridge regression"}
