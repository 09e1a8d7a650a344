"""The report in a real browser: it opens offline, draws, and makes no noise."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.analysing import analyse
from support.stored import store_run

from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite_jobs.progress import Console
from theodolite_jobs.report.page import write_report
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture
def report(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        name: {site: (rng.normal(size=(8, 1, 4, 16)) + 2).astype(np.float32) for site in ("resid_pre", "resid_mid")}
        for name in ("bad", "good")
    }
    contrasts = {"refusal": {"positive": "bad", "negative": "good", "paired": True}}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    analyse(run, contrasts, None, lambda *_: None)
    write_report(run)
    return run.report


def opened(report, tmp_path, *flags):
    """Return the page after its scripts ran, and what the browser's console said."""
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI needs Chromium")
        pytest.skip("Chromium is not installed")
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    safe = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    wanted = ["--enable-logging=stderr", "--virtual-time-budget=8000", *flags, "--dump-dom", f"file://{report}"]
    page = subprocess.run(
        [CHROMIUM, *safe, *quiet, *wanted],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return page.stdout, re.findall(r"CONSOLE.*", page.stderr)


def test_the_report_draws_its_figures_offline_without_a_word_on_the_console(report, tmp_path):
    page, console = opened(report, tmp_path, "--window-size=1280,8000")
    assert console == []
    assert page.count('class="main-svg"') >= 2
    assert len(Path(report).read_bytes()) < 4e6
    for text in (
        "cosine of means",
        "95 % interval",
        "debiased, pre",
        "bad, mid",
        "depth along the residual stream",
    ):
        assert text in page
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="', page)


@pytest.fixture(scope="module")
def atlas(tmp_path_factory):
    spec = {"model": {"id": "all-minilm-l6-v2"}, "prompts": {}, "heads": {"vectors": 2}, "words": {"tokens": 3}}
    settings = Settings(store=str(tmp_path_factory.mktemp("atlas")))
    return survey(parse_spec(spec), Path(), settings, Console()).report


def test_a_click_on_a_map_opens_the_card_of_that_head(atlas, tmp_path):
    """As a browser would send it: the map of an output opens the VO circuit; the card tells tokens on both sides."""
    page = Path(atlas).read_text()
    click = """<script>
    const map = [...document.querySelectorAll("[data-circuit=vo]")].at(-1);
    map.scrollIntoView();  // a figure is drawn when it is seen
    const click = () => (map._ev ? map.emit("plotly_click", {points: [{customdata: "L4H7"}]}) : setTimeout(click, 50));
    setTimeout(click, 1000);
    </script></body>"""
    clicked = tmp_path / "clicked.html"
    clicked.write_text(page.replace("</body>", click))
    shown, console = opened(clicked, tmp_path)
    assert console == []
    assert '<h3 id="card-name">L4H7, VO circuit</h3>' in shown
    assert shown.count('class="token"') >= 2 * 2 * 3
    assert "read from a token" in shown
    plain, _ = opened(atlas, tmp_path)
    assert '<h3 id="card-name">L0H0, QK circuit</h3>' in plain


def test_figures_are_drawn_when_they_are_seen(report, tmp_path):
    page, console = opened(report, tmp_path, "--window-size=1280,300")
    assert console == []
    assert page.count("data-figure=") >= 2
    assert 'class="main-svg"' not in page


def test_the_report_fits_a_phone(report, tmp_path):
    page, _ = opened(report, tmp_path, "--window-size=390,9000")
    widths = [float(width) for width in re.findall(r'class="main-svg"[^>]*width="([\d.]+)"', page)]
    assert widths
    assert max(widths) < 500  # headless Chromium's narrowest window
