"""The tables of a run in a real browser: pages, conditions, orders, files, and links to heads."""

from urllib.parse import quote

import pandas as pd
import pytest
from playwright.sync_api import expect
from support.browsing import holds, settle

from theodolite.store.result_reader import read_finished_table
from theodolite.store.runs import open_run

pytestmark = pytest.mark.browser


def shown(page):
    """Return the texts of the shown rows."""
    return [row.inner_text().split("\t") for row in page.locator("table.browsed tbody tr").all()]


def test_a_table_is_paged_selected_and_ordered(page, address, store):
    table = read_finished_table(open_run(*store), "head_tokens")
    page.goto(f"{address}/#/runs/{store[1]}/tables")
    settle(page)
    page.get_by_label("table", exact=True).select_option("head_tokens")
    holds(page, "table=head_tokens")
    settle(page)
    expect(page.get_by_role("tabpanel")).to_contain_text(f"{len(table):,} rows.")
    assert len(shown(page)) == 100
    page.get_by_role("button", name="Next page").click()
    settle(page)
    assert [row[0] for row in shown(page)] == [str(layer) for layer in table["layer"][100:200]]
    page.get_by_label("Condition on layer").fill("2")
    page.get_by_label("Condition on layer").press("Enter")
    holds(page, "where=layer%3D2")
    settle(page)
    page.get_by_label("Condition on circuit").fill("=vo")
    page.get_by_label("Condition on circuit").press("Enter")
    settle(page)
    page.get_by_role("button", name="score", exact=True).click()
    holds(page, "order=score")
    settle(page)
    page.get_by_role("button", name="score").click()
    holds(page, "order=-score")
    settle(page)
    wanted = table[(table["layer"] == 2) & (table["circuit"] == "vo")].sort_values("score", ascending=False)
    expect(page.get_by_role("tabpanel")).to_contain_text(f"{len(wanted):,} rows pass the conditions.")
    column = list(table.columns).index("score")
    numbers = [float(row[column]) for row in shown(page)]
    assert numbers == pytest.approx(wanted["score"][:100].tolist(), rel=1e-4)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    saved = pd.read_csv(download.value.path(), keep_default_na=False)
    assert download.value.suggested_filename == f"{store[1]}.head_tokens.csv"
    assert saved["token"].tolist() == wanted["token"].tolist()


def test_a_condition_that_does_not_fit_says_so(page, address, store, noise):
    page.goto(f"{address}/#/runs/{store[1]}/tables?table=head_tokens&where={quote('layer=many')}")
    expect(page.get_by_role("alert")).to_contain_text("layer contains numbers, and 'many' is none")
    page.get_by_role("button", name="Remove all conditions").click()
    settle(page)
    assert len(shown(page)) == 100
    noise.clear()  # the browser reports the refused request


def test_heads_in_tables_and_sentences_are_links_to_their_cards(page, address, store):
    page.goto(
        f"{address}/#/runs/{store[1]}/tables?table=head_tokens&where={quote('circuit=vo')}&where={quote('layer=3')}"
    )
    settle(page)
    page.locator("table.browsed tbody a").first.click()
    holds(page, "heads?circuit=vo&layer=3&head=0")
    expect(page.locator("#card-name")).to_have_text("L3H0, VO circuit")
    settle(page)
    expect(page.locator("#card-name")).to_be_in_viewport()
    page.goto(f"{address}/#/runs/{store[1]}/heads")
    settle(page)
    link = page.locator(".sentences a").first
    name = link.inner_text()
    link.click()
    expect(page.locator("#card-name")).to_contain_text(f"{name}, ")
