"""The page on the architecture has the layers of the contracts on imports; it and the decisions name existing files."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"


def test_the_tables_have_the_layers_of_the_contracts() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {one["name"].removeprefix("Layers of "): one["layers"] for one in contracts if one["type"] == "layers"}
    assert len(layers) == 2
    for package, highest_first in layers.items():
        _, table = PAGE.read_text().split(f"| `{package}` | does |\n|---|---|\n")
        names = [row.split("|")[1] for row in table.split("\n\n")[0].splitlines()]
        rows = [set(re.findall(r"`(\w+)/?`", cell)) for cell in names]
        assert rows == [set(layer.split(" | ")) for layer in reversed(highest_first)]


def test_the_pages_name_existing_files() -> None:
    folders = ("service", "jobs", "tests", "benchmarks", "deploy")
    files = [f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.*")]
    for page in (PAGE, *(ROOT / "docs" / "decisions").glob("*.md")):
        named = set(re.findall(r"`([\w/]+\.(?:py|js))`", page.read_text()))
        missing = [name for name in named if not any(file.endswith(f"/{name}") for file in files)]
        assert not missing, page
