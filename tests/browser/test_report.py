"""The report in a real browser: it opens offline, draws, and makes no noise."""

import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from stored import store_run

from theodolite_jobs.pipeline import analyse
from theodolite_jobs.report import write_report

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
    page, console = opened(report, tmp_path)
    assert console == []
    assert page.count('class="main-svg"') >= 2
    for text in (
        "cosine of means",
        "95 % interval",
        "debiased, pre",
        "bad, mid",
        "depth along the residual stream",
    ):
        assert text in page
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="', page)


def test_the_report_fits_a_phone(report, tmp_path):
    page, _ = opened(report, tmp_path, "--window-size=390,800")
    widths = [float(width) for width in re.findall(r'class="main-svg"[^>]*width="([\d.]+)"', page)]
    assert widths
    assert max(widths) < 500  # headless Chromium's narrowest window
