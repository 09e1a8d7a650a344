"""What Python does with the runs of a store equals what it does with those of a service, with the same arguments."""

import inspect
import re
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from support.serving import copied

import theodolite
from theodolite.api.app import create_app
from theodolite.errors import RunNotFoundError, SpecError
from theodolite.run_reader import RunReader
from theodolite.settings import Settings
from theodolite_jobs.cli import _ALONE, _OF_NOUNS


def parameters(function, *left_out: str) -> list[tuple[str, object, object]]:
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default) for one in found if one.name not in ("self", *left_out)]


def test_functions_and_methods_have_the_same_arguments():
    for name in ("compare", "label", "remove"):
        assert parameters(getattr(theodolite, name), "store") == parameters(getattr(theodolite.Client, name)), name
    assert parameters(theodolite.plan, "store") == parameters(theodolite.Client.plan, "seconds_to_wait")
    assert set(theodolite.__all__) == set(dir(theodolite))
    for name in theodolite.__all__:
        assert getattr(theodolite, name) is not None


def test_the_table_of_the_reference_names_what_exists():
    page = (Path(__file__).parents[3] / "docs/reference/index.md").read_text()
    rows = [re.findall(r"`([^`]+)`", row) for row in page.partition("| | Python |")[2].splitlines()]
    named = {name for row in rows for name in row}
    homes = {"theodolite": theodolite, "client": theodolite.Client, "run": RunReader}
    python = {name for name in named if re.fullmatch(r"(theodolite|client|run)\.\w+", name)}
    for home, _, name in (one.partition(".") for one in python):
        assert hasattr(homes[home], name), name
    assert {f"theodolite.{name}" for name in theodolite.__all__} - python == {
        *("theodolite.Client", "theodolite.__version__", "theodolite.open_run")
    }
    paths = create_app(Settings(), open_without_tokens=True).openapi()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    commands = {*_ALONE, *(f"{noun} {verb}" for noun, (_, verbs) in _OF_NOUNS.items() for verb in verbs)}
    assert named - python <= routes | commands


def test_a_comparison_is_that_of_the_service(shelf, service):
    ways = partial(theodolite.compare, store=shelf), service.compare
    here, there = (compare(["tiny-0"], "auroc", contrast="subject") for compare in ways)
    pd.testing.assert_frame_equal(here, there, check_dtype=False)
    assert here.attrs["milestones"] == there.attrs["milestones"]
    with pytest.raises(RunNotFoundError, match="nobody"):
        theodolite.compare(["tiny-0", "nobody"], store=shelf)


def test_a_run_is_labelled_verified_and_removed(shelf, tmp_path, monkeypatch):
    store = copied(shelf, tmp_path, "heads-0", "tiny-0")
    monkeypatch.setenv("THEODOLITE_STORE", store)  # the default
    assert theodolite.label("tiny-0", name="first", tags=["a"]) == {"name": "first", "tags": ["a"], "remarks": ""}
    assert theodolite.label("first", remarks="b")["tags"] == ["a"]  # a name that one run has is as good as its id
    with pytest.raises(SpecError, match="name: given '3'"):
        theodolite.label("tiny-0", name=3)
    before = theodolite.verify("heads-0")
    (array,) = (tmp_path / "runs/heads-0").rglob("effective_rank/zarr.json")
    array.write_text("{}")
    assert any("effective_rank" in line for line in set(theodolite.verify("heads-0")) - set(before))
    theodolite.remove("first")
    assert theodolite.runs(store)["run_id"].tolist() == ["heads-0"]
