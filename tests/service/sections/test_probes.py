"""Sentences and the figure of probes."""

import numpy as np
import pytest
from support.finished_runs import cached_run
from support.sentences import assert_each_says, assert_says

from theodolite.groups.probes import sections as probes
from theodolite.groups.probes.record import MEASURES, PROBES
from theodolite.groups.schema import BAND, NULL_AND_LIMIT

LAYERS = 4
AUROC = {"mean_difference": 0.8, "lda": 0.82, "logistic": 0.85}


def arrays(beyond=0.05, words=0.1):
    """Return the arrays of `probes`, in which AUROCs grow along depth and logistic regression is `beyond` the means."""
    performance = np.full((2, 1, LAYERS, len(PROBES), len(MEASURES), len(BAND)), np.nan)
    growing = 0.01 * (np.arange(2)[:, None] + 2 * np.arange(LAYERS))[:, None, :]
    for row, probe in enumerate(PROBES):
        differences = {"auroc_beyond_words": words, "auroc_beyond_means": beyond if probe == "logistic" else -0.01}
        for name, value in {"auroc": AUROC[probe], "accuracy": 0.7, **differences}.items():
            ends = np.array([0, -0.02, 0.02, -0.04, 0.04])
            performance[:, :, :, row, MEASURES.index(name)] = (value + growing * (name == "auroc"))[..., None] + ends
        performance[:, :, :, 0, MEASURES.index("auroc_beyond_means")] = np.nan
    null = np.full((2, 1, LAYERS, len(PROBES), 3, len(NULL_AND_LIMIT)), np.nan)
    null[..., 0, :] = [0.5, 0.03, 11, 0.01, 0.01, 0.6]
    fit = np.broadcast_to([[1, np.nan, 1, 0], [0.4, 0.02, 1, 0], [0.7, 0.1, 1, 0]], (2, 1, LAYERS, 3, 4))
    return {
        "n_used": [20, 21],
        "probe_performance": performance[None],
        "probe_null": null[None],
        "probe_fit": fit[None],
    }


@pytest.fixture
def made(tmp_path):
    return lambda given: probes.sections(cached_run(tmp_path, {"curves": {}, "probes": given}))


def test_sentences_compare_probes_with_the_difference_of_means_and_with_words(made):
    (section,) = made(arrays())
    assert_says(section.title, "20 harmful", "21 harmless")
    assert len(section.headline.split()) <= 25
    assert_says(section.headline, "logistic", "8 of 8", "0.920 [0.880, 0.960]", "layer 3 mid")
    assert_each_says(
        section.facts,
        "difference of means … 0.870 … p = 0.01",
        "linear discriminant … 0.890",
        "logistic regression … 0.920 … 0.50 ± 0.03",
        "difference of means … 0 of 8 … linear … 8 of 8 … 0.050 [0.010, 0.090]",
        "token counts … 8 of 8",
        "0.70 … ridge 0.1 … 0.40 … shrinkage 0.02",
    )
    (figure,) = section.figures
    drawn = figure.draw()
    named = [trace.name for trace in drawn.data]
    assert {"difference of means", "linear discriminant", "logistic regression"} <= set(named)
    titles = [axis.title.text for axis in drawn.select_yaxes()]
    assert titles == ["AUROC", "AUROC minus means", "AUROC minus words", "accuracy", "cosine with means"]


def test_a_probe_that_is_not_better_and_one_that_cannot_be_fitted_are_named(made):
    (section,) = made(arrays(beyond=0.01))
    assert_says(section.headline, "not shown", "0.920")
    nothing = {name: np.full_like(values, np.nan) for name, values in arrays().items() if name != "n_used"}
    (section,) = made({"n_used": [2, 21], **nothing})
    assert section.facts == [section.headline]
    assert not section.figures
    assert made({"n_used": [0, 21], **nothing}) == []
