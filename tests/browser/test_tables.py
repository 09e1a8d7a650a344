"""The tables of a run in a real browser: pages, conditions, orders, files, and links to heads."""

from urllib.parse import quote

import pandas as pd
import pytest
from playwright.sync_api import expect
from support.browsing import holds, settle, unfold
from support.nightly import at_night

from theodolite.store.result_reader import read_finished_table
from theodolite.store.runs import open_run

pytestmark = pytest.mark.browser


def shown(page):
    """Return the texts of the shown rows."""
    return [row.inner_text().split("\t") for row in page.locator("table.browsed tbody tr").all()]


def conditions_of(page):
    """Return the conditions in the address."""
    return page.evaluate("new URLSearchParams(location.hash.split('?')[1]).getAll('where')")


def test_a_table_is_paged_selected_and_ordered(page, address, store):
    table = read_finished_table(open_run(*store), "head_tokens")
    page.goto(f"{address}/#/runs/{store[1]}/tables")
    settle(page)
    page.get_by_label("table", exact=True).select_option("head_tokens")
    holds(page, "table=head_tokens")
    settle(page)
    expect(page.get_by_role("tabpanel")).to_contain_text(f"{len(table):,} rows.")
    page.locator("details.meaning summary").click()
    expect(page.locator("details.meaning dd").first).to_have_text("0-based index of the block.")
    assert len(shown(page)) == 100
    page.get_by_role("button", name="Next page").click()
    settle(page)
    assert [row[0] for row in shown(page)] == [str(layer) for layer in table["layer"][100:200]]
    page.get_by_label("Condition on layer").fill("2")
    page.get_by_label("Condition on layer").press("Enter")
    holds(page, "where=layer%3D2")
    settle(page)
    expect(page.get_by_label("Condition on layer")).to_be_focused()
    page.get_by_label("Condition on circuit").fill("=ov")
    page.get_by_label("Condition on circuit").press("Enter")
    settle(page)
    page.get_by_role("button", name="score", exact=True).click()
    holds(page, "order=score")
    settle(page)
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("score ▲")
    page.get_by_role("button", name="score").press("Enter")
    holds(page, "order=-score")
    settle(page)
    expect(page.locator("#order-score")).to_be_focused()
    wanted = table[(table["layer"] == 2) & (table["circuit"] == "ov")].sort_values("score", ascending=False)
    expect(page.get_by_role("tabpanel")).to_contain_text(f"{len(wanted):,} rows pass the conditions.")
    column = list(table.columns).index("score")
    numbers = [float(row[column]) for row in shown(page)]
    assert numbers == pytest.approx(wanted["score"][:100].tolist(), rel=1e-4)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    saved = pd.read_csv(download.value.path(), keep_default_na=False)
    assert download.value.suggested_filename == f"{store[1]}.head_tokens.csv"
    assert saved["token"].tolist() == wanted["token"].tolist()


def test_a_condition_that_does_not_fit_is_corrected_in_its_field(page, address, store, noise):
    page.goto(f"{address}/#/runs/{store[1]}/tables?table=head_tokens&where={quote('circuit=ov')}")
    settle(page)
    field = page.get_by_label("Condition on layer")
    field.fill("many")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("layer contains numbers, and 'many' is none")
    settle(page)
    expect(field).to_be_focused()
    expect(field).to_have_value("many")
    expect(page.get_by_label("Condition on circuit")).to_have_value("=ov")
    assert shown(page) == []
    field.fill("1")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_have_count(0)
    settle(page)
    assert {row[0] for row in shown(page)} == {"1"}
    page.get_by_role("button", name="Remove all conditions").click()
    settle(page)
    assert len(shown(page)) == 100
    noise.clear()  # the browser reports the refused request


@pytest.mark.parametrize(
    ("condition", "field", "edited"),
    [
        ("token~=x", "~=x", "token~=xx"),
        ("token=the ", '="the "', None),
        ('token="', '=""""', None),
        ("layer<=3", "<=3", "layer<=3x"),
        *at_night(
            [
                ("token~<|im_start|>", "<|im_start|>", "token~<|im_start|>x"),
                ("token~a & b", '"a & b"', None),
                ('token=" the"', '=" the"', None),
                ("token~", "~", "token~x"),
            ]
        ),
    ],
)
def test_a_condition_survives_its_field(page, address, store, noise, condition, field, edited):
    page.goto(f"{address}/#/runs/{store[1]}/tables?table=head_tokens&where={quote(condition)}")
    settle(page)
    own = page.get_by_label(f"Condition on {condition[:5]}", exact=True)
    expect(own).to_have_value(field)
    count = page.get_by_role("tabpanel").get_by_role("status")
    rows = count.all_inner_texts()
    own.dispatch_event("change")  # as a user who leaves the field with the same text
    settle(page)
    expect(own).to_have_value(field)
    assert count.all_inner_texts() == rows
    if edited:
        own.fill(f"{field}x")
        own.press("Enter")
        settle(page)
        assert conditions_of(page) == [edited]
    noise.clear()  # <=3x has no number


def test_conditions_on_one_column_are_joined(page, address, store):
    page.goto(f"{address}/#/runs/{store[1]}/tables?table=head_tokens")
    settle(page)
    page.get_by_label("Condition on layer").fill(">0 & <3")
    page.get_by_label("Condition on layer").press("Enter")
    settle(page)
    page.get_by_label("Condition on token", exact=True).fill('"a" & !="a & b"')
    page.get_by_label("Condition on token", exact=True).press("Enter")
    settle(page)
    wanted = ["layer>0", "layer<3", 'token~"a"', 'token!="a & b"']
    assert conditions_of(page) == wanted
    expect(page.get_by_label("Condition on layer")).to_have_value(">0 & <3")
    expect(page.get_by_label("Condition on token", exact=True)).to_have_value('a & !="a & b"')
    assert all("a" in row[4].lower() and row[0] in "12" for row in shown(page))


def test_a_column_of_booleans_is_selected_by_its_values(page, address, store):
    table = read_finished_table(open_run(*store), "trajectories")
    page.goto(f"{address}/#/runs/{store[1]}/tables?table=trajectories")
    settle(page)
    field = page.get_by_label("Condition on next_is_special")
    expect(field).to_have_attribute("placeholder", "true or false")
    field.fill("true")
    field.press("Enter")
    holds(page, "where=next_is_special%3Dtrue")
    expect(page.get_by_role("tabpanel")).to_contain_text(f"{table['next_is_special'].sum()} rows pass the conditions.")


def test_spaces_at_the_start_of_texts_are_shown_and_links_of_heads_have_the_offset(page, address, store):
    columns = {"layer": "number", "head": "number", "offset": "number", "token": "text"}
    items = [
        {"layer": 1, "head": 2, "offset": 3, "token": "  the cat"},
        {"layer": 1, "head": -1, "offset": 3, "token": ""},  # the embedding, which has no card
    ]
    answer = {"columns": columns, "items": items, "total": 2, "next": None}
    page.route("**/tables/head_tokens*", lambda route: route.fulfill(json=answer))
    page.goto(f"{address}/#/runs/{store[1]}/tables?table=head_tokens")
    settle(page)
    assert [row[3] for row in shown(page)] == ["␣␣the cat", ""]
    expect(page.get_by_title("Each ␣ is a space at the start of the text")).to_have_count(1)
    link = page.locator("table.browsed tbody a")
    expect(link).to_have_count(1)
    assert link.get_attribute("href") == f"#/runs/{store[1]}/heads?layer=1&head=2&offset=3"


def test_a_file_has_the_name_of_its_table_though_another_is_chosen_meanwhile(page, address, store):
    held = []
    page.route(
        "**/tables/head_tokens*",
        lambda route: held.append(route) if route.request.headers["accept"] == "text/csv" else route.continue_(),
    )
    page.goto(f"{address}/#/runs/{store[1]}/tables?table=head_tokens&where={quote('layer=1')}")
    settle(page)
    with page.expect_request(lambda request: request.headers.get("accept") == "text/csv"):
        page.get_by_role("button", name="Download CSV").click()
    page.get_by_label("table", exact=True).select_option("trajectories")
    holds(page, "table=trajectories")
    settle(page)
    with page.expect_download() as download:
        held[0].continue_()
    assert download.value.suggested_filename == f"{store[1]}.head_tokens.csv"


def test_heads_in_tables_and_sentences_are_links_to_their_cards(page, address, store):
    page.goto(
        f"{address}/#/runs/{store[1]}/tables?table=head_tokens&where={quote('circuit=ov')}&where={quote('layer=3')}"
    )
    settle(page)
    page.locator("table.browsed tbody a").first.click()
    holds(page, "heads?circuit=ov&layer=3&head=0")
    expect(page.locator("#card-name")).to_have_text("L3H0, OV circuit")
    settle(page)
    expect(page.locator("#card-name")).to_be_in_viewport()
    page.goto(f"{address}/#/runs/{store[1]}/heads")
    settle(page)
    unfold(page)
    link = page.locator(".sentences a").first
    name = link.inner_text()
    link.click()
    expect(page.locator("#card-name")).to_contain_text(f"{name}, ")
