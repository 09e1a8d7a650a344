"""The report in a real browser: it opens offline, draws what is seen, and makes no noise."""

import re
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from support.analysing import analyse
from support.browsing import opened
from support.stored import store_run
from support.tiny_survey import save_model, spec_of

from theodolite.settings import Settings
from theodolite_jobs.progress import Console
from theodolite_jobs.report.page import PLANE, write_report
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.browser

OPENED = "for (const one of document.querySelectorAll('details')) one.open = true"
"""A report folds all but one figure of each analysis and one sentence of each section."""

DRAWN = ".figure .main-svg:first-child"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    rng = np.random.default_rng(0)
    arrays = {
        name: {site: (rng.normal(size=(8, 1, 4, 16)) + 2).astype(np.float32) for site in ("resid_pre", "resid_mid")}
        for name in ("bad", "good")
    }
    contrasts = {
        "refusal": {"positive": "bad", "negative": "good", "paired": True},
        "reversed": {"positive": "good", "negative": "bad", "paired": True},
    }
    run = store_run(tmp_path_factory.mktemp("report"), arrays, contrasts=contrasts)
    analyse(run, contrasts, None, lambda *_: None, requested={"separation"})
    write_report(run)
    return run.report


def test_the_report_draws_its_figures_offline_and_fits_a_phone(report, browser, noise):
    with opened(browser, noise, viewport={"width": 390, "height": 40000}, offline=True) as page:
        page.goto(f"file://{report}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.evaluate(OPENED)
        expect(page.locator(DRAWN)).to_have_count(page.locator("[data-figure]").count())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        content = page.content()
    assert content.count("data-figure=") >= 2
    for text in ("cosine of means", "95 % interval", "debiased", "bad", "its input, then after its attention"):
        assert text in content
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="', content)
    assert noise == []


def test_figures_are_drawn_when_they_are_seen(report, browser, noise):
    with opened(browser, noise, viewport={"width": 1280, "height": 300}) as page:
        page.goto(f"file://{report}")
        page.wait_for_function("globalThis.Plotly")
        last = page.locator("[data-figure]:visible").last
        assert last.locator(".main-svg").count() == 0
        last.scroll_into_view_if_needed()
        expect(last.locator(".main-svg").first).to_be_visible()
    assert noise == []


def test_a_report_starts_with_its_overview_and_folds_the_rest(report, browser, noise):
    with opened(browser, noise, viewport={"width": 1280, "height": 900}, offline=True) as page:
        page.goto(f"file://{report}")
        page.wait_for_function("globalThis.Plotly")
        assert page.locator(".overview .tile:visible").count() == 4
        text = page.locator("main").inner_text()
        assert len(text.split()) < 700
        for hidden in ("What it does not say", "Model revision", "The Fisher ratio there"):
            assert hidden not in text
        page.get_by_text("All findings, with what they rest on").click()
        expect(page.get_by_role("heading", name="What it does not say")).to_be_visible()
        axe = Axe().run(page, context=".overview")
    assert axe.violations_count == 0, axe.generate_report()
    assert noise == []


def test_the_first_contrast_has_figures_and_a_link_opens_those_of_others(report, browser, noise):
    with opened(browser, noise, viewport={"width": 1280, "height": 900}) as page:
        page.goto(f"file://{report}")
        page.wait_for_function("globalThis.Plotly")
        ids = page.locator("[data-figure]:visible").evaluate_all("all => all.map(one => one.id)")
        assert {"curves.refusal.-1", "separation.refusal"} <= set(ids)
        assert len({name.partition(".")[0] for name in ids}) == len(ids), ids
        (other,) = page.locator("#separation .headline").all()[1:]
        expect(other).to_be_visible()
        page.evaluate("location.hash = 'separation.reversed'")
        expect(page.locator("[id='separation.reversed'] .main-svg").first).to_be_in_viewport()
        assert set(page.evaluate("Object.keys(Plotly.PlotSchema.get().traces)")) >= PLANE
    assert noise == []


def test_paper_has_all_figures_and_sentences(report, browser, noise):
    with opened(browser, noise, viewport={"width": 1280, "height": 300}) as page:
        page.goto(f"file://{report}")
        page.wait_for_function("globalThis.Plotly")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        expect(page.locator(DRAWN)).to_have_count(page.locator("[data-figure]").count())
        assert page.locator("[data-figure]:visible").count() == page.locator("[data-figure]").count()
        for text in ("What it does not say", "Model revision", "The Fisher ratio there"):
            expect(page.get_by_text(text).first).to_be_visible()
        assert page.locator(".misplaced details[open]").count() == 0
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator("details[open]").count() == 0
    assert noise == []


def test_switches_change_the_axes_of_a_figure_and_a_term_leads_to_its_meaning(report, browser, noise):
    figure = "document.querySelector('[data-figure^=curves]')._fullLayout"
    with opened(browser, noise, viewport={"width": 1280, "height": 20000}) as page:
        page.goto(f"file://{report}")
        page.evaluate(OPENED)
        expect(page.locator(DRAWN)).to_have_count(page.locator("[data-figure]").count())
        controls = page.locator(".axes").filter(has_text="mean variance").first
        before = page.evaluate(f"{figure}.yaxis2.type")
        box = controls.get_by_label("mean variance")
        box.set_checked(not box.is_checked())
        page.wait_for_function(f"type => {figure}.yaxis2.type !== type", arg=before)
        controls.get_by_label("relative depth").check()
        page.wait_for_function(f"{figure}.xaxis3.title.text.startsWith('relative depth')")
        term = page.locator("a.term").first
        assert len(term.get_attribute("title") or "") > 20
        term.click()
        expect(page.locator(":target")).to_contain_text(term.get_attribute("title") or "")
    assert noise == []


def test_a_click_on_a_map_opens_the_card_of_that_head(tmp_path, browser, noise):
    """The map of an output opens the OV circuit; the card tells tokens on both sides."""
    weights = {"prompts": {}, "contrasts": {}, "capture": {}, "analyses": ["heads", "words"]}
    spec = spec_of(save_model(tmp_path / "llama"), **weights, heads={"vectors": 2}, words={"tokens": 3})
    run = survey(spec, Path(), Settings(store=str(tmp_path)), Console())
    with opened(browser, noise) as page:
        page.goto(f"file://{run.report}")
        card = page.locator("#card-name")
        expect(card).not_to_be_visible()
        page.locator("#heads summary", has_text="More figures").click()
        chosen = page.locator("[data-circuit=ov]").last
        chosen.scroll_into_view_if_needed()
        expect(chosen.locator(".main-svg").first).to_be_visible()
        chosen.evaluate("map => map.emit('plotly_click', {points: [{customdata: 'L4H3'}]})")
        expect(card).to_have_text("L4H3, OV circuit")
        expect(card).to_be_visible()
        widths = "one => [one.querySelector('.main-svg').clientWidth, one.clientWidth]"
        drawn, box = page.locator("#card-spectrum").evaluate(widths)
        assert 0 < drawn <= box
        assert page.locator("#card-tokens .token").count() >= 2 * 2 * 3
        expect(page.locator("#card-tokens")).to_contain_text("read from a token")
    assert noise == []
