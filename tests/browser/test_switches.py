"""The switches of figures in a real browser, on the page and in the report: logarithmic axes and relative depth."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from support.browsing import OVERLAPS, settle, unfold
from support.nightly import at_night

pytestmark = pytest.mark.browser

AXIS = "document.querySelector('main .js-plotly-plot')._fullLayout"


def test_switches_change_the_axes_and_stay_after_a_change_of_colours(page, address, store):
    page.emulate_media(color_scheme="light")
    page.goto(f"{address}/#/runs/{store[1]}/travel")
    settle(page)
    box = page.get_by_label("norm of the step").first
    before, was_checked = page.evaluate(f"{AXIS}.yaxis.type"), box.is_checked()
    assert before == ("log" if was_checked else "linear")
    box.set_checked(not was_checked)
    page.wait_for_function(f"type => {AXIS}.yaxis.type !== type", arg=before)
    assert page.evaluate(f"{AXIS}.xaxis2.tickvals[1]") == 1
    page.get_by_label("relative depth").first.check()
    page.wait_for_function(f"() => {AXIS}.xaxis2.title.text.startsWith('relative depth')")
    assert page.evaluate(f"{AXIS}.xaxis2.ticktext[1]") == "0.1"
    page.get_by_role("button", name="Dark", exact=True).click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    settle(page)
    assert page.evaluate(f"{AXIS}.yaxis.type") != before
    assert page.get_by_label("relative depth").first.is_checked()
    page.get_by_role("button", name="Light", exact=True).click()


def test_a_section_has_absolute_depth_and_a_comparison_relative_depth(page, address):
    title = "main .js-plotly-plot .xtitle"
    page.goto(f"{address}/#/runs/tiny-0/directions")
    settle(page)
    expect(page.locator(title).first).to_contain_text("layer (its input")
    page.get_by_label("relative depth").first.check()
    expect(page.locator(title).first).to_contain_text("relative depth")
    page.goto(f"{address}/#/compare?run=tiny-0&run=tiny-1")
    settle(page)
    expect(page.locator("main .js-plotly-plot .x2title").first).to_contain_text("relative depth")


@pytest.mark.parametrize("scheme", ["dark", *at_night(["light"])])
def test_figures_of_each_tab_fit_a_phone_and_pass_the_rules_of_accessibility(page, address, store, scheme):
    views = ("curves", "separation", "gram", "sphere", "travel", "weights", "words")
    page.set_viewport_size({"width": 400, "height": 800})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    for view in views:
        page.goto(f"{address}/#/runs/{store[1]}/{view}")
        settle(page)
        unfold(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        assert page.evaluate(OVERLAPS) == 0, view
        found = Axe().run(page)
        assert found.violations_count == 0, f"{view}: {found.generate_report()}"
