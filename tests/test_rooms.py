"""Whoever knows the name of a result group finds its formula, computation, figures and sentences by that name."""

from pathlib import Path

import theodolite
import theodolite_jobs
from theodolite.groups import GROUPS, SHOWN
from theodolite_jobs.results.computations import COMPUTATIONS

SERVICE, JOBS = (Path(package.__file__).parent for package in (theodolite, theodolite_jobs))


def test_a_group_has_its_file_in_every_room():
    of_all = [room / f"{name}.py" for room in (SERVICE / "groups", JOBS / "statistics") for name in GROUPS]
    of_shown = [SERVICE / f"{room}/{name}.py" for room in ("figures", "sections") for name in SHOWN]
    assert [str(file) for file in of_all + of_shown if not file.is_file()] == []
    assert [(name, module.__name__.rpartition(".")[2]) for name, module in COMPUTATIONS.items()] == [
        (name, name) for name in GROUPS
    ]


def test_what_a_group_requires_is_computed_before_it():
    order = list(GROUPS)
    assert all(order.index(required) < order.index(name) for name in order for required in GROUPS[name].requires)
