"""Groups that another version wrote."""

from dataclasses import replace

import pytest
from support.finished_runs import finished_run

from theodolite.errors import StoreVersionError
from theodolite.groups import GROUPS
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import damaged_groups, read_group, read_layer
from theodolite.store.result_writer import drop_claims


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_group_of_another_version_is_refused(tmp_path, monkeypatch, difference):
    run = finished_run(tmp_path, {"heads": {}, "directions": {"reliability": 0.9}})
    group = GROUPS["heads"]
    monkeypatch.setitem(GROUPS, "heads", replace(group, version=group.version + difference))
    message = f"'heads' are of version {group.version}; .* {group.version + difference}; `theodolite run analyse"
    with pytest.raises(StoreVersionError, match=message):
        read_group(run, "heads")
    with pytest.raises(StoreVersionError, match=message):
        read_layer(run, "heads", 0)
    assert (read_group(run, "directions")["reliability"] == 0.9).all()
    assert damaged_groups(run) == ["heads"]


def test_a_group_of_a_newer_version_keeps_its_claims(tmp_path):
    run, groups = finished_run(tmp_path, {"curves": {}, "travel": {}}), dict(GROUPS)
    try:
        del GROUPS["travel"]
        assert "travel" in finished_groups(run)
        drop_claims(run)
    finally:
        GROUPS.clear()
        GROUPS.update(groups)  # in their order, which other tests compare
