"""The figure of a contrast: one line along the stream for each statistic, and a ratio where two would coincide."""

import numpy as np
from support.finished_runs import finished_run

from theodolite.drawing.panels import coinciding_ratio
from theodolite.groups.curves.figures import ContrastView, contrast_figure, variances_figure
from theodolite.sections.catalogue import sections_of
from theodolite.store.result_reader import read_group

VIEW = ContrastView("refusal", "harmful", "harmless", -1)


def curves_of(folder, variances, sites=("resid_pre", "resid_mid")):
    curves = {
        "cosine_of_means": {"raw": 0.9},
        "cosine_of_means_debiased": {"value": {"raw": 0.95}, "low": {"raw": 0.9}, "high": {"raw": 1.0}},
        "variance_mean": {"raw": np.asarray(variances, dtype=float)[:, None, None]},
        "variance_max": {"raw": 50.0},
    }
    run = finished_run(folder, {"curves": curves}, sites=list(sites))
    return run, read_group(run, "curves")


def lines_of(figure):
    return {axis: [one.name for one in figure.data if one.yaxis == axis and not one.fill] for axis in ("y", "y2", "y3")}


def test_sets_that_differ_have_a_line_each_through_both_sites(tmp_path):
    _, curves = curves_of(tmp_path, [[1, 10, 100, 1000], [500, 1, 1, 1]])
    figure = contrast_figure(curves, VIEW)
    assert lines_of(figure) == {
        "y": ["plain", "debiased"],
        "y2": ["harmful", "harmless"],
        "y3": ["harmful", "harmless"],
    }
    (harmful,) = (one for one in figure.data if one.yaxis == "y2" and one.name == "harmful")
    assert list(harmful.x) == list(range(8))  # the input of each block, and the stream after its attention
    assert list(harmful.y) == [1, 1, 10, 10, 100, 100, 1000, 1000]
    assert harmful.customdata[5] == "2-mid"


def test_sets_that_coincide_are_drawn_as_their_ratio_and_apart_in_another_figure(tmp_path):
    values = np.array([1, 10, 100, 1000.0])
    run, curves = curves_of(tmp_path, [1.2 * values, values])
    figure = contrast_figure(curves, VIEW)
    assert lines_of(figure)["y2"] == ["ratio of the sets", "equal: 1"]
    (ratio,) = (one for one in figure.data if one.yaxis == "y2" and one.name == "ratio of the sets")
    np.testing.assert_allclose(ratio.y, 1.2)
    assert lines_of(variances_figure(curves, VIEW))["y"] == ["harmful", "harmless"]
    names = [figure.name for figure in sections_of(run, "curves")[0].figures]
    assert names == ["curves.refusal.-1", "curves.refusal.-1.variances", "curves.refusal.-1.sphere"]


def test_curves_coincide_up_to_a_tenth_of_their_height():
    one = np.array([1.0, 1000.0])
    assert coinciding_ratio(one, one * 10**0.4) is None
    np.testing.assert_allclose(coinciding_ratio(one, one * 10**0.2), 10**-0.2)
    assert coinciding_ratio(np.ones(2), np.ones(2)) is None  # a constant has no height
    np.testing.assert_array_equal(coinciding_ratio(np.array([np.nan, 1, 9]), np.array([1.0, 1, 9])), [np.nan, 1, 1])


def test_other_sites_have_a_figure_of_their_own_with_a_line_for_each(tmp_path):
    run, curves = curves_of(tmp_path, [[1, 10, 100, 1000], [500, 1, 1, 1]], sites=["resid_pre", "attn_out", "mlp_out"])
    assert lines_of(contrast_figure(curves, VIEW))["y2"] == ["harmful", "harmless"]
    figures = {figure.name: figure for figure in sections_of(run, "curves")[0].figures}
    names = lines_of(figures["curves.refusal.-1.sites"].draw())["y2"]
    assert names == ["harmful, attn_out", "harmless, attn_out", "harmful, mlp_out", "harmless, mlp_out"]
