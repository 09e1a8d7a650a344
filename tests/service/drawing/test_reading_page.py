"""The page docs/reading-figures.md explains the figures of every analysis, in the order of the report."""

import ast
import re
from pathlib import Path

from support.each import each

from theodolite.groups import GROUPS, SHOWN

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "reading-figures.md").read_text(encoding="utf-8")
ENTRIES = {part.partition("\n")[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}
PARTS = ["**Axes.**", "**Read.**", "**Compare with.**", "**Mistakes.**", "**In the demo.**"]


def test_every_group_with_sections_has_an_entry_in_the_order_of_the_report():
    titles = [GROUPS[name].title for name in SHOWN]
    assert [title for title in ENTRIES if title in titles] == titles


@each("name", SHOWN)
def test_an_entry_has_a_picture_and_all_parts_in_order(name):
    entry = ENTRIES[GROUPS[name].title]
    for figure in re.split(r"^### ", entry, flags=re.MULTILINE):
        assert "](pictures/figure-" in figure
        places = [figure.index(part) for part in PARTS]
        assert places == sorted(places)


@each("name", [name for name in GROUPS if name not in SHOWN])
def test_a_group_without_sections_says_where_its_numbers_are(name):
    assert f"`{name}`" in ENTRIES["On the page only"]


def test_every_picture_of_a_figure_is_made_by_the_command_and_shown():
    tree = ast.parse((DOCS / "pictures.py").read_text(encoding="utf-8"))
    figures: dict[str, str] = {}
    for one in [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) in ("FIGURES", "FIGURES_OF_WORDS", "EXPERT_FIGURES")
    ]:
        figures |= one
    assert set(re.findall(r"\]\(pictures/(figure-\w+)\.png\)", PAGE)) == set(figures)
    assert {file.stem for file in DOCS.glob("pictures/figure-*.png")} == set(figures)
    assert {name.partition(".")[0] for name in figures.values()} == set(SHOWN)
