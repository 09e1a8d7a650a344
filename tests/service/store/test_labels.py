"""The labels of runs: they lie beside the runs, are checked, and never stop a list."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import ValidationError
from support.each import each
from support.finished_runs import finished_run
from typer.testing import CliRunner

from theodolite.errors import RunNotFoundError
from theodolite.query.runs import describe, summaries
from theodolite.query.verification import unexpected_objects, verify
from theodolite.store import labels as labels_module
from theodolite.store.labels import Labels, all_labels, change_labels, read_labels
from theodolite.store.objects import keys, open_location, put
from theodolite.store.pieces import record
from theodolite.store.removal import remove_run
from theodolite_jobs.cli import app

GIVEN = Labels(name="first try", tags=("paper", "draft"), remarks="Compare with the base model.\nThen decide.")


@pytest.fixture
def run(tmp_path):
    return finished_run(tmp_path, {"moments": {}, "curves": {}, "directions": {}})


def stored(store):
    return keys(open_location(str(store)), "labels")


def test_a_run_without_labels_has_the_name_of_its_spec(run, tmp_path):
    assert read_labels(run) == Labels()
    assert all_labels(str(tmp_path)) == {}
    (line,) = summaries(str(tmp_path))
    assert (line["name"], line["tags"]) == (run.record.spec.name, [])
    assert describe(run)["remarks"] == ""


def test_labels_are_shown_and_change_no_object_of_the_run(run, tmp_path):
    before = list(verify(run)), unexpected_objects(run)
    assert change_labels(run, GIVEN) == read_labels(run) == GIVEN
    (line,) = summaries(str(tmp_path))
    assert (line["name"], line["tags"]) == ("first try", ["paper", "draft"])
    assert describe(run)["remarks"] == GIVEN.remarks
    assert (list(verify(run)), unexpected_objects(run)) == before


def test_labels_that_are_not_given_stay_and_a_default_replaces_a_label(run):
    change_labels(run, GIVEN)
    assert change_labels(run, Labels(tags=("one",))) == GIVEN.model_copy(update={"tags": ("one",)})
    assert change_labels(run, Labels(name="", tags=(), remarks="")) == Labels()


def test_labels_of_a_run_are_not_those_of_a_run_whose_id_begins_alike(run, tmp_path):
    other = finished_run(tmp_path, {"moments": {}}, run_id=f"{run.id}0")
    change_labels(other, GIVEN)
    assert read_labels(run) == Labels()
    remove_run(run)
    assert read_labels(other) == GIVEN


def test_writers_of_different_labels_lose_nothing(run):
    changes = [Labels(name="first try"), Labels(tags=("paper",)), Labels(remarks="Look.")] * 10
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: change_labels(run, one), changes))
    assert read_labels(run) == Labels(name="first try", tags=("paper",), remarks="Look.")


def test_a_removed_run_leaves_no_labels(run, tmp_path):
    change_labels(run, GIVEN)
    assert len(stored(tmp_path)) == 3
    remove_run(run)
    assert stored(tmp_path) == []


def test_a_run_that_is_removed_while_its_labels_change_leaves_no_labels(run, tmp_path, monkeypatch):
    def put_after_removal(*given):
        remove_run(run)
        put(*given)

    monkeypatch.setattr(labels_module, "put", put_after_removal)
    with pytest.raises(RunNotFoundError, match="deleted in the meantime"):
        change_labels(run, Labels(name="too late"))
    assert stored(tmp_path) == []


OF_ANOTHER_RUN = record("labels/other-0/tags.json", {"tags": ["x"]})


@pytest.mark.parametrize(
    "content", [b"", b'{"tags": 3', b'{"tags": ["x"]}', b"\xff", b"[]", b'{"later": 1}', OF_ANOTHER_RUN]
)
def test_a_damaged_label_is_named_and_the_others_stay(run, tmp_path, caplog, monkeypatch, content):
    monkeypatch.setattr(labels_module._log, "filters", [])  # a service of another test logs each line once a minute
    change_labels(run, GIVEN)
    put(open_location(str(tmp_path)), f"labels/{run.id}/tags.json", content)
    (line,) = summaries(str(tmp_path))
    assert (line["name"], line["tags"]) == ("first try", [])
    (message,) = {one.getMessage() for one in caplog.records}
    assert message == f"labels/{run.id}/tags.json is damaged and ignored; set this label of the run again"
    assert change_labels(run, Labels(tags=("new",))) == GIVEN.model_copy(update={"tags": ("new",)})


@each(
    "wrong, problem",
    [
        ({"name": "x" * 201}, "at most 200"),
        ({"name": "two\nlines"}, "one line"),
        ({"name": "two\u2028lines"}, "one line"),
        ({"name": "bell\a"}, "U+0007"),
        ({"name": "abc\u202edcba"}, "U+202E"),
        ({"tags": ["a,b"]}, "comma"),
        ({"tags": [" "]}, "empty"),
        ({"tags": ["x" * 51]}, "at most 50"),
        ({"tags": [str(n) for n in range(21)]}, "at most 20"),
        ({"tags": None}, "tuple"),
        ({"remarks": "x" * 10_001}, "at most 10000"),
        ({"remarks": "\x1b[31m"}, "U+001B"),
        ({"remarks": "\x85"}, "U+0085"),
        ({"label": "x"}, "not permitted"),
    ],
)
def test_labels_are_limited(wrong, problem):
    with pytest.raises(ValidationError) as error:
        Labels.model_validate(wrong)
    assert problem in str(error.value)


def test_texts_of_all_languages_are_accepted():
    name = (
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \U0001f469\u200d\U0001f52c\u00a0x"  # with invisible joiners
    )
    assert Labels(name=name).name == name


def test_a_tag_counts_once_and_without_spaces_around_it():
    assert Labels(tags=(" paper", "paper", "draft ")).tags == ("paper", "draft")


def test_the_command_changes_and_shows_labels(run, tmp_path):
    def label(*options):
        return CliRunner().invoke(app, ["run", "label", run.id, "--store", str(tmp_path), *options])

    given = ["--name", "first try", "--tag", "paper", "--tag", "draft", "--remarks", "Look."]
    assert json.loads(label(*given, "--json").stdout) == {
        "name": "first try",
        "tags": ["paper", "draft"],
        "remarks": "Look.",
    }
    assert label().stdout == "name: first try\ntags:\n- paper\n- draft\nremarks: Look.\n"
    listed = CliRunner().invoke(app, ["run", "list", "--store", str(tmp_path)]).stdout
    assert "first try  paper, draft" in listed
    assert json.loads(label("--tag", "", "--json").stdout)["tags"] == []
    assert json.loads(label("--name", "", "--json").stdout) == {"name": None, "tags": [], "remarks": "Look."}


def test_the_command_refuses_wrong_labels_by_option(run, tmp_path):
    done = CliRunner().invoke(app, ["run", "label", run.id, "--store", str(tmp_path), "--tag", "a,b"])
    assert str(done.exception) == "--tag: given 'a,b'; contains a comma; give several tags as a list"
    assert stored(tmp_path) == []
