"""Provide runs of older versions."""

from dataclasses import replace

import pytest
from support.finished_runs import cached_run

from theodolite.groups import GROUPS


@pytest.fixture
def older_run(tmp_path, monkeypatch):
    """Write a run of an older version: one of its groups lacks the variables that have a part in their names."""

    def write(name, values, *parts):
        group = GROUPS[name]
        known = tuple(one for one in group.variables if not any(part in one.name for part in parts))
        assert len(known) < len(group.variables)
        with monkeypatch.context() as older:
            older.setitem(GROUPS, name, replace(group, variables=known))
            return cached_run(tmp_path / "older", {"curves": {}, name: values})

    return write
