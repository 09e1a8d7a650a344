"""Nothing that is known of a run is out of reach: each sentence, caveat, figure, table and array is on the page."""

import re
from pathlib import Path

import pytest
from support.browsing import settle, unfold

from theodolite.groups import GROUPS
from theodolite.sections.catalogue import sections_of
from theodolite.store.manifest import finished_groups
from theodolite.store.runs import open_run

pytestmark = pytest.mark.browser


def words(text):
    return re.sub(r"\W+", " ", text).casefold().strip()


def texts_of(section):
    """Return what a section states, without what its figures draw."""
    yield from (section.title, section.headline, section.how_to_read, *section.facts, *section.notes)
    yield from (figure.caption for figure in [*section.figures, *section.maps])
    for table in section.tables:
        yield from (table.caption, table.note, *table.columns, *(str(cell) for row in table.rows for cell in row))


def test_each_sentence_caveat_figure_and_table_is_on_its_tab(page, address, store):
    run = open_run(*store)
    shown = 0
    for group in sorted(finished_groups(run)):
        sections = sections_of(run, group) if GROUPS[group].chapter else []
        if not sections:
            continue
        page.goto(f"{address}/#/runs/{store[1]}/{group}")
        settle(page)
        unfold(page)
        there = words(page.locator("main").inner_text() + " " + " ".join(page.locator("main option").all_inner_texts()))
        missing = [text for section in sections for text in texts_of(section) if words(text) not in there]
        assert missing == [], group
        shown += sum(len(section.facts) + len(section.notes) for section in sections)
    assert shown > 50


def test_each_array_is_listed_and_those_along_depth_are_files(page, address, store):
    run = open_run(*store)
    page.goto(f"{address}/#/runs/{store[1]}/tables")
    settle(page)
    unfold(page)
    listed = page.locator("tbody th code").all_inner_texts()
    stored = [array.name for group in finished_groups(run) for array in GROUPS[group].variables]
    assert sorted(listed) == sorted(stored)
    buttons = page.get_by_role("button", name=re.compile(" as CSV$")).all()
    for button in buttons[:: max(1, len(buttons) // 6)]:
        with page.expect_download() as file:
            button.click()
        array = button.get_attribute("aria-label").removesuffix(" as CSV")
        assert file.value.suggested_filename == f"{store[1]}.{array}.csv"
        assert array in Path(file.value.path()).read_text().splitlines()[1]
