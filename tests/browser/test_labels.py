"""The labels of a run in a real browser: a user changes them, finds the run by them, and deletes a run."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from support.browsing import opened, settle
from support.encoder_run import HOSTILE
from support.listening import served
from support.serving import copied

from theodolite.api.credentials import create_credential
from theodolite.store.labels import Labels, change_labels
from theodolite.store.runs import open_run

pytestmark = pytest.mark.browser


@pytest.fixture
def run(made_up, tmp_path):
    """A run in a store of its own, beside one that is not complete."""
    return open_run(copied(str(made_up), tmp_path, "tiny-0", "tiny-2", with_activations=True), "tiny-0")


def test_a_user_renames_tags_finds_and_deletes_a_run(run, tmp_path, browser, noise):
    with served(tmp_path) as place, opened(browser, noise) as page:
        page.goto(f"{place}/#/runs/tiny-0")
        settle(page)
        dialog = page.get_by_role("dialog")
        change = page.get_by_role("button", name="Name, tags, remarks…")
        change.click()
        dialog.get_by_label("Name", exact=True).fill("first try")
        dialog.get_by_label("Tags, separated by commas").fill(f"paper, {HOSTILE}")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_have_count(0)
        expect(change).to_be_focused()
        expect(page.locator("main h1")).to_have_text("first try")
        expect(page.get_by_role("list", name="Tags").locator("li")).to_have_text(["paper", HOSTILE])
        change_labels(run, Labels(tags=("of another user",)))
        change.click()
        dialog.get_by_label("Remarks").fill("Two\nlines")
        dialog.get_by_label("Name", exact=True).press("Enter")
        expect(page.locator(".remarks")).to_have_text("Two\nlines", use_inner_text=True)
        expect(page.get_by_role("list", name="Tags").locator("li")).to_have_text(["of another user"])
        expect(page.locator("#runs a").filter(has_text="first try").filter(has_text="of another user")).to_have_count(1)
        page.get_by_label("Search runs").fill("ANOTHER user")
        expect(page.locator("#runs a")).to_have_count(1)

        page.get_by_role("button", name="Delete…").click()
        delete = dialog.get_by_role("button", name="Delete the run")
        expect(delete).to_be_disabled()
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        page.goto(f"{place}/#/runs")
        rows = page.get_by_role("region", name="Runs of the store").locator("tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.filter(has_text="first try").locator("[data-column=tags]")).to_have_text("of another user")
        rows.get_by_role("link").and_(page.locator("[href$=tiny-0]")).click()
        page.get_by_role("button", name="Delete…").click()
        dialog.get_by_label("To confirm").fill("tiny-2")
        expect(delete).to_be_disabled()
        dialog.get_by_label("To confirm").fill("tiny-0")
        delete.click()
        expect(rows).to_have_count(1)
        expect(page.locator("#run-count")).to_have_text("0 of 1 runs")
        assert not (tmp_path / "runs" / "tiny-0").exists()
    assert noise == []


def test_a_refused_change_is_explained_in_the_dialog(run, tmp_path, browser, noise):
    token, _ = create_credential(str(tmp_path), ["read", "submit"])
    with served(tmp_path) as place, opened(browser, noise) as page:
        page.goto(f"{place}/#/runs/tiny-0")
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Bearer token").fill(token)
        dialog.get_by_role("button", name="Use this token").click()
        page.get_by_role("button", name="Name, tags, remarks…").click()
        dialog.get_by_label("Tags, separated by commas").fill("x" * 51)
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("alert")).to_contain_text("at most 50 characters")
        dialog.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Delete…").click()
        dialog.get_by_label("To confirm").fill("tiny-0")
        dialog.get_by_label("To confirm").press("Enter")
        expect(dialog.get_by_role("alert")).to_contain_text("needs the scope admin")
    assert all("40" in said or "422" in said for said in noise), noise


def test_long_labels_and_dialogs_fit_every_window_and_are_accessible(run, tmp_path, browser, noise):
    tags = tuple(f"{number}{'x' * 48}" for number in range(20))
    change_labels(run, Labels(name="n" * 200, tags=tags, remarks="y" * 10_000))
    with served(tmp_path) as place, opened(browser, noise, reduced_motion="reduce") as page:

        def check():
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            found = Axe().run(page)
            assert found.violations_count == 0, found.generate_report()

        for scheme, width in (("light", 400), ("dark", 1280)):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)
            page.goto(f"{place}/#/runs")
            settle(page)
            check()
            page.goto(f"{place}/#/runs/tiny-0")
            settle(page)
            check()
            for button in ("Name, tags, remarks…", "Delete…"):
                page.get_by_role("button", name=button).click()
                expect(page.get_by_role("dialog")).to_be_in_viewport(ratio=1)
                check()
                page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert noise == []
