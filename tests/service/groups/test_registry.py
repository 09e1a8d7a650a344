"""A group is a folder in each package; whoever knows its name finds all of it."""

from support.each import each

from theodolite.groups import GROUPS
from theodolite_jobs.groups import computation


@each("name", GROUPS)
def test_a_folder_has_the_name_of_its_group_and_its_computation(name):
    assert GROUPS[name].name == name
    assert callable(computation(name).compute)
    assert callable(computation(name).digest_inputs)


def test_what_a_group_requires_comes_before_it():
    order = list(GROUPS)
    assert all(order.index(required) < order.index(name) for name in order for required in GROUPS[name].requires)
    assert len({group.order for group in GROUPS.values()}) == len(GROUPS)
