"""Pages that MkDocs cannot make by itself: the notebook, the analyses, and links to files that are not pages."""

import base64
import json
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from theodolite.groups import GROUPS, Group

ROOT = Path(__file__).parents[1]

_EVERY_ANALYSIS = "<!-- every analysis -->"
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the tutorial and the changelog, which are not Markdown files below docs/."""
    notebook = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())
    pictures = [output["data"]["image/png"] for output in _outputs(notebook) if "image/png" in output.get("data", {})]
    for number, picture in enumerate(pictures):
        files.append(File.generated(config, f"pictures/tutorial-{number}.png", content=base64.b64decode(picture)))
    files.append(File.generated(config, "tutorial.md", content=_page(notebook)))
    files.append(File("CHANGELOG.md", str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the analyses, and replace links to files outside of the documentation by their paths."""
    if _EVERY_ANALYSIS in markdown:
        markdown = markdown.replace(_EVERY_ANALYSIS, "\n\n".join(map(_analysis, GROUPS.values())))
    if page.file.abs_src_path is None:
        return markdown
    folder, pages = Path(page.file.abs_src_path).parent, set(files.src_uris)

    def shown(link: re.Match[str]) -> str:
        text, target, _ = link.groups()
        path = (folder / target).resolve()
        if "://" in target or not path.exists() or not path.is_relative_to(ROOT):
            return link[0]  # MkDocs itself warns of a page that is missing
        if path.is_relative_to(config.docs_dir) or path.relative_to(ROOT).as_posix() in pages:
            return link[0]
        name = path.relative_to(ROOT).as_posix()
        return f"`{name}`" if text.strip("`") == name else f"{text} (`{name}`)"

    return _LINK.sub(shown, markdown)


def _outputs(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [output for cell in notebook["cells"] for output in cell.get("outputs", [])]


def _page(notebook: dict[str, Any]) -> str:
    """Return a notebook as Markdown: its text, its code, and the stored outputs."""
    note = "This page is the notebook [tutorial.ipynb](tutorial.ipynb), which runs in Jupyter."
    numbers = count()
    parts = [_cell(cell, numbers) for cell in notebook["cells"]]
    return "\n\n".join([parts[0].replace("\n", f"\n\n{note}\n", 1), *parts[1:]])


def _cell(cell: dict[str, Any], numbers: Iterator[int]) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return text
    return "\n\n".join([f"```python\n{text}\n```", *(_output(output, numbers) for output in cell["outputs"])])


def _output(output: dict[str, Any], numbers: Iterator[int]) -> str:
    """Return an output as Markdown; `numbers` counts the pictures."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"![A figure of the run](pictures/tutorial-{next(numbers)}.png)"
    if "text/html" in data:
        html = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL)  # the site has its own
        return re.sub(r"<table[^>]*>", "<table>", html).replace("\n\n", "\n")  # a blank line would end the HTML
    text = "".join(output.get("text") or data["text/plain"])
    return f"```text\n{text.rstrip()}\n```"


def _analysis(group: Group) -> str:
    """Return a section on an analysis: what it needs, its tables, and a row for each of its arrays."""
    facts = {
        "version": str(group.version),
        "needs": ", ".join(sorted(group.needs)),
        "computed after": ", ".join(f"`{name}`" for name in group.requires),
        "options in the spec": f"`{group.options}`" if group.options else "",
        "tables": ", ".join(f"`{table.name}`" for table in group.tables),
    }
    said = "; ".join(f"{name}: {fact}" for name, fact in facts.items() if fact)
    parts = [f"## {group.title}: `{group.name}`", f"{said[0].upper()}{said[1:]}."]
    if group.variables:
        rows = [
            f"| `{one.name}` | {', '.join(one.dims)} | {one.units} | {_in_a_cell(one.description)} |"
            for one in group.variables
        ]
        parts.append("\n".join(["| array | dimensions | unit | description |", "|---|---|---|---|", *rows]))
    for table in group.tables:
        if table != group.flat_table:
            rows = [f"| `{one.name}` | {one.units} | {_in_a_cell(one.description)} |" for one in table.columns]
            heading = f"Table `{table.name}`. {table.description}"
            parts += [heading, "\n".join(["| column | unit | description |", "|---|---|---|", *rows])]
    return "\n\n".join(parts)


def _in_a_cell(text: str) -> str:
    return text.replace("|", "\\|")
