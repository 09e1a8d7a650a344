"""The comparison's figure, its page and the command that writes it."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.each import each
from support.finished_runs import finished_run, model_facts
from support.sentences import assert_each_says
from typer.testing import CliRunner

from theodolite.drawing.comparison import comparison_figure, description, width_figure
from theodolite.errors import SpecError, StoreError
from theodolite.query.compare import Question, comparison
from theodolite.query.profiles import PROFILES
from theodolite_jobs.cli import app

COSINE = {"cosine_of_means_debiased": {"value": {"raw": 0.8}, "low": {"raw": 0.7}, "high": {"raw": 0.9}}}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Three runs: two with an interval, one of them separated; and one with a gap and no interval."""
    folder = tmp_path_factory.mktemp("store")
    separation = {"separation": {"auroc": {"value": 0.99, "low": 0.98, "band_low": 0.97, "high": 1.0}}}
    gap = {"value": {"raw": np.array([0.5, np.nan, 0.4, 0.3])}}
    return folder, [
        finished_run(folder, {"curves": COSINE} | separation, model_facts("first", 4), "first-0"),
        finished_run(folder, {"curves": COSINE}, model_facts("second", 6), "second-0"),
        finished_run(folder, {"curves": {"cosine_of_means_debiased": gap}}, run_id="third-0"),
    ]


def compare(store, *words):
    return CliRunner().invoke(app, ["run", "compare", *words, "--store", str(store[0])])


def test_each_run_has_one_colour_and_a_band_where_it_has_an_interval(store):
    figure = comparison_figure(comparison(store[1], Question()))
    lines = [trace for trace in figure.data if trace.fill is None]
    bands = [trace for trace in figure.data if trace.fill == "toself"]
    assert [line.name for line in lines] == ["first", "second", "tiny"]
    assert len({line.line.color for line in lines}) == 3
    assert [band.legendgroup for band in bands] == ["first", "second"]
    assert all(max(line.x) < 1 for line in lines)


def test_the_auroc_the_cosine_and_the_difference_have_a_panel_each(store):
    frame = comparison(store[1][:1], Question())
    assert list(frame["statistic"].unique()) == ["auroc", "cosine_of_means_debiased"]
    ends = {"value": [0.1, 0.2], "low": [0.05, np.nan], "high": [0.15, np.nan]}
    beyond = pd.DataFrame({"depth": [0, 1], "relative_depth": [0, 0.125], **ends})
    figure = comparison_figure(frame, beyond)
    titles = [figure.layout[f"yaxis{row}"].title.text for row in ("", 2, 3)]
    assert titles == ["AUROC", "cosine of means debiased", "AUROC of the first run<br>minus the second"]
    curves = [trace for trace in figure.data if trace.mode == "lines+markers"]
    assert [curve.name for curve in curves] == ["first", "first", "difference"]
    names = [note.text for note in figure.layout.annotations]
    assert names.count("first") == 2, "each panel names the run"
    assert figure.layout.meta["about"][0] == "AUROC and cosine of means debiased"
    (line,) = (trace for trace in figure.data if trace.name == "difference")
    assert list(line.y) == [0.1, 0.2]
    assert list(line.text) == [", simultaneous 95 % band [0.05, 0.15]", ""]
    (switch,) = figure.layout.meta["switches"]
    assert set(switch["on"]) == set(switch["off"]) == {"xaxis", "xaxis2", "xaxis3"}
    assert "NaN" not in figure.to_json()


def test_a_gap_stays_a_gap_and_is_valid_json(store):
    figure = comparison_figure(comparison(store[1][2:], Question(site="resid_pre")))
    assert json.loads(figure.to_json())["data"][0]["y"] == [0.5, None, 0.4, 0.3]
    assert "NaN" not in figure.to_json()


def test_more_runs_than_colours_are_told_apart_by_dashes(store):
    frame = comparison(store[1][:1], Question("cosine_of_means_debiased"))
    many = [frame.assign(run_id=f"run-{number}", model=f"model {number}") for number in range(11)]
    lines = [trace for trace in comparison_figure(pd.concat(many, ignore_index=True)).data if trace.fill is None]
    assert len({(line.line.color, line.line.dash) for line in lines}) == 11


def test_an_untrained_model_is_grey(store):
    frame = comparison(store[1], Question())
    twins = frame.assign(model=frame["model"].replace("second", "first (random weights)"))
    lines = [trace for trace in comparison_figure(twins).data if trace.fill is None]
    assert [line.line.color == "#8b9098" for line in lines] == [False, True, False]


def test_models_of_several_widths_are_drawn_against_their_width(store):
    frame = comparison(store[1], Question())
    assert width_figure(frame) is None
    wider = frame.assign(d_model=frame["run_id"].map({"first-0": 8, "second-0": 64, "third-0": 16}))
    (points,) = width_figure(wider).data
    assert (list(points.x), list(points.customdata)) == ([8, 64, 16], ["first", "second", "tiny"])
    np.testing.assert_allclose(points.y, [0.8, 0.8, 0.4])  # the median of 0.3, 0.4 and 0.5
    np.testing.assert_allclose(points.error_y.array, [0, 0, 0.1], atol=1e-12)
    assert "NaN" not in width_figure(wider).to_json()


def test_every_statistic_has_a_sentence_that_stands_alone():
    for statistic in PROFILES:
        assert not description(statistic).startswith("The same")
    assert description("cosine_of_means_debiased").startswith("Cosine between the means of the two sets")


def test_the_command_writes_a_page_and_prints_the_table(store, tmp_path):
    page = tmp_path / "page.html"
    result = compare(store, "first-0", "second-0", "third-0", "--output", str(page))
    assert result.exit_code == 0, result.exception
    missing = ["largest AUROC: not measured", "first depth … not measured", "above 0.95: not measured"]
    assert_each_says(
        result.stdout.splitlines(),
        "first-0",
        "smallest debiased cosine: 0.8000 at 0-pre (0.00)",
        "largest AUROC: 0.9900 at 0-pre",
        missing[1],
        "above 0.95: 0-pre (0.00)",
        *("second-0", "smallest debiased cosine: 0.8000 at 0-pre (0.00)", *missing),
        *("third-0", "smallest debiased cosine: 0.3000 at 3-pre (0.75)", *missing),
        str(page),
    )
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    for said in (
        "resid_pre and resid_mid, position -1",
        "not measured",
        "first-0",
        "Cosine between the means of the two sets",
        "Bands are 95 %",
    ):
        assert said in text


def test_the_command_answers_in_json(store, tmp_path):
    page = tmp_path / "page.html"
    result = compare(store, "first-0", "second-0", "--bound", "0.98", "--json", "--output", str(page))
    answer = json.loads(result.stdout.splitlines()[-1])
    assert (answer["page"], answer["bound"]) == (str(page), 0.98)
    assert answer["statistics"] == ["cosine_of_means_debiased"], "the only one that both runs have"
    assert [(item["run_id"], item["separates_at"]) for item in answer["items"]] == [
        ("first-0", "never"),
        ("second-0", "not measured"),
    ]
    assert answer["items"][0]["separates_relative_depth"] is None


def test_a_run_that_is_named_twice_is_one_run(store, tmp_path):
    result = compare(store, "first-0", "first-0", "--json", "--output", str(tmp_path / "page.html"))
    assert len(json.loads(result.stdout)["items"]) == 1


@each(
    "words, error, message",
    [
        (["first-0", "--statistic", "cosine"], SpecError, "statistic: given 'cosine'"),
        (["first-0", "second-0", "--statistic", "auroc"], StoreError, "second-0 has no results 'separation'"),
        (["first-0", "nobody-0"], StoreError, "no run 'nobody-0'"),
        (["first-0", "--contrast", "subject"], SpecError, "contrast: first-0 has no 'subject'"),
        (["first-0", "--output", "/nowhere/page.html"], StoreError, "cannot write the page /nowhere/page.html"),
    ],
)
def test_what_is_wrong_is_said_and_no_page_is_written(store, tmp_path, monkeypatch, words, error, message):
    monkeypatch.chdir(tmp_path)
    result = compare(store, *words)
    assert isinstance(result.exception, error)
    assert message in str(result.exception)
    assert list(Path().iterdir()) == []
