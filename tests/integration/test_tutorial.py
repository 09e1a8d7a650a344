"""The tutorial, run from its first cell to its last on the real chat model."""

import hashlib
import json
import re
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

import theodolite

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"
SURVEY = "survey"
"""The id of the cell whose outputs are progress."""


@pytest.fixture(scope="module")
def stored():
    return nbformat.read(NOTEBOOK, as_version=4)


def test_every_cell_runs_and_says_what_it_should(stored, tmp_path, monkeypatch):
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    kernel = AsyncKernelManager(kernel_name="python3")
    kernel.kernel_spec.argv[0] = sys.executable
    NotebookClient(notebook, km=kernel, timeout=1200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = {cell.id: cell for cell in notebook.cells}
    cells[SURVEY].outputs = []
    assert [output["text"] for output in outputs_of(notebook) if output.get("name") == "stderr"] == []
    assert [kinds_of(cell) for cell in notebook.cells] == [kinds_of(cell) for cell in stored.cells]
    assert "praise and blame separate" in text_of(cells["overview"])
    vector = theodolite.load_vector(tmp_path / "praise.safetensors")
    assert (vector.layers, vector.site, vector.operation) == ([20], "resid_pre", "add")
    for measured in (cells, {cell.id: cell for cell in stored.cells}):
        positive, negative = numbers_in(text_of(measured["hook"]))
        assert positive > negative + 2
        changed = np.array([numbers_in(line)[-5:] for line in text_of(measured["measure"]).splitlines()[1:]])
        assert changed.shape == (3, 5)
        assert (np.diff(changed) > 0).all(), "a larger strength moves the log-odds further up"


def kinds_of(cell):
    """The kinds of a cell's outputs; a figure counts as its picture, and a text that arrives in parts as one."""
    kinds = [set(output.get("data", {"text": ""})) for output in cell.get("outputs", [])]
    kinds = [one for index, one in enumerate(kinds) if one != {"text"} or kinds[index - 1 : index] != [{"text"}]]
    return [{"picture"} if one & {"image/png", "application/vnd.plotly.v1+json"} else one for one in kinds]


def outputs_of(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def text_of(cell):
    return cell.outputs[0].data["text/plain"]


def numbers_in(text):
    return [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


def test_the_stored_outputs_are_those_of_its_code(stored):
    nbformat.validate(stored)
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    digest = hashlib.sha256("\0".join(cell.source for cell in code).encode()).hexdigest()
    assert stored.metadata["sources_sha256"] == digest, "the code has changed; run `make notebook`"
    assert [cell.execution_count for cell in code] == list(range(1, 11)), "ten cells"
    assert [cell.cell_type for cell in stored.cells[1:-1]] == ["markdown", "code"] * 10


def test_the_stored_notebook_is_small_and_names_no_folder_of_a_machine(stored):
    assert NOTEBOOK.stat().st_size < 1_000_000
    pictures = [set(output.data) for output in outputs_of(stored) if "image/png" in output.get("data", {})]
    assert pictures == [{"image/png", "text/plain"}]
    for output in outputs_of(stored):
        texts = {kind: text for kind, text in output.get("data", {}).items() if kind != "image/png"}
        assert not set(texts) - {"text/plain", "text/html"}
        assert not re.search(r"(?<![\w<])/\w+/|[A-Z]:\\\\|file:", json.dumps([*texts.values(), output.get("text", "")]))
