"""Check that `/v1/analyses` describes the registry of analyses, and that routes and schemas derive from it."""

from dataclasses import asdict

import pytest
from support.serving import assert_problem, client_of

from theodolite import __version__
from theodolite.api.schemas import CurveItem, HeadCard
from theodolite.groups import GROUPS, SHOWN
from theodolite.groups.schema import CHAPTERS
from theodolite.query.curves import CURVE_LABELS, STATISTICS, Curve
from theodolite.query.heads import Head
from theodolite.query.profiles import PROFILES


@pytest.fixture(scope="module")
def items(client):
    answer = client.get("/v1/analyses")
    assert answer.status_code == 200
    return {item["name"]: item for item in answer.json()["items"]}


def test_every_analysis_is_described_as_registered(items):
    assert list(items) == list(GROUPS)
    for name, group in GROUPS.items():
        item = items[name]
        assert set(item) == {
            *("name", "title", "chapter", "is_requestable", "tables", "needs", "options", "variables"),
            *("labels", "profiles"),
        }
        assert item["labels"] == {dim: list(labels) for dim, labels in group.labels.items()}
        for field in ("title", "chapter", "is_requestable", "options"):
            assert item[field] == getattr(group, field)
        assert item["tables"] == [asdict(table) | {"columns": [*map(asdict, table.columns)]} for table in group.tables]
        assert item["needs"] == sorted(group.needs)
        assert [one["name"] for one in item["variables"]] == [one.name for one in group.variables]


def test_every_statistic_that_can_be_compared_is_listed_with_its_group(items):
    listed = {one["name"]: one for item in items.values() for one in item["profiles"]}
    assert set(listed) == set(PROFILES)
    for name, profile in PROFILES.items():
        assert listed[name]["variable"] in [one["name"] for one in items[profile.group]["variables"]]
        assert (listed[name]["dims"], listed[name]["description"]) == (list(profile.dims), profile.description)


def test_every_variable_is_described_as_registered(items):
    for name, group in GROUPS.items():
        for item, variable in zip(items[name]["variables"], group.variables, strict=True):
            registered = asdict(variable)
            for field in ("name", "units", "description", "dtype"):
                assert item[field] == registered[field]
            assert item["dims"] == list(variable.dims)
            assert set(item) == {"name", "dims", "units", "description", "dtype", "curves"}


def test_variables_along_depth_are_the_statistics_of_curves(items):
    along_depth = {(name, one["name"]) for name, item in items.items() for one in item["variables"] if one["curves"]}
    assert along_depth == {(one.group, one.variable.name) for one in STATISTICS.values()}


def test_the_order_in_each_chapter_equals_that_of_the_report(items):
    in_chapters = [name for chapter in CHAPTERS for name, item in items.items() if item["chapter"] == chapter]
    assert tuple(in_chapters) == SHOWN


def test_the_etag_depends_only_on_the_version(client, monkeypatch, tmp_path):
    etag = client.get("/v1/analyses").headers["etag"]
    assert client_of(tmp_path).get("/v1/analyses").headers["etag"] == etag
    assert client.get("/v1/analyses", headers={"If-None-Match": etag}).status_code == 304
    monkeypatch.setattr("theodolite.api.analyses.__version__", f"{__version__}.1")
    assert client.get("/v1/analyses").headers["etag"] != etag


def test_the_registry_is_offered_only_as_json(client):
    refused = client.get("/v1/analyses", headers={"Accept": "application/vnd.apache.parquet"})
    assert_problem(refused, 406, "application/json")


def test_schemas_of_curves_and_heads_have_the_fields_of_their_dataclasses():
    assert set(CurveItem.model_fields) == {*Curve.__dataclass_fields__, *CURVE_LABELS} - {"of"}
    assert set(HeadCard.model_fields) == {"run_id", *Head.__dataclass_fields__}
