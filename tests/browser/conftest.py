"""A store with runs of every kind, its service, and a browser."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from support.browsing import WINDOW, leave, opened, served
from support.encoder_run import encoder_run
from support.made_once import made_once
from support.serving import captured_run, surveyed_run

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="session")
def made_up(tmp_path_factory) -> Path:
    """A store with two runs from random arrays, and one that is not complete."""
    folder, _ = made_once(tmp_path_factory, "page", fill)
    return folder


@pytest.fixture(scope="session")
def store(tmp_path_factory, made_up) -> tuple[str, str]:
    """A store with an encoder that has every result, and the runs from random arrays."""
    run = encoder_run(tmp_path_factory)
    shutil.copytree(made_up, run.store, dirs_exist_ok=True)
    return run.store, run.id


def fill(folder: Path) -> None:
    surveyed_run(folder, "tiny-0")
    surveyed_run(folder, "tiny-1", seed=1, n_layers=3)
    captured_run(folder, "tiny-2")


@pytest.fixture(scope="session")
def address(store) -> Iterator[str]:
    with served(store[0]) as place:
        yield place


@pytest.fixture(scope="package")
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


@pytest.fixture(scope="package")
def said() -> list[str]:
    """What the shared page wrote."""
    return []


@pytest.fixture
def noise(said) -> list[str]:
    """The errors of the page; a test that causes one on purpose clears the list."""
    said.clear()
    return said


@pytest.fixture(scope="package")
def tab(browser, said) -> Iterator[Page]:
    """A page that the tests share, since a browser takes seconds to load and compile the scripts."""
    with opened(browser, said) as page:
        yield page


@pytest.fixture
def page(tab, noise) -> Iterator[Page]:
    """The shared page, with nothing left from other tests."""
    yield tab
    tab.unroute_all()
    tab.set_viewport_size(WINDOW)
    tab.emulate_media(color_scheme="null", reduced_motion="null")
    leave(tab)
    tab.evaluate("sessionStorage.clear()")
    assert noise == []
