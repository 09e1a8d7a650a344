"""The survey of a typed sentence, as the page and the client submit it."""

from pathlib import Path

import pytest
from support.damages import settings
from support.tiny_survey import spec_of

from theodolite.query.verification import verify
from theodolite.sections.catalogue import section_items
from theodolite.submission.sentences import sentence_spec
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")


def test_the_survey_of_a_sentence_has_its_trajectory(tiny_folder, tmp_path):
    run = survey(spec_of(tiny_folder, analyses=["curves"]), Path(), settings(tmp_path), Console())
    spec = sentence_spec(run.record, "Two birds with one stone")
    found = survey(spec, Path(), settings(tmp_path), Console())
    assert found.record.model == run.record.model
    figures = {figure["name"] for section in section_items(found, "words") for figure in section["figures"]}
    assert any(name.startswith("words.0.") for name in figures), figures
    assert list(verify(found)) == []
    assert survey(
        sentence_spec(found.record, "Two birds with one stone"), Path(), settings(tmp_path), Console()
    ).id == (found.id)
