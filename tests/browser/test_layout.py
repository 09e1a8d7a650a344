"""The layout of the page in a real browser: wide and narrow, light and dark, and for screen readers."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from support.browsing import opened, settle

pytestmark = pytest.mark.browser

COVERED = """[...document.querySelectorAll('main .js-plotly-plot')].flatMap(figure => {
  const top = figure.getBoundingClientRect().top;
  const panels = Object.values(figure._fullLayout._plots)
    .map(({ yaxis }) => [yaxis._offset, yaxis._offset + yaxis._length]);
  return [...figure.querySelectorAll('.infolayer > [class^=legend]')].map(legend => legend.getBoundingClientRect())
    .filter(box => panels.some(([from, to]) => box.top - top < to - 1 && box.bottom - top > from + 1));
}).length"""
"""How many legends lie over a panel."""


def test_legends_lie_over_no_panel_wide_or_narrow(browser, noise, address, store):
    for width in (400, 820, 1280):
        with opened(browser, noise, viewport={"width": width, "height": 800}) as page:
            for view in ("curves", "separation", "gram", "travel", "sphere"):
                page.goto(f"{address}/#/runs/{store[1]}/{view}")
                settle(page)
                assert page.evaluate(COVERED) == 0, (width, view)
    assert noise == []


PHONE_VIEWS = ("", "/prompts?prompt=1", "/curves", "/separation", "/gram", "/travel", "/heads", "/words", "/tables")


def test_the_page_fits_a_phone(browser, noise, address, store):
    with opened(browser, noise, viewport={"width": 400, "height": 800}) as page:
        for view in PHONE_VIEWS:
            page.goto(f"{address}/#/runs/{store[1]}{view}")
            settle(page)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
            expect(page.locator("#runs")).to_be_hidden()
        page.get_by_role("button", name="Runs").click()
        page.locator("#runs a", has_text="tiny").first.click()
        expect(page.locator("main h1")).to_have_text("tiny")
        expect(page.locator("#runs")).to_be_hidden()
    assert noise == []


VIEWS = {"light": ("", "/curves", "/heads"), "dark": ("", "/prompts?prompt=1", "/words", "/tables")}


@pytest.mark.parametrize("scheme", VIEWS)
def test_views_pass_the_rules_of_accessibility(browser, noise, address, store, scheme):
    runs = [f"#/runs/{store[1]}{view}" for view in VIEWS[scheme]]
    with opened(browser, noise, color_scheme=scheme, reduced_motion="reduce") as page:
        for place in [*runs, "#/compare?run=tiny-0&run=tiny-1", "#/jobs", "#/new", "#/runs"]:
            page.goto(f"{address}/{place}")
            settle(page)
            found = Axe().run(page)
            assert found.violations_count == 0, f"{place}: {found.generate_report()}"
            assert page.locator("h1").count() == 1
    assert noise == []


def test_little_is_sent_until_the_first_picture(browser, noise, address, store):
    with opened(browser, noise) as page:
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        sent: list[float] = []
        session.on("Network.loadingFinished", lambda event: sent.append(event["encodedDataLength"]))
        page.goto(f"{address}/#/runs/{store[1]}")
        page.wait_for_selector("main .js-plotly-plot .main-svg")
        settle(page)
    assert sum(sent) < 6 * 2**20
    assert noise == []


def test_the_user_chooses_the_colours_and_figures_follow(browser, noise, address):
    ink = "getComputedStyle(document.querySelector('main .js-plotly-plot .ytick text')).fill"
    with opened(browser, noise, color_scheme="light") as page:
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
    assert noise == []
