"""Surveys that decline resid_final: no later block runs, and every statistic of the captured sites stays the same."""

from pathlib import Path

import numpy as np
import pytest
from support.each import each
from support.tiny_survey import save_model, spec_of

from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.sites import Site
from theodolite.store.commits import read_commits
from theodolite.store.result_reader import read_group
from theodolite_jobs.progress import Console
from theodolite_jobs.report.page import render_report
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")

ANALYSES = ["curves", "sphere", "gram", "separation", "travel", "heads", "words"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same survey of the first layers with and without `resid_final`."""
    model, store = save_model(tmp_path_factory.mktemp("tiny") / "model"), tmp_path_factory.mktemp("store")

    def surveyed(final):
        capture = {"shard_prompts": 3, "batch_tokens": 200, "layers": [0, 1, 2], "final": final}
        words = {"sentences": ["To kill two birds with one stone"]}
        spec = spec_of(model, capture=capture, analyses=ANALYSES, words=words)
        settings = Settings(store=str(store), replicas=1, gpus_per_replica=0)
        return survey(spec, Path(), settings, Console())

    return surveyed(True), surveyed(False)


def test_resid_final_is_not_stored(runs):
    with_final, without = (
        {str(name) for commit in read_commits(run, "harmful").values() for name in commit.checksums} for run in runs
    )
    assert with_final - without == {Site.RESID_FINAL}
    assert list(verify(runs[1])) == []
    assert set(runs[0].record.sets) - set(runs[1].record.sets) == {"sentences"}


@each("group", ["moments", "directions", *ANALYSES])
def test_statistics_of_the_captured_sites_are_the_same(runs, group):
    whole, part = (read_group(run, group) for run in runs)
    assert set(part) == set(whole)
    for name in part:
        ours, theirs = part[name].values, whole[name].values
        if "norm" in part[name].dims:  # the final norm reads resid_final
            axis = part[name].dims.index("norm")
            ours, theirs = (np.delete(values, -1, axis) for values in (ours, theirs))
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


def test_the_final_norm_has_no_statistics(runs):
    whole, part = (read_group(run, "sphere")["euclidean_norm"].isel(norm=-1) for run in runs)
    assert str(part["norm"].values) == "final"
    assert np.isnan(part).all()
    assert np.isfinite(whole).any()
    assert runs[1].id in render_report(runs[1])
