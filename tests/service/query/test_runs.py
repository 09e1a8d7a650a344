"""The spec of a run's results names only analyses that it can name, and runs are found by id or name."""

import pytest
from support.each import each
from support.serving import captured_run

import theodolite
from theodolite.errors import RunNotFoundError
from theodolite.groups import ANALYSES
from theodolite.query.runs import describe, run_id_of, with_analyses
from theodolite.spec_file import parse_spec
from theodolite.store.labels import Labels, change_labels

PROMPTS = {name: {"source": f"builtin:{name}", "template": "none"} for name in ("harmful", "harmless")}


@each(
    "changes, left_out",
    [
        ({"heads": {"vectors": 0}}, {"words"}),
        ({"contrasts": {}}, {"separation"}),
        ({"capture": {"keep": 5}, "gram": {"samples": 5}}, {"separation", "basis"}),
        ({}, set()),
    ],
)
def test_analyses_that_the_spec_cannot_name_are_left_out(changes, left_out):
    contrasts = {"refusal": {"positive": "harmful", "negative": "harmless"}}
    spec = parse_spec({"model": {"id": "m"}, "prompts": PROMPTS, "contrasts": contrasts, **changes})
    names = {"curves", "gram", "separation", "basis", "heads", "words", "moments"}
    named = with_analyses(spec, names).analyses
    assert named == [name for name in ANALYSES if name in names - left_out]


def test_the_warnings_of_the_survey_are_notes_of_the_run(tmp_path):
    assert "one warning" not in describe(captured_run(tmp_path, "tiny-0"))["notes"]
    assert describe(captured_run(tmp_path, "tiny-1", warnings=["one warning"]))["notes"][0] == "one warning"


def test_a_run_is_found_by_its_id_or_by_a_name_that_only_it_has(tmp_path):
    runs = [captured_run(tmp_path, run_id) for run_id in ("tiny-0", "tiny-1", "tiny-2")]
    store = str(tmp_path)
    change_labels(runs[0], Labels(name="first"))
    assert run_id_of(store, "first") == run_id_of(store, "tiny-0") == "tiny-0"
    assert theodolite.open_run(store, "first").id == "tiny-0"
    change_labels(runs[1], Labels(name="tiny-2"))
    assert run_id_of(store, "tiny-2") == "tiny-2"  # an id comes before a name
    change_labels(runs[2], Labels(name="first"))
    with pytest.raises(RunNotFoundError, match=r"2 runs have the name 'first'; give the id of one: .*tiny-[02]"):
        run_id_of(store, "first")
    with pytest.raises(RunNotFoundError, match="has no run 'other'; it has tiny-0, tiny-1, tiny-2"):
        theodolite.open_run(store, "other")


def test_a_list_with_effects_keeps_the_other_analyses():
    contrasts = {"refusal": {"positive": "harmful", "negative": "harmless"}}
    spec = parse_spec({"model": {"id": "m"}, "prompts": PROMPTS, "contrasts": contrasts, "effects": {}})
    assert with_analyses(spec, {"curves", "separation", "effects"}).analyses == ["separation", "curves", "effects"]
    without = with_analyses(spec, {"curves", "gram"})
    assert (without.analyses, without.effects) == (["curves", "gram"], None)
