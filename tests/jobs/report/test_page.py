"""The report of damaged, hostile and doubtful runs, and its scripts."""

import base64
import gzip
import json
import re

import numpy as np
import plotly.graph_objects as go
import plotly.offline
import pytest
from support.analysed_runs import PAIRED, SITES, analysed, draw, silent
from support.analysing import analyse
from support.stored import store_run

from theodolite.errors import ResultsNotFoundError
from theodolite.store.layout import COMPLETE, REPORT
from theodolite.store.objects import get, put
from theodolite_jobs.report import page
from theodolite_jobs.report.page import packed, plotly_script, render_report, update_report, write_report


def test_a_report_without_results_is_refused(tmp_path):
    run = store_run(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, contrasts=PAIRED)
    with pytest.raises(ResultsNotFoundError, match="no finished results"):
        render_report(run)


def test_the_report_escapes_what_users_wrote(tmp_path):
    arrays = {"bad": draw(5), "good": draw(5, seed=1)}
    run = store_run(tmp_path, arrays, contrasts=PAIRED)
    spec = run.record.spec.model_copy(update={"name": "</script><script>alert(1)</script>"})
    run = type(run)(run.store, run.record.model_copy(update={"spec": spec}))
    analyse(run, run.record.spec.resolved_contrasts(), None, silent)
    assert "<script>alert(1)" not in render_report(run)


def test_the_report_doubts_an_interval_above_one(tmp_path):
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(8, 1, 3, 16)) * 2
    arrays = {
        name: {site: (shared + 0.05 * rng.normal(size=shared.shape) + 1).astype(np.float32) for site in SITES}
        for name in ("bad", "good")
    }
    unpaired = {"refusal": {**PAIRED["refusal"], "paired": False}}
    assert "set paired: true" in render_report(analysed(tmp_path / "unpaired", arrays, unpaired))
    assert "set paired: true" not in render_report(analysed(tmp_path / "paired", arrays, PAIRED))


def test_the_report_is_written_again_only_if_it_is_outdated_or_damaged(tmp_path, monkeypatch):
    run = analysed(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, PAIRED)
    write_report(run)
    whole, written = get(run.location, REPORT), []

    def is_written() -> bool:
        written.clear()
        update_report(run)
        return bool(written)

    monkeypatch.setattr(page, "write_report", lambda run: (written.append(run), write_report(run)))
    assert not is_written()
    for damaged in (b"", whole[:-100], whole[: len(whole) // 2], whole.replace(b"<h1>", b"<h2>", 1)):
        put(run.location, REPORT, damaged)
        assert is_written()
    assert get(run.location, REPORT) == whole
    put(run.location, COMPLETE, get(run.location, COMPLETE) + b"\n")  # other results
    assert is_written()
    monkeypatch.setattr(page, "__version__", "another")
    assert is_written()
    assert not is_written()


def test_the_bundle_of_plotly_has_the_version_of_the_package():
    (version,) = re.findall(r"cartesian - minified\) v(\S+)", plotly_script({})[:200])
    assert version == plotly.offline.get_plotlyjs_version(), "run `make plotly`, and commit the file that it fetches"


def test_only_a_figure_in_space_needs_the_whole_of_plotly():
    plane, space = go.Figure([go.Scatter(y=[1, 2]), go.Heatmap(z=[[1]])]), go.Figure(go.Scatter3d(x=[1], y=[1], z=[1]))
    part, whole = plotly_script({"a": plane}), plotly_script({"a": plane, "b": space})
    assert whole == plotly.offline.get_plotlyjs()
    assert 3 * len(part) < len(whole)


def test_figures_have_eight_significant_digits():
    figure = go.Figure(go.Scatter(x=[0, 123456789], y=[1 / 3, None], text=["0.123456789", "b"]))
    (trace,) = json.loads(gzip.decompress(base64.b64decode(packed({"a": figure}))))["a"]["data"]
    assert trace == {"type": "scatter", "x": [0, 123456789], "y": [0.33333333, None], "text": ["0.123456789", "b"]}
