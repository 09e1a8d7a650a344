"""What the sections of a run say about a site that only some blocks have."""

from dataclasses import replace

import numpy as np
import pytest
from support.finished_runs import cached_run
from support.sentences import assert_says

from theodolite.query.partial_sites import partial_site_notes
from theodolite.sections.catalogue import sections_of
from theodolite.sites import Site
from theodolite.store.runs import PartialSite

REASON = "some blocks have linear attention in place of attention"
NOTE = f"2 of 4 blocks have attn_out (layers 0, 3) … this site … because {REASON}"


@pytest.fixture
def run(tmp_path):
    """A run whose debiased cosine is not resolved in one of the two layers with attn_out."""
    plain, debiased = np.array([0.9, np.nan, np.nan, 0.8]), np.array([0.95, np.nan, np.nan, np.nan])
    curves = {
        "cosine_of_means": {"raw": plain},
        "cosine_of_means_debiased": {"value": {"raw": debiased}},
        "variance_max": {"raw": plain},
        "variance_mean": {"raw": plain / 2},
    }
    whole = cached_run(tmp_path, {"curves": curves}, sites=["attn_out"])
    partial = {Site.ATTN_OUT: PartialSite(layers=[0, 3], reason=REASON)}
    return replace(whole, record=whole.record.model_copy(update={"partial_sites": partial}))


def test_a_missing_layer_is_a_note_and_no_unresolved_cosine(run):
    (section,) = sections_of(run, "curves")
    assert_says(section.notes[-1], NOTE)
    assert_says(section.facts, "debiased cosine … missing … 1 of 2 depths … number of prompts")
    assert not any("nan" in fact for fact in section.facts)
    for figure in section.figures:
        figure.draw()


def test_sites_of_the_same_blocks_share_a_note(run):
    own = PartialSite(layers=[0, 3], reason=REASON)
    other = PartialSite(layers=[1], reason=REASON)
    record = run.record.model_copy(
        update={"partial_sites": {Site.HEAD_OUT: own, Site.ATTN_OUT: own, Site.MLP_OUT: other}}
    )
    first, second = partial_site_notes(record)
    assert_says(first, "2 of 4 blocks have head_out and attn_out (layers 0, 3) … these")
    assert_says(second, "1 of 4 blocks have mlp_out (layers 1) … this site")
    (note,) = partial_site_notes(record, [Site.ATTN_OUT])
    assert_says(note, NOTE)
    assert list(partial_site_notes(record, [Site.RESID_PRE])) == []


def test_other_runs_have_no_such_note(run):
    record = run.record.model_copy(update={"partial_sites": {}})
    (section,) = sections_of(replace(run, record=record), "curves")
    assert not any("blocks have" in note for note in section.notes)
