"""What others published, beside the measured curves of a contrast."""

import numpy as np
import pytest
from support.finished_runs import finished_run, model_facts

from theodolite.groups.curves.figures import ContrastView, contrast_figure
from theodolite.query.published import published_curves
from theodolite.store.result_reader import read_group

VIEW = ContrastView("refusal", "harmful", "harmless", -1)
CURVES = {
    "cosine_of_means": 0.9,
    "cosine_of_means_debiased": {"value": 0.95},
    "variance_mean": 2.0,
    "variance_max": 50.0,
}
ROWS = {"y": "cosine_of_means", "y2": "variance_mean", "y3": "variance_max"}


def drawn(folder, model, view=VIEW, **options):
    """Return the traces of what is published, and the figure, of a run that measured every depth."""
    run = finished_run(folder, {"curves": CURVES}, model, **options)
    published = published_curves(model, view.positive, view.negative, view.position)
    figure = contrast_figure(read_group(run, "curves"), view, published)
    return [trace for trace in figure.data if trace.name.startswith("published, ")], figure


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return drawn(tmp_path_factory.mktemp("qwen"), model_facts("Qwen-1_8B-chat", 24))


def test_each_published_curve_lies_on_its_graph_dashed_and_thin(qwen):
    traces, _ = qwen
    # One cosine, and of the two sets both variances; the norms of differences have no graph.
    assert sorted(ROWS[trace.yaxis] for trace in traces) == [
        "cosine_of_means",
        *["variance_max"] * 2,
        *["variance_mean"] * 2,
    ]
    assert {trace.line.dash for trace in traces} == {"dash"}
    assert max(trace.line.width for trace in traces) < 2


def test_the_published_cosine_is_the_sources_by_depth(qwen):
    traces, _ = qwen
    (cosine,) = (trace for trace in traces if trace.yaxis == "y")
    assert list(cosine.x) == list(range(48))
    assert (cosine.y[0], cosine.y[38], cosine.y[47]) == (1, 0.7188, 0.7813)
    assert cosine.customdata[35] == "17-mid"


def test_a_published_variance_has_the_colour_of_its_set(qwen):
    traces, figure = qwen
    of_sets = {trace.name: trace.line.color for trace in figure.data if trace.name in ("harmful", "harmless")}
    variances = {trace.name: trace.line.color for trace in traces if trace.yaxis != "y"}
    assert variances == {f"published, {name}": colour for name, colour in of_sets.items()}


def test_points_that_are_not_neighbours_are_not_joined(tmp_path):
    traces, _ = drawn(tmp_path, model_facts("Llama-3.2-3B-Instruct", 28))
    (cosine,) = (trace for trace in traces if trace.yaxis == "y")
    assert list(cosine.x) == list(range(46, 56))
    np.testing.assert_array_equal(cosine.y, [0.461, *[np.nan] * 8, 0.507])
    assert not cosine.connectgaps


def test_only_depths_that_the_run_measured_are_drawn(tmp_path):
    model = model_facts("Qwen-1_8B-chat", 24)
    traces, _ = drawn(tmp_path, model, sites=["resid_mid"], layers=[3, 4, 20])
    assert {trace.x for trace in traces if trace.yaxis == "y"} == {(7, 9, 41)}
    traces, _ = drawn(tmp_path / "early", model, layers=[0, 1])
    # Of the largest variances, and of those of harmful, the last layers alone are published.
    assert [trace.yaxis for trace in traces] == ["y", "y2"]


def test_nothing_is_drawn_on_the_sphere_or_of_another_model(tmp_path):
    view = ContrastView("refusal", "harmful", "harmless", -1, on_sphere=True)
    model = model_facts("Qwen-1_8B-chat", 24)
    run = finished_run(tmp_path, {"curves": CURVES}, model)
    published = published_curves(model, "harmful", "harmless", -1)
    figure = contrast_figure(read_group(run, "curves"), view, published)
    assert not [trace for trace in figure.data if "published" in trace.name]
    assert drawn(tmp_path / "other", model_facts("tiny", 24))[0] == []


def test_the_measured_curves_are_the_same_with_and_without(tmp_path):
    model = model_facts("Qwen-1_8B-chat", 24)
    curves = read_group(finished_run(tmp_path, {"curves": CURVES}, model), "curves")
    plain = contrast_figure(curves, VIEW)
    with_them = contrast_figure(curves, VIEW, published_curves(model, "harmful", "harmless", -1))
    names = [trace.name for trace in plain.data]
    kept = [trace for trace in with_them.data if not trace.name.startswith("published")]
    assert [trace.name for trace in kept] == names
    for before, after in zip(plain.data, kept, strict=True):
        np.testing.assert_array_equal(np.asarray(before.y, float), np.asarray(after.y, float))
