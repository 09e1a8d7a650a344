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
    expect(page.get_by_label("Condition on layer")).to_have_value("many")
    page.get_by_label("Condition on layer").fill("3")
    page.get_by_label("Condition on layer").press("Enter")
    settle(page)
    assert {row[0] for row in shown(page)} == {"3"}
    page.get_by_role("button", name="Remove all conditions").click()
    settle(page)
    assert len(shown(page)) == 100
    noise.clear()  # the browser reports the refused request


def test_conditions_on_texts_stay_as_they_are_in_their_field(page, address, store):
    tokens = read_finished_table(open_run(*store), "head_tokens")["token"]
    condition = quote(f'token="{tokens[0]}"')
    page.goto(f"{address}/#/runs/{store[1]}/tables?table=head_tokens&where={condition}")
    settle(page)
    field = page.get_by_label("Condition on token", exact=True)
    expect(field).to_have_value(f'="{tokens[0]}"')
    expect(page.get_by_role("tabpanel")).to_contain_text(f"{(tokens == tokens[0]).sum():,} rows pass the conditions.")
    for typed, condition in (("<|im", "token~<|im"), ("~=x", "token~=x"), ('"a & b"', 'token~"a & b"')):
        field.fill(typed)
        field.press("Enter")
        holds(page, f"where={quote(condition, safe='*').replace('%20', '+').replace('~', '%7E')}")
        settle(page)
        expect(field).to_have_value(typed)
        expect(field).to_be_focused()


def test_spaces_at_the_beginning_of_a_text_are_shown(page, address, store):
    def with_space(route):
        answer = route.fetch()
        content = answer.json()
        content["items"][0]["token"] = "  king"
        route.fulfill(response=answer, json=content)

    page.route("**/tables/head_tokens?**", with_space)
    page.goto(f"{address}/#/runs/{store[1]}/tables?table=head_tokens")
    expect(page.locator("table.browsed tbody tr").first).to_contain_text("␣␣king")


def test_the_head_of_a_column_keeps_the_focus(page, address, store):
    for path in (f"runs/{store[1]}/tables?table=growth", "runs"):
        page.goto(f"{address}/#/{path}")
        settle(page)
        head = page.locator("th button.quiet").nth(1)
        head.press("Enter")
        settle(page)
        expect(page.locator("th button.quiet").nth(1)).to_be_focused()


def test_a_file_has_the_name_of_the_table_that_was_shown(page, address, store):
    page.goto(f"{address}/#/runs/{store[1]}/tables?table=head_tokens")
    settle(page)

    def choose_another(route):
        page.get_by_label("table", exact=True).select_option("growth")
        route.continue_()

    page.route("**/tables/head_tokens", choose_another)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download Parquet").click()
    assert download.value.suggested_filename == f"{store[1]}.head_tokens.parquet"


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
