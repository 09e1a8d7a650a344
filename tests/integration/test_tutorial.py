"""The tutorial, run from its first cell to its last on a small survey of the real chat model."""

import hashlib
import json
import re
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from support.short_reports import short_reports

from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"

SPEC = {
    "model": {"id": "smollm2-135m-instruct"},
    "prompts": {
        "harmful": {"source": "builtin:harmful", "limit": 8},
        "harmless": {"source": "builtin:harmless", "limit": 8},
    },
    "contrasts": {"refusal": {"positive": "harmful", "negative": "harmless", "paired": True}},
    # Words take a minute: their vocabulary is swept.
    "analyses": ["curves", "separation", "permutations", "travel", "heads"],
    "heads": {"vectors": 2},
    "words": {"sentences": []},
}


@pytest.fixture(scope="module")
def run(forked_replicas, tmp_path_factory):
    settings = Settings(store=str(tmp_path_factory.mktemp("tutorial")), replicas=1, gpus_per_replica=0)
    with short_reports():
        return survey(parse_spec(SPEC), Path(), settings, Console())


@pytest.mark.nightly
def test_every_cell_runs_and_says_what_it_should(run, stored, tmp_path, monkeypatch):
    monkeypatch.setenv("THEODOLITE_STORE", run.store)
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    kernel = AsyncKernelManager(kernel_name="python3")
    kernel.kernel_spec.argv[0] = sys.executable
    NotebookClient(notebook, km=kernel, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    complaints = [output["text"] for output in outputs if output.get("name") == "stderr"]
    assert complaints == []
    said = json.dumps(outputs)
    assert run.id in said
    assert "8 against 8 prompts" in said
    assert said.count("application/vnd.plotly.v1+json") == 2
    assert len(list(tmp_path.glob("*/direction.gguf"))) == 1
    assert [kinds_of(cell) for cell in notebook.cells] == [kinds_of(cell) for cell in stored.cells]


def kinds_of(cell):
    """The kinds of a cell's outputs; a figure counts as its picture, and a text that arrives in parts as one."""
    kinds = [set(output.get("data", {"text": ""})) for output in cell.get("outputs", [])]
    kinds = [one for index, one in enumerate(kinds) if one != {"text"} or kinds[index - 1 : index] != [{"text"}]]
    return [{"picture"} if one & {"image/png", "application/vnd.plotly.v1+json"} else one for one in kinds]


@pytest.fixture(scope="module")
def stored():
    return nbformat.read(NOTEBOOK, as_version=4)


def outputs_of(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_the_stored_outputs_are_those_of_its_code(stored):
    nbformat.validate(stored)
    source = "\0".join(cell.source for cell in stored.cells if cell.cell_type == "code")
    digest = hashlib.sha256(source.encode()).hexdigest()
    assert stored.metadata["sources_sha256"] == digest, "the code has changed; run `make notebook`"
    counts = [cell.execution_count for cell in stored.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))


def test_the_stored_outputs_are_those_of_the_demo(stored):
    said = json.dumps(outputs_of(stored))
    named = re.search(r"RUN=(\S+)", (NOTEBOOK.parents[1] / "README.md").read_text())[1]
    assert named in said
    assert "256 against 256 prompts" in said
    assert not [output for output in outputs_of(stored) if output.get("name") == "stderr"]


def test_the_stored_notebook_is_small_and_names_no_folder_of_a_machine(stored):
    assert NOTEBOOK.stat().st_size < 1_000_000
    assert [set(output.data) for output in outputs_of(stored) if "image/png" in output.get("data", {})] == [
        {"image/png", "text/plain"}
    ] * 2
    for output in outputs_of(stored):
        texts = {kind: text for kind, text in output.get("data", {}).items() if kind != "image/png"}
        assert not set(texts) - {"text/plain", "text/html"}
        assert not re.search(r"(?<![\w<])/\w+/|[A-Z]:\\\\|file:", json.dumps([*texts.values(), output.get("text", "")]))
