"""The page docs/reading-figures.md explains every figure, in the order of the tabs of the page."""

import ast
import re
from pathlib import Path

import pytest
from support.each import each
from support.serving import surveyed_run

from theodolite.groups import GROUPS, SHOWN
from theodolite.groups.schema import CHAPTERS
from theodolite.sections.catalogue import figures_of, sections_of

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "reading-figures.md").read_text(encoding="utf-8")
TABS = {part.partition("\n")[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}
ITEMS = [item for tab in list(TABS.values())[2:] for item in re.split(r"^- ", tab, flags=re.MULTILINE)[1:]]
ENTRIES = [item.partition("\n\n")[0] for item in ITEMS]
NAMED = re.findall(rf"`((?:{'|'.join(GROUPS)})\.[\w.-]+)`", "".join(ENTRIES))
GROUPS_FOLDER = Path(__file__).parents[3] / "service/theodolite/groups"


def _explains(documented: str, name: str) -> bool:
    """Return whether a name on the page, in which capital letters stand for a label, is that of a figure."""
    return bool(re.fullmatch(re.sub(r"\b[A-Z]+\b", "[^.]+", documented.replace(".", r"\.")), name))


def _analyses(tab: str) -> list[str]:
    """Return the titles of the analyses of a tab; the tab of one analysis has the title of this analysis."""
    return re.findall(r"^### (.+)$", TABS[tab], flags=re.MULTILINE) or [tab]


def test_the_grammar_comes_first_and_the_tabs_are_in_their_order():
    first = ["The grammar", "Traps of all figures"]
    assert list(TABS) == [*first, "Overview", "Prompts", *CHAPTERS, "Data", "Compare"]
    assert len(TABS["The grammar"].splitlines()) <= 40


@each("tab", CHAPTERS)
def test_the_analyses_of_a_tab_are_in_the_order_of_the_report(tab):
    assert _analyses(tab) == [GROUPS[name].title for name in SHOWN if GROUPS[name].chapter == tab]


def test_every_entry_says_what_to_compare_with_and_names_one_trap():
    of_figures = [entry for entry in ENTRIES if any(f"`{name}`" in entry for name in NAMED)]
    assert len(of_figures) > 30
    for entry in of_figures:
        assert entry.count("*Trap:*") == 1
        assert entry.count("*Compare") == 1


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    """The names of the figures of a run with five analyses."""
    run = surveyed_run(tmp_path_factory.mktemp("store"))
    return [figure.name for group in SHOWN for figure in figures_of(sections_of(run, group))]


def test_every_figure_of_a_run_has_an_entry(figures):
    assert len(figures) > 10
    for name in figures:
        assert any(_explains(documented, name) for documented in NAMED), name


@each("group", SHOWN)
def test_every_figure_that_the_code_names_has_an_entry(group):
    own = [name for name in NAMED if name.partition(".")[0] == group]
    assert own
    for file in (GROUPS_FOLDER / group).glob("sections*.py"):
        calls = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        names = [call.args[0] for call in calls if ast.unparse(call.func) == "Figure"]
        for name in names:
            pattern = "".join("[^`]+" if part is None else re.escape(part) for part in _parts(name))
            assert any(re.fullmatch(pattern, documented) for documented in own), ast.unparse(name)


def _parts(name: ast.expr) -> list[str | None]:
    """Return the constant texts of a name, with None for each variable."""
    values = name.values if isinstance(name, ast.JoinedStr) else [name]
    return [one.value if isinstance(one, ast.Constant) else None for one in values]


@each("name", [name for name in GROUPS if name not in SHOWN])
def test_a_group_without_sections_says_where_its_numbers_are(name):
    assert f"`{name}`" in TABS["Data"]


def test_every_picture_of_a_figure_is_made_by_the_command_and_shown():
    tree = ast.parse((DOCS / "pictures.py").read_text(encoding="utf-8"))
    figures: dict[str, str] = {}
    for one in [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) in ("FIGURES", "FIGURES_OF_WORDS", "FIGURES_OF_PROBES", "EXPERT_FIGURES")
    ]:
        figures |= one
    assert set(re.findall(r"\]\(pictures/(figure-\w+)\.png\)", PAGE)) == set(figures)
    assert {file.stem for file in DOCS.glob("pictures/figure-*.png")} == set(figures)
    assert {name.partition(".")[0] for name in figures.values()} == set(SHOWN)
    assert all(any(_explains(documented, name) for documented in NAMED) for name in figures.values())
