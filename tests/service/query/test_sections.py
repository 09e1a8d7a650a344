"""Sections of a run and the figures that they name, beside the report that shows the same."""

import pytest
from support.serving import surveyed_run

from theodolite.errors import FigureNotFoundError
from theodolite.sections.catalogue import SECTIONS, draw_figure, figures_of, sections_of, shown_groups
from theodolite.spec import ANALYSES
from theodolite.store.cache import Cache
from theodolite.store.runs import open_run
from theodolite_jobs.report.page import write_report


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return surveyed_run(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def sections(run):
    return {group: sections_of(run, group) for group in SECTIONS}


def test_there_is_a_section_for_every_analysis():
    assert set(SECTIONS) == set(ANALYSES)


def test_sections_are_there_for_what_is_finished_in_the_order_of_reading(run, sections):
    assert shown_groups(run) == ["curves", "separation", "gram", "travel"]
    assert {group for group, found in sections.items() if found} == set(shown_groups(run))


def test_each_says_something_and_names_its_figures_once(sections):
    names = [figure.name for found in sections.values() for figure in figures_of(found)]
    assert len(set(names)) == len(names) > 10
    for group, found in sections.items():
        for section in found:
            assert section.title
            assert section.facts
            assert all(sentence.endswith((".", ")")) for sentence in section.facts)
            assert "nan" not in " ".join(section.facts).lower().split()
        assert all(figure.name.partition(".")[0] == group and figure.caption for figure in figures_of(found))


def test_contrasts_are_shown_at_the_positions_that_both_sets_keep(sections):
    names = {figure.name for figure in figures_of(sections["curves"])}
    assert {"curves.refusal.-2", "curves.refusal.-1", "curves.subject.-1", "curves.subject.-1.sphere"} <= names
    assert "curves.subject.-2" not in names


def test_figures_are_drawn_by_their_names(run, sections):
    for found in sections.values():
        drawn = list(figures_of(found))[:2]
        assert [draw_figure(run, one.name).to_plotly_json().keys() for one in drawn] == [{"data", "layout"}] * len(
            drawn
        )


def test_what_a_reader_keeps_draws_the_same(run, sections):
    reader = open_run(run.store, run.id, Cache(10**8))
    for _ in range(2):
        assert [one.facts for one in sections_of(reader, "gram")] == [one.facts for one in sections["gram"]]
    assert draw_figure(reader, "gram.shape").to_json() == draw_figure(run, "gram.shape").to_json()


def test_tables_are_as_wide_as_their_columns(sections):
    tables = [table for found in sections.values() for section in found for table in section.tables]
    assert tables
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gram.x", "it has gram.shape, gram.blocks, gram.cka.harmful"),
        ("heads.qk.leading", "it has figures of curves, separation, gram, travel"),
        ("", "it has figures of curves"),
        ("../gram.shape", "it has figures of curves"),
        ("curves", "it has curves.refusal.-2"),
    ],
)
def test_a_figure_that_is_not_there_names_those_that_are(run, name, said):
    with pytest.raises(FigureNotFoundError, match=f"tiny-0 has no figure .*{said}"):
        draw_figure(run, name)


def test_the_report_shows_the_sections(run, sections):
    write_report(run)
    with open(run.report, encoding="utf-8") as file:
        page = file.read()
    for found in sections.values():
        for section in found:
            assert section.title.split(",")[0] in page
            assert all(figure.caption.split(";")[0] in page for figure in section.figures)
