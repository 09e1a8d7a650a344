"""An analysis is a folder with its name in each of the two packages."""

from importlib import import_module
from pathlib import Path

from support.each import each

import theodolite.groups
from theodolite.groups import GROUPS, SHOWN
from theodolite_jobs.groups import computation

FOLDER = Path(theodolite.groups.__file__).parent
NAMES = sorted(record.parent.name for record in FOLDER.glob("*/record.py"))


@each("name", NAMES)
def test_a_folder_has_the_name_of_its_group_and_its_computation(name):
    assert import_module(f"theodolite.groups.{name}.record").GROUP.name == name
    assert callable(computation(name).compute)
    assert callable(computation(name).digest_inputs)


def test_every_folder_is_registered_and_those_with_sections_are_shown():
    assert sorted(GROUPS) == NAMES
    assert sorted(SHOWN) == sorted(file.parent.name for file in FOLDER.glob("*/sections.py"))
    assert set(SHOWN) == {file.parent.name for file in FOLDER.glob("*/figures.py")}


def test_what_a_group_requires_comes_before_it():
    order = list(GROUPS)
    assert all(order.index(required) < order.index(name) for name in order for required in GROUPS[name].requires)
    assert len({group.order for group in GROUPS.values()}) == len(GROUPS)
