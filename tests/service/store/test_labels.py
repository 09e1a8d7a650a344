"""The labels of runs: they lie beside the runs, are checked, and never stop a list."""

import pytest
from pydantic import ValidationError
from support.finished_runs import finished_run

from theodolite.query.runs import describe, summaries
from theodolite.query.verification import unexpected_objects, verify
from theodolite.store.labels import Labels, all_labels, delete_labels, read_labels, write_labels
from theodolite.store.objects import open_location, put
from theodolite.store.removal import remove_run

GIVEN = Labels(name="first try", tags=("paper", "draft"), remarks="Compare with the base model.\nThen decide.")


@pytest.fixture
def run(tmp_path):
    return finished_run(tmp_path, {"moments": {}, "curves": {}, "directions": {}})


def test_a_run_without_labels_has_the_name_of_its_spec(run, tmp_path):
    assert read_labels(str(tmp_path), run.id) == Labels()
    assert all_labels(str(tmp_path)) == {}
    (line,) = summaries(str(tmp_path))
    assert (line["name"], line["tags"]) == (run.record.spec.name, [])
    assert describe(run)["remarks"] == ""


def test_labels_are_shown_and_change_no_object_of_the_run(run, tmp_path):
    write_labels(str(tmp_path), run.id, GIVEN)
    assert read_labels(str(tmp_path), run.id) == GIVEN
    (line,) = summaries(str(tmp_path))
    assert (line["name"], line["tags"]) == ("first try", ["paper", "draft"])
    assert describe(run)["remarks"] == GIVEN.remarks
    assert unexpected_objects(run) == []
    assert not any("label" in problem for problem in verify(run))


def test_empty_labels_are_removed_and_so_are_those_of_a_removed_run(run, tmp_path):
    write_labels(str(tmp_path), run.id, GIVEN)
    write_labels(str(tmp_path), run.id, Labels())
    assert all_labels(str(tmp_path)) == {}
    write_labels(str(tmp_path), run.id, GIVEN)
    remove_run(run)
    assert all_labels(str(tmp_path)) == {}
    delete_labels(str(tmp_path), run.id)


def test_damaged_labels_are_empty_ones(run, tmp_path):
    put(open_location(str(tmp_path)), f"labels/{run.id}.json", b'{"name": 3')
    assert read_labels(str(tmp_path), run.id) == Labels()
    assert [line["run_id"] for line in summaries(str(tmp_path))] == [run.id]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "x" * 201},
        {"name": "two\nlines"},
        {"name": "bell\a"},
        {"tags": ["a,b"]},
        {"tags": [" "]},
        {"tags": ["x" * 51]},
        {"tags": [str(n) for n in range(21)]},
        {"remarks": "x" * 10_001},
        {"remarks": "\x1b[31m"},
        {"label": "x"},
    ],
)
def test_labels_are_limited(wrong):
    with pytest.raises(ValidationError):
        Labels.model_validate(wrong)


def test_a_tag_counts_once_and_without_spaces_around_it():
    assert Labels(tags=(" paper", "paper", "draft ")).tags == ("paper", "draft")
