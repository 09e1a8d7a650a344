"""The page in a real browser, over a real service: every view, with mouse and keys, wide and narrow, light and dark."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from support.serving import captured_run, surveyed_run

from theodolite.api.credentials import create_credential
from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
THEODOLITE = str(Path(sys.executable).with_name("theodolite"))

HOSTILE = "</script><img src=x onerror=alert(1)>"
WORDY = {
    "name": HOSTILE,
    "model": {"id": "all-minilm-l6-v2"},
    "prompts": {
        "bad": {"source": "builtin:harmful", "limit": 6},
        "good": {"source": "builtin:harmless", "limit": 6},
    },
    "contrasts": {"refusal": {"positive": "bad", "negative": "good"}},
    "heads": {"vectors": 6},
    "words": {"tokens": 12, "sentences": [f"{HOSTILE} with one stone"]},
}
TABS = {
    "Overview": 1,
    "Curves": 1,
    "Separation": 3,
    "Shape and similarity": 4,
    "Sphere": 2,
    "Travel and growth": 2,
    "Weights": 4,
    "Heads": 8,
    "Words": 2,
}
"""Each tab, and how many figures it draws at least."""


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> tuple[str, str]:
    """A store with an encoder that has every result, two runs from random arrays and one that is not complete."""
    folder = tmp_path_factory.mktemp("page")
    wordy = survey(parse_spec(WORDY), Path(), Settings(store=str(folder)), Console())
    surveyed_run(folder, "tiny-0")
    surveyed_run(folder, "tiny-1", seed=1, n_layers=6)
    captured_run(folder, "tiny-2")
    return str(folder), wordy.id


@contextmanager
def served(store: str) -> Iterator[str]:
    """Serve a store as anybody would, and give the address."""
    command = [THEODOLITE, "serve", "--store", store, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        try:
            yield said.rpartition(" at ")[2].split()[0]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def address(store) -> Iterator[str]:
    with served(store[0]) as place:
        yield place


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI needs Chromium")
        pytest.skip("Chromium is not installed")
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield opened
        opened.close()


@pytest.fixture
def noise() -> list[str]:
    """Whatever a page complains of; a test that provokes something clears it."""
    return []


@pytest.fixture(scope="module")
def wide(browser) -> Iterator[BrowserContext]:
    """A window that several tests share, for the browser compiles Plotly anew in each."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(10_000)
    yield context
    context.close()


@pytest.fixture
def page(wide, noise) -> Iterator[Page]:
    page = wide.new_page()
    listen(page, noise)
    yield page
    page.close()
    assert noise == []


@contextmanager
def opened(browser: Browser, noise: list[str], **options) -> Iterator[Page]:
    context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
    context.set_default_timeout(10_000)
    page = context.new_page()
    listen(page, noise)
    yield page
    context.close()


def listen(page: Page, noise: list[str]) -> None:
    """Write down whatever a page complains of."""
    page.on("console", lambda said: noise.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("dialog", lambda dialog: noise.append(dialog.message))
    # Views that are left take back what they were still asking for.
    page.on(
        "requestfailed",
        lambda request: noise.append(request.url) if "ABORTED" not in (request.failure or "") else None,
    )


def settle(page: Page) -> None:
    """Wait until everything that was asked for is drawn."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    expect(page.locator("main h1")).to_have_count(1)
    expect(page.locator(".waiting, [aria-busy]")).to_have_count(0, timeout=20_000)


def drawn(page: Page) -> int:
    """Return how many figures have a drawing."""
    return page.evaluate(
        "[...document.querySelectorAll('main .js-plotly-plot')].filter(one => one.querySelector('svg, canvas')).length"
    )


def holds(page: Page, choice: str) -> None:
    """Wait until the address holds a choice."""
    expect(page).to_have_url(re.compile(re.escape(choice)))


def hash_of(page: Page) -> str:
    return page.evaluate("location.hash")


def test_a_run_of_heads_alone_has_an_overview(browser, noise, tmp_path):
    heads = {"model": {"id": "all-minilm-l6-v2"}, "prompts": {}, "analyses": ["heads"], "heads": {"vectors": 2}}
    run = survey(parse_spec(heads), Path(), Settings(store=str(tmp_path)), Console())
    with served(run.store) as place, opened(browser, noise) as page:
        page.goto(place)
        expect(page.locator("h1").last).to_contain_text("all-minilm-l6-v2")
        expect(page.get_by_text("dtype of weights", exact=True).first).to_be_visible()
        expect(page.get_by_role("heading", name="Provenance")).to_be_visible()
    assert noise == []


def test_the_page_opens_the_newest_run_and_every_tab_draws(page, address, store):
    page.goto(f"{address}/#/runs/{store[1]}")
    settle(page)
    assert page.get_by_role("tab").all_inner_texts() == list(TABS)
    for title, least in TABS.items():
        page.get_by_role("tab", name=title, exact=True).click()
        expect(page.get_by_role("tab", name=title, exact=True)).to_have_attribute("aria-selected", "true")
        settle(page)
        assert drawn(page) >= least, title
        assert page.get_by_role("tabpanel").inner_text().strip()
    page.goto(address)
    settle(page)
    assert hash_of(page).startswith("#/runs/")


def test_tabs_that_a_run_lacks_are_not_offered(page, address):
    page.goto(f"{address}/#/runs/tiny-0")
    settle(page)
    assert page.get_by_role("tab").all_inner_texts() == [
        "Overview",
        "Curves",
        "Separation",
        "Shape and similarity",
        "Travel and growth",
    ]
    page.goto(f"{address}/#/runs/tiny-0/heads")
    expect(page.get_by_role("tabpanel")).to_contain_text("no “heads”")


def test_arrow_keys_go_through_the_tabs_and_leave_no_step_for_back(page, address):
    page.goto(f"{address}/#/compare")
    settle(page)
    page.goto(f"{address}/#/runs/tiny-0")
    settle(page)
    page.get_by_role("tab", name="Overview").focus()
    for key, name in (("ArrowRight", "curves"), ("End", "travel"), ("ArrowRight", "overview"), ("ArrowLeft", "travel")):
        page.keyboard.press(key)
        expect(page.locator("[role=tab]:focus")).to_have_attribute("data-tab", name)
        expect(page.locator("[role=tab]:focus")).to_have_attribute("aria-selected", "true")
    settle(page)
    assert hash_of(page) == "#/runs/tiny-0/travel"
    page.go_back()
    assert hash_of(page) == "#/compare"
    settle(page)


def names_of_lines(page: Page) -> list[str]:
    return page.evaluate(
        "document.querySelector('main .js-plotly-plot').data"
        ".filter(line => line.visible === true && line.mode !== 'lines').map(line => line.name)"
    )


def test_switches_change_the_curves_and_the_address(page, address):
    page.goto(f"{address}/#/runs/tiny-0/curves")
    settle(page)
    assert set(names_of_lines(page)) == {
        f"{name}, {site}" for name in ("debiased", "plain", "harmful", "harmless") for site in ("pre", "mid")
    }
    page.get_by_label("mid").uncheck()
    holds(page, "site=resid_pre")
    settle(page)
    assert set(names_of_lines(page)) == {f"{name}, pre" for name in ("debiased", "plain", "harmful", "harmless")}
    page.get_by_label("harmful").uncheck()
    holds(page, "set=harmless")
    settle(page)
    assert "harmful, pre" not in names_of_lines(page)
    as_they_are = page.evaluate("document.querySelector('main .js-plotly-plot').data.map(line => line.y)")
    page.locator("#curves-sphere").check()
    holds(page, "sphere=1")
    expect(page.locator("figcaption")).to_contain_text("On the sphere")
    settle(page)
    assert page.evaluate("document.querySelector('main .js-plotly-plot').data.map(line => line.y)") != as_they_are
    page.get_by_label("position").select_option("-2")
    expect(page.locator("main h2")).to_contain_text("position -2")
    page.get_by_label("contrast").select_option("subject")
    expect(page.locator("main h2")).to_contain_text("subject: nouns against harmless")
    settle(page)
    assert "contrast=subject" in hash_of(page)
    assert {"nouns, pre", "harmless, pre"} <= set(names_of_lines(page))
    page.go_back()
    expect(page.locator("main h2")).to_contain_text("refusal: harmful against harmless, position -2")
    settle(page)


def test_an_address_shows_the_same_view_when_it_is_opened_directly(page, address):
    page.goto(f"{address}/#/runs/tiny-0/curves?contrast=refusal&position=-2&site=resid_mid&set=harmful&sphere=1")
    settle(page)
    expect(page.locator("main h2")).to_contain_text("position -2")
    expect(page.locator("#curves-sphere")).to_be_checked()
    assert set(names_of_lines(page)) == {"debiased, mid", "plain, mid", "harmful, mid"}


def test_a_click_or_enter_on_a_cell_opens_a_head_whose_tokens_are_told(page, address, store):
    page.goto(f"{address}/#/runs/{store[1]}/heads")
    settle(page)
    expect(page.locator("#card-name")).to_have_text("L0H0, QK circuit")
    cells = page.locator(".choosable .nsewdrag")
    box = cells.nth(1).bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 4.5 / 6 * box["width"], box["y"] + box["height"] * (1 - 7.5 / 12))
    expect(page.locator("#card-name")).to_have_text("L4H7, VO circuit")
    assert hash_of(page).endswith("heads?circuit=vo&layer=4&head=7")
    settle(page)
    expect(page.locator("#card-name")).to_be_focused()
    tokens = page.get_by_role("region", name="Tokens of the leading singular vectors of L4H7")
    assert tokens.locator(".token").count() == 5 * 2 * 2 * 10
    expect(tokens).to_contain_text("read from a token")
    page.get_by_role("button", name="Show all 6 vectors").click()
    assert tokens.locator(".token").count() == 6 * 2 * 2 * 12
    page.get_by_role("application").nth(0).focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    expect(page.locator("#card-name")).to_have_text("L2H1, QK circuit")
    page.get_by_label("head", exact=True).select_option("3")
    expect(page.locator("#card-name")).to_have_text("L2H3, QK circuit")
    settle(page)


def test_a_browser_without_webgl_is_told_in_words(browser, noise, address, store):
    with opened(browser, noise) as page:
        page.add_init_script("HTMLCanvasElement.prototype.getContext = () => null")
        page.goto(f"{address}/#/runs/{store[1]}/words")
        page.get_by_text("needs WebGL").wait_for()
    assert noise == []


def test_the_search_filters_by_model_name_contrast_and_id(page, address):
    page.goto(f"{address}/#/runs/tiny-0")
    settle(page)
    lines = page.locator("#runs a")
    found = {"": 4, "minilm": 1, "subject": 3, "TINY-1": 1, "onerror": 1, "captured": 1, "nobody": 0}
    for words, count in found.items():
        page.get_by_label("Search runs").fill(words)
        expect(lines).to_have_count(count)
    expect(page.locator("#run-count")).to_have_text("0 of 4 runs")


def test_a_run_that_is_not_complete_says_how_far_it_is(page, address, noise):
    page.goto(f"{address}/#/runs/tiny-0")
    settle(page)
    expect(page.locator("#runs a", has_text="captured")).to_have_count(1)
    page.goto(f"{address}/#/runs/tiny-2")
    expect(page.get_by_role("tabpanel")).to_contain_text("not complete but captured")
    expect(page.get_by_role("tabpanel")).to_contain_text("harmful 3 of 3")
    assert page.get_by_role("tab").all_inner_texts() == ["Overview"]


def test_runs_are_compared_and_a_set_is_asked_for_where_one_is_needed(page, address):
    page.goto(f"{address}/#/compare")
    expect(page.locator("main")).to_contain_text("Choose at least one run")
    page.get_by_label("tiny-0").check()
    page.get_by_label("tiny-1").check()
    holds(page, "run=tiny-0&run=tiny-1")
    settle(page)
    rows = page.get_by_role("region", name="Milestones of each run").locator("tbody tr")
    expect(rows.locator("th")).to_have_text([re.compile("tiny-0"), re.compile("tiny-1")])
    page.get_by_label("contrast").select_option("subject")
    page.get_by_label("statistic").select_option("variance_mean")
    holds(page, "statistic=variance_mean")
    page.get_by_label("set", exact=True).select_option("nouns")
    expect(page.locator("main")).to_contain_text("Mean over features of the variance")
    settle(page)
    assert drawn(page) == 1
    assert "set=nouns" in hash_of(page)


def test_figures_can_be_taken_away(page, address):
    page.goto(f"{address}/#/runs/tiny-0/curves")
    settle(page)
    with page.expect_download() as numbers:
        page.get_by_role("button", name="Data of").click()
    lines = Path(numbers.value.path()).read_text().splitlines()
    assert numbers.value.suggested_filename == "tiny-0.curves.refusal.-1.csv"
    assert lines[0] == "trace,x,y,label"
    assert any(line.startswith('"debiased, pre",0,') for line in lines)
    with page.expect_download() as picture:
        page.get_by_role("button", name="Picture of").click()
    assert picture.value.suggested_filename == "tiny-0.curves.refusal.-1.svg"
    assert "<svg" in Path(picture.value.path()).read_text()


def test_a_bad_spec_is_refused_in_words(page, address, noise):
    page.goto(f"{address}/#/new")
    text, problem = page.locator("#spec-text"), page.locator("#spec-problem")
    page.locator("#check-spec").click()
    expect(page.locator("#spec-answer")).to_contain_text("valid survey")
    text.fill('{"model": ')
    page.locator("#check-spec").click()
    expect(problem).to_contain_text("not JSON")
    assert noise == []
    text.fill(json.dumps({"model": {"id": "smollm2-135m-instruct"}, "prompts": 3}))
    page.locator("#check-spec").click()
    expect(problem).to_contain_text("prompts: given 3")
    expect(text).to_have_attribute("aria-invalid", "true")
    text.fill(json.dumps({"model": {"id": "smollm2-135m-instruct"}, "prompts": {"a": {"source": "builtin:nouns"}}}))
    page.locator("#submit-spec").click()
    expect(problem).to_contain_text("no cluster")
    expect(problem).to_have_attribute("role", "alert")
    noise.clear()  # the browser itself writes down that it was refused
    page.get_by_role("link", name="Jobs").click()
    expect(page.locator("main")).to_contain_text("No survey job was submitted")


def test_texts_of_a_survey_are_shown_as_text(page, address, store):
    page.goto(f"{address}/#/runs/{store[1]}")
    settle(page)
    expect(page.locator("main .lead")).to_contain_text(HOSTILE)
    expect(page.locator("#runs")).to_contain_text(HOSTILE)
    expect(page.locator("#spec pre")).to_contain_text(HOSTILE)
    page.get_by_role("tab", name="Words").click()
    settle(page)
    expect(page.locator("main h2").first).to_contain_text(HOSTILE)
    assert page.locator("img[src=x]").count() == 0


def test_an_unknown_run_or_view_is_said_in_place(page, address, noise):
    page.goto(f"{address}/#/runs/nobody-0")
    expect(page.get_by_role("alert").filter(has_text="nobody-0")).to_be_visible()
    noise.clear()
    page.goto(f"{address}/#/nowhere")
    expect(page.locator("main h1")).to_have_text("View not found")


def test_an_empty_store_says_what_to_do(browser, noise, tmp_path):
    (tmp_path / "runs").mkdir()
    with served(str(tmp_path)) as place, opened(browser, noise) as page:
        page.goto(place)
        expect(page.locator("main h1")).to_have_text("No surveys yet")
        expect(page.locator("main")).to_contain_text("theodolite survey survey.yaml")
    assert noise == []


def test_a_token_is_asked_for_and_stays_out_of_addresses(browser, noise, tmp_path):
    surveyed_run(tmp_path, "tiny-0")
    token, _ = create_credential(str(tmp_path), ["read"])
    with served(str(tmp_path)) as place, opened(browser, noise) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{place}/#/runs/tiny-0")
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("needs a bearer token")
        dialog.get_by_label("Bearer token").fill("theodolite_wrong")
        dialog.get_by_label("Bearer token").press("Enter")
        expect(dialog).to_contain_text("unknown to this service")
        dialog.get_by_label("Bearer token").fill(token)
        dialog.get_by_role("button", name="Use this token").click()
        expect(page.locator("main h1")).to_have_text("tiny")
        settle(page)
        assert drawn(page) == 1
        page.get_by_role("link", name="New survey").click()
        page.locator("#submit-spec").click()
        expect(page.locator("#spec-problem")).to_contain_text("needs the scope submit")
        page.reload()
        expect(page.locator("#runs a")).to_have_count(1)
        assert not any(token in url for url in asked)
        assert token not in page.content()
        assert page.evaluate("localStorage.length") == 0
        page.get_by_role("button", name="Bearer token").click()
        dialog.get_by_role("button", name="Remove").click()
        expect(dialog.get_by_role("heading")).to_have_text("This service needs a bearer token")
        expect(page.locator("#token-reason")).to_have_text("")
        dialog.get_by_role("button", name="Cancel").click()
        expect(page.locator("#runs [role=alert]")).to_contain_text("needs a token")
    assert all("401" in said or "403" in said for said in noise), noise


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


def test_the_page_fits_a_phone(browser, noise, address, store):
    with opened(browser, noise, viewport={"width": 400, "height": 800}) as page:
        for view in ("", "/curves", "/separation", "/gram", "/travel", "/heads", "/words"):
            page.goto(f"{address}/#/runs/{store[1]}{view}")
            settle(page)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
            expect(page.locator("#runs")).to_be_hidden()
        page.get_by_role("button", name="Runs").click()
        page.locator("#runs a", has_text="tiny").first.click()
        expect(page.locator("main h1")).to_have_text("tiny")
        expect(page.locator("#runs")).to_be_hidden()
    assert noise == []


VIEWS = {"light": ("", "/curves", "/heads"), "dark": ("", "/words")}


@pytest.mark.parametrize("scheme", VIEWS)
def test_views_pass_the_rules_of_accessibility(browser, noise, address, store, scheme):
    runs = [f"#/runs/{store[1]}{view}" for view in VIEWS[scheme]]
    with opened(browser, noise, color_scheme=scheme, reduced_motion="reduce") as page:
        for place in [*runs, "#/compare?run=tiny-0&run=tiny-1", "#/jobs", "#/new"]:
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
