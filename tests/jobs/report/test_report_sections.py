"""The report of runs that lack the data of some figures or sentences."""

import numpy as np
import pytest
from support.analysing import analyse, survey_gram
from support.each import each
from support.stored import store_run

from theodolite.spec_options import GramSpec
from theodolite_jobs.report.page import render_report

SEQUENTIAL, ENTERING = ("resid_pre", "resid_mid"), ("resid_pre",)


def contrast(positive, negative):
    return {"refusal": {"positive": positive, "negative": negative, "paired": False}}


def report_of(folder, sizes, contrasts, sites=SEQUENTIAL, **record):
    rng = np.random.default_rng(0)
    arrays = {name: {site: rng.normal(size=(n, 1, 3, 8)) + 1 for site in sites} for name, n in sizes.items()}
    run = store_run(folder, arrays, contrasts=contrasts, **record)
    analyse(run, contrasts, None, lambda *_: None, requested={"travel", "separation"})
    survey_gram(run, contrasts, GramSpec(), None, lambda *_: None)
    return render_report(run)


def test_every_section_is_there(tmp_path):
    page = report_of(tmp_path, {"bad": 12, "good": 12}, contrast("bad", "good"))
    for title in ("Separation of the contrast", "Shape and similarity", "Travel and growth"):
        assert f">{title}" in page
    assert "cos(P*, N*)" in page


@pytest.mark.nightly
@each("n", [1, 2, 3])
def test_sets_of_a_few_prompts_have_a_report(tmp_path, n):
    page = report_of(tmp_path, {"bad": n, "good": n}, contrast("bad", "good"))
    assert ("a set has only one prompt" in page) == (n == 1)
    assert ("bad has one usable prompt" in page) == (n == 1)


@pytest.mark.nightly
def test_some_layers_of_one_site_have_a_report(tmp_path):
    page = report_of(tmp_path, {"bad": 9, "good": 9}, contrast("bad", "good"), ENTERING, layers=[0, 2, 4])
    assert "Travel and growth" in page


def test_a_set_that_was_quarantined_whole_has_a_report(tmp_path):
    bad = {sample: "not finite" for sample in range(4)}
    page = report_of(tmp_path, {"bad": 4}, {}, quarantined={"bad": bad})
    assert "bad has no usable prompt" in page


@pytest.fixture(scope="module")
def with_itself(tmp_path_factory):
    """The report of a contrast of a set with itself."""
    return report_of(tmp_path_factory.mktemp("report"), {"bad": 20}, contrast("bad", "bad"))


def test_a_missing_number_of_a_table_is_a_dash_with_its_reason(with_itself):
    assert "<td>nan</td>" not in with_itself
    assert with_itself.count("<td>\N{EN DASH}</td>") >= 4 * 3  # four cosines with r = 0 at three layers
    assert "marks a missing value, such as a cosine with r = 0 or r* = 0.</p>" in with_itself


def test_a_contrast_of_a_set_with_itself_is_not_called_too_small(with_itself):
    assert "means are equal" in with_itself
    assert "a set has one prompt" not in with_itself
