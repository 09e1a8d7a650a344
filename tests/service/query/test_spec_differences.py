"""The options in which the surveys of several runs differ are named, each with its value in each run."""

from dataclasses import replace

import pytest
from support.finished_runs import finished_run

from theodolite.query.spec_differences import spec_differences


@pytest.fixture
def run_of(tmp_path):
    def made(run_id, change=lambda spec: spec, **options):
        run = finished_run(tmp_path, {"curves": {}}, run_id=run_id, **options)
        spec = type(run.record.spec).model_validate(change(run.record.spec.model_dump(mode="json")))
        return replace(run, record=run.record.model_copy(update={"spec": spec}))

    return made


def test_equal_surveys_have_no_differences(run_of):
    assert spec_differences([run_of("one"), run_of("two")]) == []
    assert spec_differences([run_of("alone")]) == []


def test_options_with_other_values_have_a_value_for_each_run(run_of):
    other = run_of("two", lambda spec: {**spec, "capture": {**spec["capture"], "batch_tokens": 7}})
    assert spec_differences([run_of("one"), other, run_of("three")]) == [
        {"option": "capture.batch_tokens", "values": {"one": 2048, "two": 7, "three": 2048}}
    ]


def test_an_option_that_a_spec_lacks_has_no_value_there(run_of):
    own = {"own": {"positive": "harmful", "negative": "harmless"}}
    found = spec_differences([run_of("one"), run_of("two", contrasts=own)])
    assert {one["option"]: list(one["values"]) for one in found if one["option"].endswith(".positive")} == {
        "contrasts.refusal.positive": ["one"],
        "contrasts.own.positive": ["two"],
    }
