"""A sentence that is typed on the tab Words: its survey is submitted, and its trajectory is drawn in place."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect
from support.browsing import drawn, settle, unfold
from support.listening import served
from support.nightly import at_night

pytestmark = pytest.mark.browser

ID = "0123456789abcdef" * 4
SENTENCE = "The capital of France is Paris"


@pytest.fixture(scope="module")
def place(store) -> Iterator[str]:
    """The address of a service that has the URL of a cluster; the tests return the responses about survey jobs."""
    with served(store[0], jobs_url="http://127.0.0.1:9") as address:
        yield address


def job(**given: Any) -> dict[str, Any]:
    common = {"id": ID, "name": SENTENCE, "model": "all-minilm-l6-v2", "attempt": 1, "submitted": "2026-01-01T10:00"}
    return {**common, "reason": None, "run_id": None, "progress": {}, "spec": {}, "yours": True, **given}


def pretend(page: Page, *shown: dict[str, Any]) -> list[dict[str, Any]]:
    """Return survey jobs instead of the service, the last one again and again; return the list of submitted specs."""
    submitted: list[dict[str, Any]] = []
    states = itertools.chain(shown[:-1], itertools.repeat(shown[-1]))

    def submit(route: Route) -> None:
        submitted.append(route.request.post_data_json)
        route.fulfill(status=202, json=job(state="queued"))

    page.route("**/v1/jobs", submit)
    page.route(f"**/v1/jobs/{ID}", lambda route: route.fulfill(json=next(states)))

    def send(route: Route) -> None:  # one change, and then the connection is lost
        body = f": ping\n\nevent: job\ndata: {json.dumps(next(states))}\n\n"
        route.fulfill(body=body, content_type="text/event-stream")

    page.route(f"**/v1/jobs/{ID}/events", send)
    return submitted


def type_sentence(page: Page) -> None:
    page.get_by_label("sentence", exact=True).fill(SENTENCE)
    page.get_by_label("sentence", exact=True).press("Enter")


@pytest.mark.parametrize("scheme", ["light", *at_night(["dark"])])
def test_a_typed_sentence_gets_its_trajectory(page, place, store, scheme):
    page.set_viewport_size({"width": 400, "height": 800})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    progress = {"nouns": {"done": 1, "total": 1}, "sentences": {"done": 0, "total": 1}}
    done = job(state="succeeded", run_id=store[1])
    page.goto(f"{place}/#/runs/{store[1]}/words")
    running = job(state="running", run_id="tiny-2")
    submitted = pretend(page, running, {**running, "progress": progress}, done)
    settle(page)
    before = drawn(page)
    type_sentence(page)
    expect(page.get_by_role("status").filter(has_text="when the survey job has succeeded")).to_be_visible()
    expect(page.locator(".job")).to_contain_text("0 of 1 prompts")
    link = page.get_by_role("status").get_by_role("link", name=store[1])
    expect(link).to_have_attribute("href", f"#/runs/{store[1]}/words")
    settle(page)
    own = page.locator("section", has=page.get_by_label("sentence", exact=True))
    expect(own.get_by_role("heading", name="trajectory of the token")).to_be_visible()
    assert drawn(page) == before + 1
    unfold(page)
    expect(own.locator(".js-plotly-plot")).to_have_count(2)
    expect(page.locator(".job")).to_have_count(0)
    (spec,) = submitted
    assert spec["words"]["sentences"] == [SENTENCE]
    assert spec["model"]["id"] == "all-minilm-l6-v2"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_a_failed_survey_and_a_refused_sentence_are_shown_in_words(page, noise, place, store):
    page.goto(f"{place}/#/runs/{store[1]}/words")
    submitted = pretend(page, job(state="failed", reason="the model cannot be read"))
    settle(page)
    type_sentence(page)
    expect(page.locator(".job")).to_contain_text("the model cannot be read")
    expect(page.get_by_role("button", name=f"Submit {SENTENCE} again")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="has ended without a trajectory")).to_be_visible()
    assert noise == []
    page.get_by_label("sentence", exact=True).fill("  ")
    page.get_by_role("button", name="Get its trajectory").click()
    expect(page.get_by_role("alert").filter(has_text="must have at least one word")).to_be_visible()
    expect(page.locator(".job")).to_have_count(0)
    assert len(submitted) == 1
    assert all(said.startswith("Failed to load resource") for said in noise), noise
    noise.clear()


def test_a_submission_without_a_bearer_token_asks_for_one(page, noise, place, store):
    problem = {"title": "Unauthorized", "detail": "this service needs a token"}
    page.goto(f"{place}/#/runs/{store[1]}/words")
    submitted = pretend(page, job(state="succeeded", run_id=store[1]))
    refused = {"status": 401, "content_type": "application/problem+json", "body": json.dumps(problem)}
    page.route("**/v1/jobs", lambda route: route.fulfill(**refused), times=1)
    settle(page)
    type_sentence(page)
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Bearer token").fill("theodolite_x")
    dialog.get_by_role("button", name="Use this token").click()
    expect(page.get_by_role("status").get_by_role("link", name=store[1])).to_be_visible()
    assert len(submitted) == 1
    noise.clear()  # the refused submission
