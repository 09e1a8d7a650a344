"""Whoever knows the name of a result group finds its formula, computation, figures and sentences by that name."""

from importlib import import_module
from pathlib import Path

import pytest

import theodolite
import theodolite_jobs
from theodolite.groups import GROUPS, SHOWN
from theodolite_jobs.results.computations import COMPUTATIONS

SERVICE, JOBS = (Path(package.__file__).parent for package in (theodolite, theodolite_jobs))
ROOMS_OF_ALL = (SERVICE / "groups", JOBS / "statistics", JOBS / "results")
ROOMS_OF_SHOWN = (SERVICE / "figures", SERVICE / "sections")


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_has_its_file_in_every_room(name):
    rooms = [*ROOMS_OF_ALL, *(ROOMS_OF_SHOWN if name in SHOWN else ())]
    assert [str(room) for room in rooms if not (room / f"{name}.py").is_file()] == []


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_is_computed_by_the_module_of_its_name(name):
    module = import_module(f"theodolite_jobs.results.{name}")
    assert COMPUTATIONS[name] is module
    assert callable(module.digest_inputs)
    assert callable(module.compute)


def test_computations_are_those_of_the_registry_and_no_others():
    assert list(COMPUTATIONS) == list(GROUPS)


@pytest.mark.parametrize("name", GROUPS)
def test_what_a_group_requires_is_computed_before_it(name):
    order = list(GROUPS)
    assert all(order.index(required) < order.index(name) for required in GROUPS[name].requires)
