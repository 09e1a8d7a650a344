"""Each result group that is shown has its figures and its sections in files of its name."""

from importlib import resources

from support.each import each

from theodolite.groups import SHOWN
from theodolite.sections.catalogue import SECTIONS


def test_the_catalogue_has_the_groups_of_the_registry_in_their_order():
    assert tuple(SECTIONS) == SHOWN


@each("group", SHOWN)
@each("folder", ["figures", "sections"])
def test_a_group_has_a_file_of_its_name(group, folder):
    assert resources.files("theodolite").joinpath(folder, f"{group}.py").is_file()
