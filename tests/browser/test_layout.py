"""The layout of the page in a real browser: wide and narrow, light and dark, and for screen readers."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from support.browsing import OVERLAPS, opened, settle, unfold
from support.nightly import at_night

pytestmark = pytest.mark.browser


@pytest.mark.nightly  # test_switches.py looks at a phone by day
@pytest.mark.parametrize("width", [400, 820, 1280])
def test_names_of_lines_and_legends_cover_nothing(page, address, store, width):
    page.set_viewport_size({"width": width, "height": 800})
    for view in ("curves", "separation", "gram", "travel", "sphere"):
        page.goto(f"{address}/#/runs/{store[1]}/{view}")
        settle(page)
        assert page.evaluate(OVERLAPS) == 0, view


def test_the_page_fits_a_phone(page, address, store):
    page.set_viewport_size({"width": 400, "height": 800})
    for view in ("", "/prompts?prompt=1", "/heads", "/tables"):  # test_switches.py has the other views
        page.goto(f"{address}/#/runs/{store[1]}{view}")
        settle(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        unfold(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        expect(page.locator("#runs")).to_be_hidden()
    page.get_by_role("button", name="Runs").click()
    page.locator("#runs a", has_text="tiny").first.click()
    expect(page.locator("main h1")).to_have_text("tiny")
    expect(page.locator("#runs")).to_be_hidden()


OF_RUN = {
    "light": ("", "/curves", "/heads", "/gram"),
    "dark": ("", "/heads", "/separation", "/prompts?prompt=1", "/words", "/tables"),
}
OF_STORE = {"light": ("compare?run=tiny-0&run=tiny-1", "jobs"), "dark": ("new", "runs")}
NIGHTLY = {"light": OF_STORE["dark"], "dark": OF_STORE["light"]}


@pytest.mark.parametrize(("scheme", "views"), [*OF_STORE.items(), *at_night(NIGHTLY.items())])
def test_views_pass_the_rules_of_accessibility(page, address, store, scheme, views):
    of_run = [f"runs/{store[1]}{view}" for view in OF_RUN[scheme]] if views == OF_STORE[scheme] else []
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    for place in (*of_run, *views):
        page.goto(f"{address}/#/{place}")
        settle(page)
        found = Axe().run(page)
        assert found.violations_count == 0, f"{place}: {found.generate_report()}"
        assert page.locator("h1").count() == 1
        if place in of_run[:1]:
            unfold(page)
            found = Axe().run(page)
            assert found.violations_count == 0, f"{place}, unfolded: {found.generate_report()}"


def test_little_is_sent_until_the_first_picture(browser, noise, address, store):
    with opened(browser, noise) as page:
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        sent: list[float] = []
        session.on("Network.loadingFinished", lambda event: sent.append(event["encodedDataLength"]))
        page.goto(f"{address}/#/runs/{store[1]}")
        page.wait_for_selector("main .overview svg")
        settle(page)
    assert sum(sent) < 6 * 2**20
    assert noise == []


def test_the_user_chooses_the_colours_and_figures_follow(page, address):
    ink = "getComputedStyle(document.querySelector('main .js-plotly-plot .ytick text')).fill"
    page.emulate_media(color_scheme="light")
    page.goto(f"{address}/#/runs/tiny-0/curves")
    settle(page)
    assert page.evaluate(ink) == "rgb(29, 33, 39)"
    page.get_by_role("button", name="Dark", exact=True).click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.wait_for_function(f"{ink} === 'rgb(230, 233, 238)'")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="Light", exact=True).click()
    assert page.evaluate("localStorage.length") == 0  # the choice is that of the system again
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
