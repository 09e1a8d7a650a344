"""Groups that another version wrote."""

from dataclasses import replace

import numpy as np
from support.finished_runs import finished_run

from theodolite.groups import GROUPS, Variable
from theodolite.store import result_reader
from theodolite.store.result_reader import read_group


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
