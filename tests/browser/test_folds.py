"""Nothing is lost in a fold: each sentence, note, figure and table of each section is on the page and in the report."""

import html
import re

import pytest
from markupsafe import escape
from support.browsing import settle, unfold

from theodolite.sections.catalogue import section_items, shown_groups
from theodolite.sections.conclusion import read_conclusion
from theodolite.store.runs import open_run
from theodolite_jobs.report.page import render_report

pytestmark = pytest.mark.browser

TABLES = """Object.fromEntries([...document.querySelectorAll('[role=region] table')].map(table => [
  table.parentNode.getAttribute('aria-label'), [...table.querySelectorAll('th, td')].map(cell => cell.textContent),
]))"""
"""The cells of each table, by its caption."""

ONE_AT_A_TIME = ("curves", "heads")
"""The analyses whose figures are chosen from a menu on the page."""


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().casefold()


def cells_of(table: dict) -> list[str]:
    return [str(cell) for row in (table["columns"], *table["rows"]) for cell in row]


def sentences_of(section: dict) -> list[str]:
    return [section["title"], *section["facts"], *section["notes"], section["how_to_read"], section["headline"]]


def test_each_section_unfolds_on_the_page_and_shows_one_figure_first(page, address, store):
    run = open_run(*store)
    for group in shown_groups(run):
        page.goto(f"{address}/#/runs/{store[1]}/{group}")
        settle(page)
        sections = section_items(run, group)
        drawn_first = page.locator("#panel figure:visible").count()
        assert drawn_first <= len(sections) + (group == "heads"), f"{group}: also the card of a head"
        visible = page.locator("#panel").inner_text()
        assert not any(fact in visible for section in sections for fact in section["facts"]), group
        unfold(page)
        text, cells = plain(page.locator("#panel").text_content() or ""), page.evaluate(TABLES)
        menu = page.locator("#heads-map option").all_inner_texts() if group == "heads" else []
        named = {*page.locator("figcaption h3").all_inner_texts(), *menu}
        for section in sections:
            for sentence in sentences_of(section):
                assert plain(sentence) in text, f"{group}: {sentence}"
            for figure in [*section["figures"], *section["maps"]]:
                assert figure["caption"] in named or figure["name"].endswith(".sphere"), f"{group}: {figure['name']}"
            for table in section["tables"]:
                assert cells[table["caption"]] == cells_of(table), f"{group}: {table['caption']}"


def test_the_report_has_every_sentence_figure_and_table(store):
    run = open_run(*store)
    report = re.sub(r">\s+<", "><", re.sub("<script.*?</script>", "", render_report(run), flags=re.DOTALL))
    text = plain(html.unescape(re.sub("<[^>]+>", "", report)))
    figures = set(re.findall(r'data-figure="([^"]+)"', report))
    found = read_conclusion(run)
    asked = [*found.asked, *(finding.text for finding in found.found), *found.rests_on, *found.limits]
    for sentence in asked:
        assert plain(sentence) in text, sentence
    for group in shown_groups(run):
        for section in section_items(run, group):
            for sentence in sentences_of(section):
                assert plain(sentence) in text, f"{group}: {sentence}"
            assert {figure["name"] for figure in [*section["figures"], *section["maps"]]} <= figures, group
            for table in section["tables"]:
                rows = "".join(f"<td>{escape(cell)}</td>" for cell in cells_of(table)[len(table["columns"]) :])
                assert rows in report.replace("</tr><tr>", ""), f"{group}: {table['caption']}"
