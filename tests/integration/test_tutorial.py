"""The tutorial, run from its first cell to its last on a small survey of the real chat model."""

import json
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

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
def run(ray_with_pretend_gpus, tmp_path_factory):
    settings = Settings(store=str(tmp_path_factory.mktemp("tutorial")), replicas=1, gpus_per_replica=0)
    return survey(parse_spec(SPEC), Path(), settings, Console())


@pytest.mark.slow
def test_every_cell_runs_and_says_what_it_should(run, tmp_path, monkeypatch):
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


def test_it_is_stored_without_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
