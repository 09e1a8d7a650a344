"""Run the tutorial, and store its outputs in the notebook; figures become pictures.

`make notebook` runs this program.
"""

import hashlib
import os
import shutil
import sys
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
import plotly.offline
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from playwright.sync_api import Page, sync_playwright

NOTEBOOK = Path(__file__).with_name("tutorial.ipynb")
PLOTLY, PNG = "application/vnd.plotly.v1+json", "image/png"
WIDTH, HEIGHT = 900, 480
"""The size of a picture in pixels; a figure can have another height."""


def main() -> None:
    """Replace the outputs of the notebook."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    metadata = deepcopy(notebook.metadata)  # without the version of this Python
    with TemporaryDirectory() as folder:
        execute(notebook, folder)
        next(cell for cell in notebook.cells if cell.id == "survey").outputs = []  # its progress
        outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
        for output in outputs:
            shorten_paths(output, f"{folder}/")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.add_script_tag(content=plotly.offline.get_plotlyjs())
        for output in outputs:
            if PLOTLY in output.get("data", {}):
                output.data = {PNG: picture_of(page, output.data[PLOTLY]), "text/plain": "<a figure>"}
        browser.close()
    notebook.metadata = metadata
    notebook.metadata["sources_sha256"] = digest_of_sources(notebook)
    nbformat.write(notebook, NOTEBOOK)
    print(f"{NOTEBOOK}: {NOTEBOOK.stat().st_size} bytes")


def digest_of_sources(notebook: Any) -> str:
    """Return the SHA-256 of a notebook's code: outputs with another digest belong to other code."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()


def execute(notebook: Any, folder: str) -> None:
    """Execute all cells in a folder, with the Python that runs this program."""
    os.environ.pop("THEODOLITE_STORE", None)
    kernel = AsyncKernelManager(kernel_name="python3")
    kernel.kernel_spec.argv[0] = sys.executable
    resources = {"metadata": {"path": folder}}
    NotebookClient(notebook, km=kernel, timeout=600, record_timing=False, resources=resources).execute()


def shorten_paths(output: Any, prefix: str) -> None:
    """Remove the folder of the execution from the texts of an output."""
    if "text" in output:
        output.text = output.text.replace(prefix, "")
    for kind, content in output.get("data", {}).items():
        if isinstance(content, str):
            output.data[kind] = content.replace(prefix, "")


def picture_of(page: Page, figure: Any) -> str:
    """Return a Plotly figure as a PNG in base64."""
    options = {"format": "png", "width": WIDTH, "height": figure["layout"].get("height", HEIGHT)}
    url: str = page.evaluate("([figure, options]) => Plotly.toImage(figure, options)", [figure, options])
    return url.removeprefix("data:image/png;base64,")


if __name__ == "__main__":
    main()
