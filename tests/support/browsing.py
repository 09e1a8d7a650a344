"""A service in a process of its own, and pages of a browser."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, ViewportSize, expect
from support.commands import THEODOLITE

PATIENCE = 120_000
"""Milliseconds that a page has for each step: other tests compute on the same processor."""

expect.set_options(timeout=PATIENCE)

WINDOW = ViewportSize(width=1400, height=900)

OVERLAPS = """[...document.querySelectorAll('main .js-plotly-plot')].flatMap(figure => {
  const { left, top } = figure.getBoundingClientRect();
  const panels = Object.values(figure._fullLayout._plots).map(({ xaxis, yaxis }) => ({
    left: left + xaxis._offset, right: left + xaxis._offset + xaxis._length,
    top: top + yaxis._offset, bottom: top + yaxis._offset + yaxis._length,
  }));
  const boxes = [...figure.querySelectorAll('.infolayer > [class^=legend], .annotation-text')]
    .filter(one => one.textContent).map(one => one.getBoundingClientRect());
  const cover = (one, other) => one.left < other.right - 1 && one.right > other.left + 1
    && one.top < other.bottom - 2 && one.bottom > other.top + 2;
  return boxes.flatMap((box, index) => [...panels, ...boxes.slice(index + 1)].filter(other => cover(box, other)));
}).length"""
"""How many names of lines, and legends, lie over a panel or each other."""

SETTLED = """() => new Promise((done, failed) => {
  const end = Date.now() + PATIENCE;
  const look = () => {
    const headings = document.querySelectorAll('main h1').length;
    const waiting = [...document.querySelectorAll('.waiting, [aria-busy]')].map(one => one.outerHTML.slice(0, 200));
    if (headings === 1 && !waiting.length) done();
    else if (Date.now() > end) failed(new Error(`${location}: ${headings} headings, waiting: ${waiting.join(' ')}`));
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(() => setTimeout(look));
})""".replace("PATIENCE", str(PATIENCE))


@contextmanager
def served(store: str) -> Iterator[str]:
    """Serve a store by the command `serve`, and yield the URL."""
    command = [THEODOLITE, "serve", "--store", store, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        try:
            yield said.rpartition(" at ")[2].split()[0]
        finally:
            process.terminate()


@contextmanager
def opened(browser: Browser, noise: list[str], **options: Any) -> Iterator[Page]:
    """Open a page in a window of its own; `options` are those of the browser's context."""
    settings: dict[str, Any] = {"viewport": WINDOW, **options}
    context = browser.new_context(**settings)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    listen(page, noise)
    yield page
    context.close()


def listen(page: Page, noise: list[str]) -> None:
    """Collect the errors, dialogs and failed requests of a page in `noise`."""
    page.on("console", lambda said: noise.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.on("dialog", lambda dialog: noise.append(dialog.message))
    # A view that closes aborts its requests.
    page.on(
        "requestfailed",
        lambda request: noise.append(request.url) if "ABORTED" not in (request.failure or "") else None,
    )


def settle(page: Page) -> None:
    """Wait until the view has drawn all of its figures; `expect` would look again only after up to a second."""
    page.evaluate(SETTLED)


UNFOLDED = """async () => {
  const moment = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  for (let closed = true; closed; await moment()) {
    const folded = [...document.querySelectorAll('main details:not([open])')];
    closed = folded.length > 0;
    for (const one of folded) one.open = true;
    await moment();  // some content is made when it is opened
  }
}"""


def unfold(page: Page) -> None:
    """Open everything that is folded, also in what is fetched only then, and wait until it is drawn."""
    for _ in range(2):
        page.evaluate(UNFOLDED)
        settle(page)


def leave(page: Page) -> None:
    """Close the view, which aborts its requests, so that nothing of it comes later."""
    page.evaluate("location.hash = '#/nowhere'")
    settle(page)
    expect(page.locator("main h1")).to_have_text("View not found")


def drawn(page: Page) -> int:
    """Return the number of figures that are drawn."""
    figures = "[...document.querySelectorAll('main .js-plotly-plot')]"
    count: int = page.evaluate(f"{figures}.filter(one => one.querySelector('svg, canvas')).length")
    return count


def holds(page: Page, choice: str) -> None:
    """Wait until the address contains a choice."""
    expect(page).to_have_url(re.compile(re.escape(choice)))


def hash_of(page: Page) -> str:
    """Return the part of the address from # on."""
    fragment: str = page.evaluate("location.hash")
    return fragment
