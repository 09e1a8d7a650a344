"""Check which sets are marked, because their measured position is the first token of the sequence."""

from dataclasses import replace

import pytest
from support.analysing import survey_basis
from support.each import each
from support.sentences import assert_says
from support.serving import surveyed_run

from theodolite.query.first_tokens import is_first_token, n_first_tokens, set_labels
from theodolite.query.runs import describe
from theodolite.sections.catalogue import draw_figure, sections_of
from theodolite.spec_options import GramSpec
from theodolite.store.cache import Cache
from theodolite.store.runs import Run

REMARK = "nouns (first token: an attention sink)"


def run_with(n_first: int, run: Run) -> Run:
    """Return the run with other tokens of the set `nouns`, six prompts at position -1."""
    facts = run.record.sets["nouns"].model_copy(update={"n_first": n_first})
    record = run.record.model_copy(update={"sets": {**run.record.sets, "nouns": facts}})
    return replace(run, record=record)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = surveyed_run(tmp_path_factory.mktemp("store"))
    survey_basis(run, GramSpec())
    return replace(run, cache=Cache(2**26))


@each(
    "n_first, marked",
    [
        (6, True),
        (4, True),
        (3, False),  # half is not most
        (0, False),
    ],
)
def test_a_set_is_marked_if_most_of_its_prompts_have_no_earlier_token(run, n_first, marked):
    changed = run_with(n_first, run)
    assert n_first_tokens(changed, "nouns", -1) == n_first
    assert is_first_token(changed, "nouns", -1) is marked
    assert set_labels(changed, -1)["nouns"] == (REMARK if marked else "nouns")


def test_only_the_earliest_position_can_be_the_first_token(run):
    facts = run.record.sets["harmful"].model_copy(update={"n_first": 8})
    changed = replace(run, record=run.record.model_copy(update={"sets": {"harmful": facts}}))
    assert facts.positions == [-2, -1]
    assert n_first_tokens(changed, "harmful", -2) == 8
    assert n_first_tokens(changed, "harmful", -1) == 0


def test_sentences_titles_and_legends_mark_the_set(run):
    marked, plain = run_with(6, run), run_with(0, run)
    for group in ("curves", "separation", "gram", "travel", "basis"):
        texts = [
            " ".join([section.title, *section.facts, *(f"{table.caption} {table.note}" for table in section.tables)])
            for section in sections_of(marked, group)
        ]
        own = [text for text in texts if "nouns" in text]
        assert own
        assert all(text.count("nouns") == text.count(REMARK) for text in own), group
        assert not any("sink" in text for text in [s.title for s in sections_of(plain, group)])
    of_layers = ("gram.shape", "gram.blocks", "travel.steps", "travel.cosines")
    for figure in (*of_layers, "curves.subject.-1", "curves.subject.-1.sphere"):
        names = [trace.name for trace in draw_figure(marked, figure).data if trace.name]
        assert any(name.startswith(REMARK) for name in names), figure
        assert not any(name == "nouns" or name.startswith("nouns,") for name in names), figure
        assert not any("sink" in trace.name for trace in draw_figure(plain, figure).data if trace.name)
    titles = [axis.title.text for axis in draw_figure(marked, "travel.variance").select_yaxes()]
    assert "share, nouns<br>(first token: an attention sink)" in titles


def test_the_description_of_a_run_counts_the_prompts(run):
    (note,) = [note for note in describe(run_with(4, run))["notes"] if "sink" in note]
    assert_says(note, "position -1 … 4 of the 6 prompts … “nouns”")
    assert not any("sink" in note for note in describe(run_with(0, run))["notes"])
