"""One panel of a figure is that of the whole figure, and pictures have the width of a column or a page."""

import re

import plotly.graph_objects as go
import pytest
from support.each import each
from support.serving import surveyed_run

import theodolite
from theodolite.drawing import pictures
from theodolite.errors import SpecError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    stored = surveyed_run(tmp_path_factory.mktemp("pictures"))
    return theodolite.open_run(stored.store, stored.id)


def test_each_panel_is_that_of_the_figure(run):
    whole = run._untitled("auroc", None)
    titles = [axis.title.text for axis in whole.select_yaxes()]
    assert "AUROC" in titles
    assert len(titles) > 2
    drawn, named = 0, 0
    for title in titles:
        one = run._untitled("auroc", title)
        (axis,) = one.select_yaxes()
        assert axis.title.text == title
        assert axis.range == next(whole.select_yaxes({"title.text": title})).range
        assert one.layout.xaxis.title.text.startswith("layer")
        assert 150 < one.layout.height < whole.layout.height / 2
        assert {(trace.xaxis, trace.yaxis) for trace in one.data} == {("x", "y")}
        assert {note.yref for note in one.layout.annotations} <= {"y domain"}
        drawn, named = drawn + len(one.data), named + len(one.layout.annotations)
    assert (drawn, named) == (len(whole.data), len(whole.layout.annotations))
    assert "AUROC" in run.figure("auroc", panel="AUROC").layout.title.text
    with pytest.raises(SpecError, match=re.escape("panel: given 'auroc'; allowed: AUROC")):
        run.figure("auroc", panel="auroc")


@each("trace", [go.Bar(y=[1, 2]), go.Heatmap(z=[[1, 2]])])
def test_a_panel_can_have_bars_or_a_map(trace):
    layout = {
        "yaxis": {"title": {"text": "share"}},
        "xaxis": {"title": {"text": "layer"}},
        "height": 400,
        "margin": {"t": 10, "b": 10},
    }
    one = pictures.one_panel(go.Figure([trace], layout), "share")
    assert [kept.type for kept in one.data] == [trace.type]
    assert one.layout.height == 400


@pytest.fixture
def written(monkeypatch):
    """The arguments of each picture that kaleido would draw."""
    found = []
    monkeypatch.setattr(pictures, "find_spec", lambda _name: True)
    monkeypatch.setattr(go.Figure, "write_image", lambda figure, path, scale: found.append((figure, path, scale)))
    return found


def test_a_picture_has_its_width_on_paper_and_says_what_it_shows(run, written, tmp_path):
    for width, inches in (("column", 3.3), ("page", 6.8)):
        for suffix, dots in ((".svg", 96), (".pdf", 96), (".png", 300)):
            path = tmp_path / f"{width}{suffix}"
            assert run.save_figure("auroc", str(path), width=width, panel="AUROC") == path
            figure, file, scale = written.pop()
            assert file == path
            assert scale * figure.layout.width == pytest.approx(inches * dots)
            assert "tiny: Separation" in figure.layout.title.text
            characters = [len(re.sub("<.*?>", "", row)) for row in figure.layout.title.text.split("<br>")]
            assert max(characters) <= figure.layout.width / 5
            assert figure.layout.paper_bgcolor == "white"


@each(
    "name, width, reason",
    [
        ("a.svg", "wide", "width: given 'wide'; allowed: column, page"),
        ("a.jpg", "page", "ends with .svg, .pdf or .png"),
    ],
)
def test_an_unknown_width_or_format_is_refused(run, written, tmp_path, name, width, reason):
    with pytest.raises(SpecError, match=reason):
        run.save_figure("auroc", tmp_path / name, width=width)
    assert not written


def test_what_is_missing_is_said_in_one_line(run, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "find_spec", lambda _name: None)
    with pytest.raises(SpecError, match=r"not installed; run: pip install 'theodolite\[pictures\]'$"):
        run.save_figure("auroc", tmp_path / "a.svg")
    monkeypatch.setattr(pictures, "find_spec", lambda _name: True)
    for error, reason in (
        (RuntimeError("no browser\nsecond line"), "no browser; kaleido draws with Chrome .* BROWSER_PATH"),
        (FileNotFoundError(2, "No such file or directory"), "cannot write .*a.svg: No such file or directory"),
    ):

        def failing(*_arguments, raised=error, **_options):
            raise raised

        monkeypatch.setattr(go.Figure, "write_image", failing)
        with pytest.raises(SpecError, match=reason) as found:
            run.save_figure("auroc", tmp_path / "a.svg")
        assert "\n" not in str(found.value)
