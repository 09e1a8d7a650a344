"""A store with runs of every kind, its service, and a browser."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos.processes import capture_without_ray
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from support.browsing import HOSTILE, PATIENCE, listen, served
from support.made_once import made_once
from support.serving import captured_run, surveyed_run

from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

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


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> tuple[str, str]:
    """A store with an encoder that has every result, two runs from random arrays and one that is not complete."""
    folder, wordy = made_once(tmp_path_factory, "page", fill)
    return str(folder), wordy


def fill(folder: Path) -> str:
    with capture_without_ray():
        wordy = survey(parse_spec(WORDY), Path(), Settings(store=str(folder)), Console())
    surveyed_run(folder, "tiny-0")
    surveyed_run(folder, "tiny-1", seed=1, n_layers=6)
    captured_run(folder, "tiny-2")
    return wordy.id


@pytest.fixture(scope="session")
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
        flags = ["--no-sandbox", "--disable-gpu-compositing", "--enable-unsafe-swiftshader"]
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield opened
        opened.close()


@pytest.fixture
def noise() -> list[str]:
    """The errors of the page; a test that causes one on purpose clears the list."""
    return []


@pytest.fixture(scope="module")
def wide(browser) -> Iterator[BrowserContext]:
    """A window that several tests share, since the browser compiles Plotly in each window."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(PATIENCE)
    yield context
    context.close()


@pytest.fixture
def page(wide, noise) -> Iterator[Page]:
    page = wide.new_page()
    listen(page, noise)
    yield page
    page.close()
    assert noise == []
