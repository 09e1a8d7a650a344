"""Check the sections of a run and their figures, and that the report contains them."""

import pytest
from support.each import each
from support.serving import surveyed_run

from theodolite.errors import FigureNotFoundError
from theodolite.groups import SHOWN
from theodolite.sections.catalogue import draw_figure, figures_of, sections_of, shown_groups
from theodolite.spec import ANALYSES
from theodolite.store.cache import Cache
from theodolite.store.runs import open_run
from theodolite_jobs.report.page import write_report


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return surveyed_run(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def sections(run):
    return {group: sections_of(run, group) for group in SHOWN}


def test_every_analysis_has_a_section():
    assert set(SHOWN) == {*ANALYSES, "directions"} - {"permutations"}  # whose sentences are in other sections


def test_finished_groups_have_sections_in_the_order_of_the_report(run, sections):
    assert shown_groups(run) == ["separation", "curves", "directions", "gram", "travel"]
    assert {group for group, of_group in sections.items() if of_group} == set(shown_groups(run))


def test_sections_have_sentences_and_unique_figure_names(sections):
    names = [figure.name for of_group in sections.values() for figure in figures_of(of_group)]
    assert len(set(names)) == len(names) > 10
    for group, of_group in sections.items():
        for section in of_group:
            assert section.title
            assert section.facts
            assert all(sentence.endswith((".", ")")) for sentence in section.facts)
            assert "nan" not in " ".join(section.facts).lower().split()
        assert all(figure.name.partition(".")[0] == group and figure.caption for figure in figures_of(of_group))


def test_contrasts_are_shown_at_the_positions_of_both_sets(sections):
    names = {figure.name for figure in figures_of(sections["curves"])}
    assert {"curves.refusal.-2", "curves.refusal.-1", "curves.subject.-1", "curves.subject.-1.sphere"} <= names
    assert "curves.subject.-2" not in names


@pytest.mark.nightly
def test_figures_are_drawn_by_their_names(run, sections):
    for of_group in sections.values():
        drawn = list(figures_of(of_group))[:2]
        assert [draw_figure(run, one.name).to_plotly_json().keys() for one in drawn] == [{"data", "layout"}] * len(
            drawn
        )


def test_an_analysis_and_a_statistic_name_their_first_figure(run):
    named = {"auroc": "separation.refusal", "gram": "gram.shape", "cosine_of_means": "curves.refusal.-1"}
    for name, figure in named.items():
        assert draw_figure(run, name).to_json() == draw_figure(run, figure).to_json()


def test_a_run_with_a_cache_draws_the_same_figures(run, sections):
    reader = open_run(run.store, run.id, Cache(10**8))
    for _ in range(2):
        assert [one.facts for one in sections_of(reader, "gram")] == [one.facts for one in sections["gram"]]
    assert draw_figure(reader, "gram.shape").to_json() == draw_figure(run, "gram.shape").to_json()


def test_rows_of_tables_have_one_cell_for_each_column(sections):
    tables = [table for of_group in sections.values() for section in of_group for table in section.tables]
    assert tables
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)


@each(
    "name, message",
    [
        ("gram.x", "it has gram.shape, gram.blocks, gram.cka.harmful"),
        ("heads.qk.leading", "it has figures of separation, curves, directions, gram, travel"),
        ("", "it has figures of separation"),
        ("../gram.shape", "it has figures of separation"),
        ("curves.x", "it has curves.refusal.-1"),
    ],
)
def test_the_error_for_an_unknown_figure_lists_the_existing_figures(run, name, message):
    with pytest.raises(FigureNotFoundError, match=f"tiny-0 has no figure .*{message}"):
        draw_figure(run, name)


def test_the_report_shows_the_sections(run, sections):
    write_report(run)
    with open(run.report, encoding="utf-8") as file:
        page = file.read()
    for of_group in sections.values():
        for section in of_group:
            assert section.title.split(",")[0] in page
            assert all(figure.caption.split(";")[0] in page for figure in section.figures)
