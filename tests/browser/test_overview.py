"""The overview of a run in a real browser: its depth, its buttons, its folds, and a way back from other tabs."""

import re

import pytest
from playwright.sync_api import Page, expect
from support.browsing import drawn, hash_of, holds, settle, unfold

import theodolite
from theodolite.overview.facts import read_overview
from theodolite.store.runs import open_run

pytestmark = pytest.mark.browser


def shown_place(page: Page) -> tuple[str, str]:
    """Return the site and the layer of the shown picture."""
    at = page.locator(".overview").evaluate("one => [one.dataset.site, one.dataset.layer]")
    return at[0], at[1]


def click_at(page: Page, share: float) -> None:
    """Click into the largest chart, at a share of its width."""
    box = page.locator("[data-depths]").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


def test_a_depth_chosen_by_click_or_from_the_list_is_in_the_address_and_stays(page, address):
    page.goto(f"{address}/#/runs/tiny-0?contrast=subject")
    settle(page)
    expect(page.locator(".asked")).to_have_text("nouns against harmless")
    click_at(page, 5.2 / 7)  # the depths are 0 to 7
    holds(page, "contrast=subject&site=resid_mid&layer=2")
    settle(page)
    assert shown_place(page) == ("resid_mid", "2")
    expect(page.locator(".overview .at")).to_contain_text("held-out prompts at layer 2 mid")
    depth = page.get_by_label("depth", exact=True)
    expect(depth).to_have_value("resid_mid:2")
    depth.select_option(label="layer 1 pre")
    holds(page, "site=resid_pre&layer=1")
    settle(page)
    assert shown_place(page) == ("resid_pre", "1")
    page.get_by_role("tab", name="Prompts").click()
    holds(page, "/prompts?contrast=subject&site=resid_pre&layer=1")
    settle(page)
    expect(page.get_by_label("layer", exact=True)).to_have_value("1")
    expect(page.get_by_role("region", name="Prompts of nouns")).to_be_visible()
    page.get_by_role("tab", name="Separation").click()
    settle(page)
    expect(page.locator("main h2").first).to_contain_text("“subject” at position -1: 6 nouns and 9 harmless")
    page.locator("nav.parts").get_by_role("link", name="Directions").click()
    settle(page)
    page.get_by_role("tab", name="Overview").click()
    holds(page, "runs/tiny-0?contrast=subject&site=resid_pre&layer=1")
    settle(page)
    assert shown_place(page) == ("resid_pre", "1")
    page.get_by_role("navigation", name="Contrasts").get_by_role("link", name="refusal").click()
    settle(page)
    assert hash_of(page) == "#/runs/tiny-0?contrast=refusal"


def test_choices_of_other_tabs_that_are_no_depth_of_the_curves_are_not_kept(page, address, store):
    page.goto(f"{address}/#/runs/{store[1]}/heads?circuit=qk&layer=3&head=2")
    settle(page)
    page.get_by_role("tab", name="Overview").click()
    settle(page)
    assert hash_of(page) == f"#/runs/{store[1]}"
    for site, layer in (("attn_out", "1"), ("resid_mid", "99"), ("resid_mid", "x")):
        page.goto(f"{address}/#/runs/{store[1]}/directions?site={site}&layer={layer}")
        settle(page)
        assert page.get_by_role("tab", name="Overview").get_attribute("href") == f"#/runs/{store[1]}"


COPIED = "text => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }"
SELECTED = """() => {
  Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true });
  document.execCommand = () => { window.copied = document.activeElement.value; };
}"""


@pytest.mark.parametrize("prepared", [COPIED, SELECTED], ids=["clipboard", "without TLS"])
def test_a_copied_sentence_has_its_warnings_and_copied_python_shows_the_same(page, address, store, prepared):
    page.goto(f"{address}/#/runs/tiny-0?contrast=subject&site=resid_mid&layer=1")
    settle(page)
    page.evaluate(prepared)
    button = page.get_by_role("button", name="Copy sentence")
    button.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    overview = read_overview(open_run(store[0], "tiny-0"), "subject")
    warnings = [badge.label for badge in overview.badges if badge.is_warning]
    assert warnings == ["6 + 9 prompts", "no twin"]
    assert page.evaluate("window.copied") == f"{overview.sentence} (tiny, ⚠ 6 + 9 prompts, ⚠ no twin)"
    page.get_by_role("button", name="Copy Python").click()
    page.wait_for_function("window.copied.startsWith('import')")
    names = {"theodolite": theodolite}
    *before, last = page.evaluate("window.copied").replace("theodolite-store", store[0]).splitlines()
    exec("\n".join(before), names)
    picture = eval(last, names)
    assert (picture.contrast, picture.site, picture.layer) == ("subject", "resid_mid", 1)
    expect(button).to_have_text("Copy sentence")
    page.evaluate("delete navigator.clipboard; delete document.execCommand")


def test_the_picture_comes_first_and_everything_else_unfolds(page, address, store):
    page.goto(f"{address}/#/runs/{store[1]}")
    settle(page)
    assert page.locator(".tile").count() == 4
    assert drawn(page) == 0
    first = page.locator(".asked, .limit summary, .tile summary, .finding")
    assert len(" ".join(first.all_inner_texts()).split()) < 100
    text = page.locator("#panel").inner_text()
    for hidden in ("What it does not say", "Model revision", "dtype of statistics"):
        assert hidden not in text
    tile = page.locator(".tile").first
    expect(tile.locator("p")).not_to_be_visible()
    tile.locator("summary").press("Enter")
    expect(tile.locator("p")).to_be_visible()
    unfold(page)
    text = page.locator("#panel").inner_text()
    for shown in ("What was asked", "What was found", "What it does not say", "Model revision", "dtype of statistics"):
        assert shown in text
    expect(page.get_by_role("heading", name="Parity check")).to_be_visible()


def test_an_unknown_contrast_is_said_in_place_and_a_known_one_is_shown_again(page, address, noise):
    page.goto(f"{address}/#/runs/tiny-0?contrast=nobody")
    expect(page.get_by_role("alert")).to_contain_text("no 'nobody' with separation; it has refusal, subject")
    noise.clear()  # the browser reports the refused request
    page.goto(f"{address}/#/runs/tiny-0?contrast=subject")
    expect(page.locator(".asked")).to_have_text(re.compile("nouns"))
    settle(page)
