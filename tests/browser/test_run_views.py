"""The views of one run in a real browser: its tabs, curves, heads and figures, with mouse and keys."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from support.browsing import drawn, hash_of, holds, opened, settle, unfold
from support.encoder_run import HOSTILE
from support.listening import served
from support.short_reports import short_reports
from support.tiny_survey import save_model, spec_of

from theodolite.query.prompts import read_contrast_prompts, read_scored_prompts
from theodolite.settings import Settings
from theodolite.store.result_reader import read_group
from theodolite.store.runs import open_run
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.browser

TABS = {
    "Overview": [],
    "Prompts": [],
    "Separation": ["Separation", "Curves", "Directions"],
    "Components": ["Heads", "Weights"],
    "Geometry": ["Shape and similarity", "Sphere", "Travel and growth", "Layers as linear maps"],
    "Words": [],
    "Data": [],
}
"""Each tab of a run with every result, and the analyses that it lists, if there are several."""


def test_a_run_of_heads_alone_has_an_overview(browser, noise, tmp_path):
    heads = {"prompts": {}, "contrasts": {}, "capture": {}, "analyses": ["heads"], "heads": {"vectors": 2}}
    with short_reports():
        run = survey(spec_of(save_model(tmp_path / "llama"), **heads), Path(), Settings(store=str(tmp_path)), Console())
    with served(run.store) as place, opened(browser, noise) as page:
        page.goto(place)
        expect(page.locator("h1").last).to_contain_text("llama")
        expect(page.locator("main .plot")).to_have_count(1)
        settle(page)
        assert drawn(page) == 1
        unfold(page)
        expect(page.get_by_text("dtype of weights", exact=True).first).to_be_visible()
        expect(page.get_by_role("heading", name="Provenance")).to_be_visible()
    assert noise == []


def parts_of(page: Page) -> list[str]:
    """Return the analyses that the tab lists; none if it has one."""
    return page.locator("nav.parts:not([hidden]) a").all_inner_texts()


def test_the_page_opens_the_newest_run_with_a_tab_for_each_chapter(page, address, store):
    page.goto(f"{address}/#/runs/{store[1]}")
    settle(page)
    assert page.get_by_role("tab").all_inner_texts() == list(TABS)
    for title, parts in TABS.items():
        page.get_by_role("tab", name=title, exact=True).click()
        expect(page.get_by_role("tab", name=title, exact=True)).to_have_attribute("aria-selected", "true")
        settle(page)
        assert parts_of(page) == parts
        if parts:
            expect(page.locator("nav.parts [aria-current=page]")).to_have_text(parts[0])
    page.get_by_role("tab", name="Geometry").click()
    page.get_by_role("navigation", name="Analyses of this tab").get_by_role("link", name="Sphere").click()
    holds(page, f"/runs/{store[1]}/sphere")
    expect(page.locator("nav.parts [aria-current=page]")).to_have_text("Sphere")
    expect(page.get_by_role("tab", name="Geometry")).to_have_attribute("aria-selected", "true")
    settle(page)
    page.goto(address)
    settle(page)
    assert hash_of(page).startswith("#/runs/")


def test_tabs_that_a_run_lacks_are_not_offered(page, address):
    page.goto(f"{address}/#/runs/tiny-0")
    settle(page)
    assert page.get_by_role("tab").all_inner_texts() == ["Overview", "Prompts", "Separation", "Geometry", "Data"]
    page.get_by_role("tab", name="Geometry").click()
    settle(page)
    assert parts_of(page) == ["Shape and similarity", "Travel and growth"]
    page.goto(f"{address}/#/runs/tiny-0/heads")
    expect(page.get_by_role("tabpanel")).to_contain_text("no results of the analysis “heads”")


def test_arrow_keys_go_through_the_tabs_and_leave_no_step_for_back(page, address):
    page.goto(f"{address}/#/compare")
    settle(page)
    page.goto(f"{address}/#/runs/tiny-0")
    settle(page)
    page.get_by_role("tab", name="Overview").focus()
    for key, name in (
        ("ArrowRight", "prompts"),
        ("ArrowRight", "separation"),
        ("End", "tables"),
        ("ArrowRight", "overview"),
        ("ArrowLeft", "tables"),
    ):
        page.keyboard.press(key)
        expect(page.locator("[role=tab]:focus")).to_have_attribute("data-tab", name)
        expect(page.locator("[role=tab]:focus")).to_have_attribute("aria-selected", "true")
    settle(page)
    assert hash_of(page) == "#/runs/tiny-0/tables"
    page.go_back()
    assert hash_of(page) == "#/compare"
    settle(page)


def test_the_chosen_contrast_comes_first_and_its_curves_have_one_line_along_the_stream(page, address):
    for choice, sets in (("", ("harmful", "harmless")), ("?contrast=subject", ("nouns", "harmless"))):
        page.goto(f"{address}/#/runs/tiny-0/curves{choice}")
        page.reload()
        settle(page)
        expect(page.locator("main h2").first).to_contain_text(f"{sets[0]} against {sets[1]}, position -1")
        names = page.evaluate("document.querySelector('main .js-plotly-plot').data.map(line => line.name)")
        assert {"debiased", "plain"} <= set(names)
        assert not [name for name in names if "pre" in name or "mid" in name]


def test_heads_in_a_sentence_lead_to_the_circuit_named_before_them(page, address, store):
    page.goto(f"{address}/#/runs/{store[1]}/heads")
    settle(page)
    unfold(page)
    sentence = page.locator("#panel li, #panel p", has_text="Median effective rank of the circuits").first
    circuits = re.findall(r"\b(QK|OV)\b [^;]*of L", sentence.inner_text())
    assert circuits == ["QK", "OV"]
    links = sentence.locator("a").evaluate_all("links => links.map(one => one.href)")
    assert [re.search(r"circuit=(\w+)", link).group(1) for link in links] == ["qk", "ov"]


def test_one_map_of_heads_has_a_menu_and_opens_the_card_of_the_strongest_head(page, address, store):
    heads = read_group(open_run(*store), "heads").sel(offset=0)
    page.goto(f"{address}/#/runs/{store[1]}/heads")
    settle(page)
    menu = page.get_by_label("map", exact=True)
    assert menu.locator("option").all_inner_texts()[:2] == ["QK: leading singular value", "OV: leading singular value"]
    expect(page.locator(".docked figcaption").first).to_contain_text("QK: leading singular value")
    for name, circuit in (("effective_rank", "ov"), ("leading", "qk")):
        menu.select_option(f"heads.{circuit}.{name}")
        holds(page, f"map=heads.{circuit}.{name}")
        settle(page)
        values = heads["effective_rank"] if name == "effective_rank" else heads["singular_values"].isel(rank=0)
        at = values.sel(circuit=circuit).argmax(...)
        strongest = f"L{int(at['layer'])}H{int(at['head'])}"
        expect(page.locator("#card-name")).to_have_text(f"{strongest}, {circuit.upper()} circuit")
        assert page.locator(".choosable").count() == 1
    settle(page)


def test_a_head_under_the_grey_cover_is_never_the_strongest(page, address, store):
    def cover_all_but_one(route):
        figure = route.fetch().json()
        covered = [[1] * len(row) for row in figure["data"][0]["text"]]
        covered[2][3] = None
        figure["data"].append({"type": "heatmap", "z": covered, "showscale": False})
        route.fulfill(json=figure)

    page.route("**/figures/heads.qk.leading", cover_all_but_one)
    page.goto(f"{address}/#/runs/{store[1]}/heads")
    settle(page)
    expect(page.locator("#card-name")).to_have_text("L3H2, QK circuit")


def test_a_head_has_its_card_by_click_by_keys_and_by_address(page, address, store):
    page.goto(f"{address}/#/runs/{store[1]}/heads?map=heads.ov.leading")
    settle(page)
    cell = page.locator(".choosable .nsewdrag")
    cell.scroll_into_view_if_needed()
    box = cell.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 4.5 / 6 * box["width"], box["y"] + box["height"] * (1 - 7.5 / 12))
    expect(page.locator("#card-name")).to_have_text("L4H7, OV circuit")
    assert hash_of(page).endswith("heads?map=heads.ov.leading&circuit=ov&layer=4&head=7")
    settle(page)
    expect(page.locator("#card-name")).to_be_focused()
    tokens = page.get_by_role("region", name="Tokens of the leading singular vectors of L4H7")
    assert tokens.locator(".token").count() == 5 * 2 * 2 * 10
    expect(tokens).to_contain_text("read from a token")
    page.get_by_role("button", name="Show all 6 vectors").click()
    assert tokens.locator(".token").count() == 6 * 2 * 2 * 12
    page.get_by_role("application").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    expect(page.locator("#card-name")).to_have_text("L2H1, OV circuit")
    page.get_by_label("head", exact=True).select_option("3")
    expect(page.locator("#card-name")).to_have_text("L2H3, OV circuit")
    settle(page)
    page.goto(f"{address}/#/runs/{store[1]}/heads?circuit=qk&layer=1&head=5")
    expect(page.locator("#card-name")).to_have_text("L1H5, QK circuit")
    settle(page)


def test_a_browser_without_webgl_is_told_in_words(browser, noise, address, store):
    with opened(browser, noise) as page:
        page.add_init_script("HTMLCanvasElement.prototype.getContext = () => null")
        page.goto(f"{address}/#/runs/{store[1]}/words")
        page.get_by_text("needs WebGL").first.wait_for()
    assert noise == []


def test_a_service_without_a_cluster_says_so_on_the_tab_words(page, address, store):
    page.goto(f"{address}/#/runs/{store[1]}/words")
    settle(page)
    expect(page.get_by_role("tabpanel")).to_contain_text("this service has no cluster for survey jobs")
    expect(page.get_by_label("sentence", exact=True)).to_have_count(0)


def test_a_run_that_is_not_complete_says_how_far_it_is(page, address, noise):
    page.goto(f"{address}/#/runs/tiny-0")
    settle(page)
    expect(page.locator("#runs a", has_text="captured")).to_have_count(1)
    page.goto(f"{address}/#/runs/tiny-2")
    expect(page.get_by_role("tabpanel")).to_contain_text("not complete; its state is captured")
    expect(page.get_by_role("tabpanel")).to_contain_text(re.compile(r"(\d+) of \1 shards"))
    assert page.get_by_role("tab").all_inner_texts() == ["Overview"]


def rows_of(page: Page, sets: str) -> Locator:
    return page.get_by_role("region", name=f"Prompts of {sets}", exact=True).locator("tbody tr")


def test_prompts_are_sorted_filtered_and_read(page, address, store):
    rows = read_contrast_prompts(open_run(store[0], "tiny-0"), order="margin").rows
    text, first = rows["text"].iloc[0], f"{rows['set'].iloc[0]} {rows['sample'].iloc[0]}"
    page.goto(f"{address}/#/runs/tiny-0/prompts")
    settle(page)
    both = rows_of(page, "harmful and harmless")
    expect(both).to_have_count(19)
    assert [float(row.locator("td").nth(3).inner_text()) for row in both.all()] == rows["margin"].round(2).tolist()
    expect(both.first).to_contain_text(text)
    expect(page.get_by_label("show the texts")).to_have_count(0)
    page.get_by_label("contains the text").fill(text)
    page.get_by_label("contains the text").press("Enter")
    holds(page, "text=")
    both.first.get_by_role("link", name=first, exact=True).click()
    holds(page, f"prompt={first.replace(' ', '%3A')}")
    settle(page)
    assert drawn(page) == 2
    expect(page.get_by_role("region", name="Scores of one prompt")).to_contain_text(text)
    page.get_by_label("contains the text").fill("")
    page.get_by_label("contains the text").press("Enter")
    page.get_by_label("set", exact=True).select_option("nouns")
    holds(page, "set=nouns")
    settle(page)
    expect(rows_of(page, "nouns")).to_have_count(6)
    expect(page.locator("main h2").first).to_have_text("nouns against harmless")


def points_of(page: Page, name: str) -> list[tuple[float, float]]:
    """Return the places of a set's points on the screen, in the order of the samples."""
    return page.evaluate(
        """name => {
          const plot = document.querySelector("main .js-plotly-plot");
          const { left, top } = plot.getBoundingClientRect();
          const { xaxis, yaxis } = plot._fullLayout;
          const { x, y } = plot.data.find(trace => trace.name === name);
          const [right, down] = [left + xaxis._offset, top + yaxis._offset];
          return x.map((at, index) => [right + xaxis.d2p(at), down + yaxis.d2p(y[index])]);
        }""",
        name,
    )


def test_a_brush_over_the_scores_selects_prompts_and_a_click_opens_one(page, address, store):
    scores = read_contrast_prompts(open_run(store[0], "tiny-0")).rows
    place = f"{address}/#/runs/tiny-0/prompts"
    page.goto(place)
    settle(page)
    expect(page.locator("#panel .headline")).to_contain_text("of 10 prompts of harmful")
    before = page.evaluate("document.querySelector('#panel').innerText.split('\\nData')[0]")
    assert len(before.split()) <= 60
    box = page.locator("main .nsewdrag").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 40, steps=3)
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 40, steps=3)
    page.mouse.up()
    holds(page, "range=")
    settle(page)
    low, high = (float(page.get_by_label(f"score {end}", exact=True).input_value()) for end in ("from", "to"))
    assert low < high
    expected = int(scores["score"].between(low, high).sum())
    assert 0 < expected < 19
    expect(rows_of(page, "harmful and harmless")).to_have_count(expected)
    page.go_back()
    expect(rows_of(page, "harmful and harmless")).to_have_count(19)
    settle(page)
    page.get_by_label("score from", exact=True).fill("0")
    page.get_by_label("score from", exact=True).press("Enter")
    holds(page, "range=0%2C")
    expect(rows_of(page, "harmful and harmless")).to_have_count(int((scores["score"] >= 0).sum()))
    page.get_by_role("button", name="All scores").click()
    expect(rows_of(page, "harmful and harmless")).to_have_count(19)
    settle(page)
    page.mouse.click(*points_of(page, "harmless")[4])
    holds(page, "prompt=harmless%3A4")
    settle(page)
    expect(page.get_by_role("heading", name="Prompt 4 of harmless")).to_be_visible()


def test_a_depth_and_a_range_in_the_address_open_directly(page, address, store):
    at = {"contrast": "subject", "site": "resid_pre", "layer": 1}
    rows = read_contrast_prompts(open_run(store[0], "tiny-0"), **at, low=-0.5).rows
    query = "&".join(f"{name}={value}" for name, value in at.items())
    page.goto(f"{address}/#/runs/tiny-0/prompts?{query}&range=-0.5,&prompt=nouns:2")
    settle(page)
    expect(rows_of(page, "nouns and harmless")).to_have_count(len(rows))
    expect(page.locator("#panel figcaption").first).to_contain_text("layer 1 pre")
    expect(page.get_by_role("heading", name="Prompt 2 of nouns")).to_be_visible()


def test_built_in_harmful_texts_wait_for_a_click(page, address, store):
    texts = {name: read_scored_prompts(open_run(*store), name).rows["text"].tolist() for name in ("bad", "good")}
    page.goto(f"{address}/#/runs/{store[1]}/prompts?order=sample&prompt=bad:0")
    settle(page)
    panel = page.get_by_role("tabpanel")
    expect(panel).not_to_contain_text(texts["bad"][0])
    expect(rows_of(page, "bad and good")).to_have_count(min(25, 2 * len(texts["bad"])))
    page.get_by_label("show the texts").check()
    expect(rows_of(page, "bad and good").first).to_contain_text(texts["bad"][0])
    page.get_by_label("set", exact=True).select_option("good")
    expect(rows_of(page, "good").filter(has_text=texts["good"][0])).to_have_count(1)
    expect(page.get_by_label("show the texts")).to_have_count(0)


def test_figures_can_be_taken_away(page, address):
    page.goto(f"{address}/#/runs/tiny-0/curves")
    settle(page)
    with page.expect_download() as numbers:
        page.get_by_role("button", name="Data of").first.click()
    lines = Path(numbers.value.path()).read_text().splitlines()
    assert numbers.value.suggested_filename == "tiny-0.curves.refusal.-1.csv"
    assert lines[0] == "trace,x,y,label"
    assert any(line.startswith("debiased,0,") for line in lines)
    with page.expect_download() as picture:
        page.get_by_role("button", name="Picture of").first.click()
    assert picture.value.suggested_filename == "tiny-0.curves.refusal.-1.svg"
    drawn = Path(picture.value.path()).read_text()
    assert "<svg" in drawn
    for text in (
        "Unscaled activations",
        "tiny: Curves of the contrast",
        "10 and 9 unpaired prompts",
        "debiased cosine",
    ):
        assert text in drawn  # what it shows, of which model and prompts, and the finding


def test_texts_of_a_survey_are_shown_as_text(page, address, store):
    page.goto(f"{address}/#/runs/{store[1]}")
    settle(page)
    expect(page.locator("main h1")).to_contain_text(HOSTILE)
    expect(page.locator("#runs")).to_contain_text(HOSTILE)
    unfold(page)
    expect(page.locator("#spec pre")).to_contain_text(HOSTILE)
    page.get_by_role("tab", name="Words").click()
    settle(page)
    expect(page.locator("main h2", has_text=HOSTILE).first).to_be_visible()
    assert page.locator("img[src=x]").count() == 0


def test_a_prompt_of_one_set_is_marked_in_its_own_set_and_its_figure_covers_nothing(page, address):
    page.goto(f"{address}/#/runs/tiny-0/prompts?set=harmless")
    settle(page)
    page.get_by_role("region", name="Prompts of harmless").get_by_role("link").first.click()
    settle(page)
    assert re.search(r"prompt=harmless%3A\d+", hash_of(page))
    heights = "[...document.querySelectorAll('main .js-plotly-plot')].map(one => [one, one.querySelector('svg')])"
    for plot, drawing in page.evaluate(f"{heights}.map(pair => pair.map(one => one.clientHeight))"):
        assert plot == drawing > 100
    marked = page.locator(".annotation-text", has_text=re.compile(r"^prompt \d+$"))
    middle = page.locator(
        "main .js-plotly-plot .zerolinelayer, main .js-plotly-plot .cartesianlayer"
    ).first.bounding_box()
    assert marked.bounding_box()["y"] > middle["y"] + middle["height"] / 2, "the negative set is below the axis"


def test_a_set_without_a_contrast_is_listed_after_a_depth_was_chosen(page, address, store):
    page.goto(f"{address}/#/runs/{store[1]}/prompts?site=resid_pre&layer=1&range=0,1&set=sentences")
    settle(page)
    expect(page.get_by_role("region", name="Prompts of sentences").locator("tbody tr")).to_have_count(2)
