"""The arrays and tables of a run are listed with what the registry says of them."""

import json

from support.finished_runs import finished_run
from support.serving import surveyed_run

from theodolite.groups import GROUPS
from theodolite.groups.separation.record import SCALES, SCORES
from theodolite.groups.travel.record import GROWTH
from theodolite_jobs.commands.stored import show


def test_each_stored_array_is_listed_with_its_dimensions_unit_and_meaning(tmp_path, capsys):
    run = finished_run(tmp_path, {"curves": {}, "moments": {}})
    show(run.id, arrays=True, store=str(tmp_path), as_json=True)
    items = json.loads(capsys.readouterr().out)["items"]
    known = {(name, one.name): one for name in ("curves", "moments") for one in GROUPS[name].variables}
    assert {(item["group"], item["array"]) for item in items} == set(known)
    for item in items:
        one = known[item["group"], item["array"]]
        assert (item["dims"], item["units"], item["description"]) == ([*one.dims], one.units, one.description)
    show(run.id, arrays=True, store=str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(items)
    mean = known["moments", "mean"]
    assert f"moments  mean({', '.join(mean.dims)}) [{mean.units}]  {mean.description}" in lines


def test_each_column_of_a_table_is_listed_but_those_of_flat_ones(tmp_path, capsys):
    run = surveyed_run(tmp_path)
    show(run.id, arrays=True, store=str(tmp_path), as_json=True)
    items = [item for item in json.loads(capsys.readouterr().out)["items"] if "table" in item]
    tables = [SCORES, SCALES, GROWTH]
    assert [(item["table"], item["column"]) for item in items] == [
        (table.name, name) for table in tables for name in table.names
    ]
    show(run.id, arrays=True, store=str(tmp_path))
    assert "travel  growth.origin [blocks]  t₀ of the power law; NaN for an exponential." in capsys.readouterr().out
