"""Groups that another version wrote."""

import json
from dataclasses import replace

import numpy as np
from support.finished_runs import finished_run

from theodolite.export import encode_directions
from theodolite.groups import GROUPS, Variable
from theodolite.query.curves import select_curves
from theodolite.sections.words_nouns import noun_sections
from theodolite.store import result_reader
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group
from theodolite.store.result_writer import drop_claims


def test_a_variable_that_an_older_version_did_not_write_is_missing(tmp_path, monkeypatch):
    run = finished_run(tmp_path, {"directions": {"reliability": 0.9}})
    group = GROUPS["directions"]
    later = (*group.variables, Variable("later", ("contrast", "site", "position", "layer"), "A later statistic."))
    newer = replace(group, version=group.version + 1, variables=later)
    monkeypatch.setattr(result_reader, "GROUPS", {**GROUPS, "directions": newer})
    found = read_group(run, "directions")
    assert np.isnan(found["later"]).all()
    assert found["later"].shape == found["reliability"].shape
    assert (found["reliability"] == 0.9).all()


def test_a_later_variable_with_a_dimension_of_its_own_is_absent(tmp_path, monkeypatch):
    group = GROUPS["curves"]
    known = tuple(variable for variable in group.variables if "n_prompts" not in variable.dims)
    with monkeypatch.context() as older:
        older.setitem(GROUPS, "curves", replace(group, version=2, variables=known))
        run = finished_run(tmp_path, {"curves": {"difference_norm": 2.0}})
    found = read_group(run, "curves")
    assert (found["difference_norm"] == 2.0).all()
    assert "cosine_of_means_expected" not in found
    assert "n_prompts" not in found.dims


def test_directions_of_an_older_version_are_read_and_exported_without_what_they_lack(tmp_path, monkeypatch):
    group = GROUPS["directions"]
    known = tuple(variable for variable in group.variables if variable.name in ("direction", "direction_cosine"))
    with monkeypatch.context() as older:
        older.setitem(GROUPS, "directions", replace(group, version=2, variables=known))
        written = {"curves": {"difference_norm": 1.0}, "directions": {"direction": np.eye(8)[0]}, "moments": {}}
        run = finished_run(tmp_path / "store", written)
    found = read_group(run, "directions")
    assert (found["n_positive"] == -1).all()
    assert found["reliability"].attrs["units"] == "1"
    curve, *_ = select_curves(run, ["reliability"])
    assert curve.n == {}
    assert np.isnan(curve.value).all()
    metadata = json.loads(encode_directions(run, "refusal", "resid_pre", [1], format="json"))
    assert {"n_positive", "difference_norm"} < set(metadata)
    assert not {"reliability", "noise_share", "difference_norm_debiased"} & set(metadata)


def test_a_group_of_a_newer_version_keeps_its_claims(tmp_path):
    run, groups = finished_run(tmp_path, {"curves": {}, "travel": {}}), dict(GROUPS)
    try:
        del GROUPS["travel"]
        assert "travel" in finished_groups(run)
        drop_claims(run)
    finally:
        GROUPS.clear()
        GROUPS.update(groups)  # in their order, which other tests compare


def test_words_of_the_version_without_arrays_are_read_without_them(tmp_path, monkeypatch):
    with monkeypatch.context() as older:
        older.setitem(GROUPS, "words", replace(GROUPS["words"], version=1, variables=()))
        run = finished_run(tmp_path, {"words": {}})
    found = read_group(run, "words")
    assert not found.variables
    assert found.attrs["version"] == 1
    assert noun_sections(run, found.assign_attrs(tables=[])) == []
