"""The views of a store in a real browser: the list of runs, the comparison, new surveys, and bearer tokens."""

import re

import pytest
from playwright.sync_api import expect
from support.browsing import drawn, hash_of, holds, opened, settle
from support.listening import served
from support.serving import surveyed_run

from theodolite.api.credentials import create_credential
from theodolite.store.manifest import write_request

pytestmark = pytest.mark.browser


def test_the_search_filters_by_model_name_contrast_and_id(page, address):
    page.goto(f"{address}/#/runs/tiny-0")
    settle(page)
    lines = page.locator("#runs a")
    found = {"": 4, "minilm": 1, "subject": 3, "TINY-1": 1, "onerror": 1, "captured": 1, "nobody": 0}
    for words, count in found.items():
        page.get_by_label("Search runs").fill(words)
        expect(lines).to_have_count(count)
    expect(page.locator("#run-count")).to_have_text("0 of 4 runs")


def test_the_table_of_runs_is_ordered_by_its_columns_and_selects_runs_to_compare(page, address, store):
    page.goto(f"{address}/#/runs")
    settle(page)
    rows = page.get_by_role("region", name="Runs of the store").locator("tbody tr")
    expect(rows).to_have_count(4)
    page.get_by_role("button", name="prompt sets").click()
    holds(page, "order=sets")
    settle(page)
    sets = page.locator("[data-column=sets]").all_inner_texts()
    assert sets == sorted(sets, key=str.lower)
    expect(page.locator("th[aria-sort=ascending]")).to_have_text(re.compile("prompt sets"))
    page.get_by_role("button", name="results").click()
    holds(page, "order=results")
    settle(page)
    page.get_by_role("button", name="results").press("Enter")
    holds(page, "order=-results")
    settle(page)
    expect(page.locator("#order-results")).to_be_focused()
    page.get_by_role("button", name="results").press("Enter")
    expect(page.locator("th[aria-sort=descending]")).to_have_text(re.compile("created"))  # the usual order
    settle(page)
    page.get_by_role("button", name="created").press("Enter")
    holds(page, "order=created")
    page.goto(f"{address}/#/runs?order=-results")
    settle(page)
    expect(rows.first).to_contain_text(store[1])  # it has every result
    expect(rows.filter(has_text="tiny-2").get_by_role("checkbox")).to_be_disabled()
    expect(rows.filter(has_text="tiny-2")).to_contain_text("captured")
    for name in ("tiny-1", "tiny-0"):
        rows.filter(has_text=name).get_by_role("checkbox").check()
    page.get_by_role("button", name="Compare 2 selected runs").click()
    holds(page, "run=tiny-1&run=tiny-0")
    settle(page)


def test_requested_results_that_are_not_finished_are_named(browser, noise, tmp_path):
    run = surveyed_run(tmp_path, "tiny-0")
    groups = {"curves": "", "sphere": "", "words": ""}
    write_request(run, {"spec": run.record.spec.model_dump(mode="json"), "groups": groups})
    with served(str(tmp_path)) as place, opened(browser, noise) as page:
        page.goto(f"{place}/#/runs")
        settle(page)
        expect(page.get_by_role("region", name="Runs of the store")).to_contain_text("not finished: Sphere, Words")
        expect(page.locator("#runs")).to_contain_text("not finished: sphere, words")
        page.goto(f"{place}/#/runs/tiny-0")
        settle(page)
        page.get_by_role("tab", name="Geometry").click()
        settle(page)
        page.get_by_role("link", name="Sphere (not finished)").click()
        expect(page.get_by_role("tabpanel")).to_contain_text("were requested and are not finished")
        page.get_by_role("tab", name="Words").click()
        expect(page.get_by_role("tabpanel")).to_contain_text("were requested and are not finished")
        page.get_by_role("tab", name="Overview").click()
        unfinished = page.get_by_role("tabpanel").get_by_text("analyses are finished")
        expect(unfinished).to_have_count(1)
        write_request(run, None)
        expect(unfinished).to_have_count(0)  # the page looks again by itself
        expect(page.get_by_role("tab", name="Overview")).to_be_focused()
        expect(page.locator("#runs")).not_to_contain_text("not finished")
    assert noise == []


def test_runs_are_compared_and_a_set_is_asked_for_where_one_is_needed(page, address):
    page.goto(f"{address}/#/compare")
    expect(page.locator("main")).to_contain_text("Choose at least one run")
    page.get_by_label("tiny-0").check()
    page.get_by_label("tiny-1").check()
    holds(page, "run=tiny-0&run=tiny-1")
    settle(page)
    rows = page.get_by_role("region", name="Smallest cosine and separation of each run").locator("tbody tr")
    expect(rows.locator("th")).to_have_text([re.compile("tiny-0"), re.compile("tiny-1")])
    expect(page.locator("main")).to_contain_text("The specs of these surveys are equal.")
    page.get_by_label("contrast").select_option("subject")
    page.get_by_label("statistic").select_option("variance_mean")
    holds(page, "statistic=variance_mean")
    page.get_by_label("set", exact=True).select_option("nouns")
    expect(page.locator("main")).to_contain_text("Mean over features of the variance")
    settle(page)
    assert drawn(page) == 1
    assert "set=nouns" in hash_of(page)


def test_a_comparison_shows_the_options_in_which_the_surveys_differ(page, address):
    def differ(route):
        answer = route.fetch()
        options = [{"option": "capture.dtype", "values": {"tiny-1": "bfloat16"}}]
        route.fulfill(response=answer, json={**answer.json(), "differences": options})

    page.route("**/v1/compare?**", differ)
    page.goto(f"{address}/#/compare?run=tiny-0&run=tiny-1")
    cells = page.get_by_role("region", name="Options in which the surveys differ").locator("tbody tr")
    expect(cells.locator("th, td")).to_have_text(["capture.dtype", "not in the spec", "bfloat16"])


def test_runs_without_a_common_contrast_have_a_choice_for_each(page, address, noise):
    def only(*names):
        def answer(route):
            response = route.fetch()
            route.fulfill(response=response, json={**response.json(), "contrasts": names})

        return answer

    page.route("**/v1/runs/tiny-0", only("refusal"))
    page.route("**/v1/runs/tiny-1", only("refused", "subject"))
    page.goto(f"{address}/#/compare?run=tiny-0&run=tiny-1&contrast=tiny-1:subject")
    settle(page)
    expect(page.get_by_label("contrast of tiny-0")).to_have_value("refusal")
    expect(page.get_by_label("contrast of tiny-1")).to_have_value("subject")
    cells = page.get_by_role("region", name="Smallest cosine and separation of each run").locator("tbody tr td")
    expect(cells.nth(0)).to_have_text("refusal")
    expect(page.locator("main .annotation-text", has_text="tiny (1), subject").first).to_be_visible()
    page.get_by_label("contrast of tiny-1").select_option("refused")
    holds(page, "contrast=tiny-0%3Arefusal&contrast=tiny-1%3Arefused")
    expect(page.locator("main")).to_contain_text("tiny-1 has no 'refused'; it has: refusal, subject")
    noise.clear()  # the browser itself writes down that it was refused


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
        expect(page.locator(".overview")).to_be_visible()
        settle(page)
        accepted = {"valid": True, "id": "0" * 64, "has_cluster": True, "spec": {}}
        page.route("**/v1/spec/check", lambda route: route.fulfill(json=accepted))
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


@pytest.mark.parametrize(
    ("script", "view", "message"),
    [("compare", "compare", "A script of this view"), ("prompts", "runs/tiny-0/prompts", "A script of this tab")],
)
def test_a_view_whose_script_is_missing_says_so_and_can_be_tried_again(page, noise, address, script, view, message):
    page.goto("about:blank")  # a page that has a script does not load it again
    page.route(f"**/static/{script}.js", lambda route: route.abort())
    page.goto(f"{address}/#/{view}")
    expect(page.get_by_role("alert")).to_contain_text(message)
    expect(page.locator("[aria-busy]")).to_have_count(0)
    page.unroute(f"**/static/{script}.js")
    page.get_by_role("button", name="Try again").click()
    settle(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    noise.clear()  # the request that was aborted on purpose
