"""Surveys from Python: one call runs one, the same call again reads it, and a notebook shows bars and the overview."""

import json
import sys

import nbformat
import numpy as np
import pytest
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

import theodolite

LISTS = {
    "positive": [f"Name {count} cities." for count in range(10)],
    "negative": [f"What is {count} plus two?" for count in range(10)],
}
SECTIONS = {"capture": {"shard_prompts": 5, "batch_tokens": 200}, "analyses": ["curves", "separation"]}


def test_one_call_is_a_survey_and_the_same_call_reads_it(
    tiny_folder, forked_replicas, without_figures, tmp_path, capsys
):
    given = {"model": tiny_folder, **LISTS, **SECTIONS, "store": tmp_path, "gpus_per_replica": 0}
    run = theodolite.survey(**given)
    assert "capture: 21/21 prompts" in capsys.readouterr().err  # with the sentence of `travel`
    again = theodolite.survey(**given)
    assert (again.id, "capture:" in capsys.readouterr().err) == (run.id, False)
    assert run.curves("auroc", contrast="main")["value"].notnull().all()
    assert theodolite.plan(model=tiny_folder, **LISTS, **SECTIONS, store=tmp_path)["run_id"] == run.id
    assert theodolite.analyse(run.id, store=tmp_path).id == run.id
    assert theodolite.verify(run.id, store=tmp_path) == []
    heads = theodolite.heads(str(tiny_folder), offsets=[0, 1], words=False, vectors=0, store=tmp_path).heads(offset=1)
    assert np.isfinite(heads["effective_rank"]).all()


@pytest.mark.nightly
def test_a_notebook_shows_bars_and_the_overview(tiny_folder, tmp_path, monkeypatch):
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    given = {"model": str(tiny_folder), **LISTS, **SECTIONS, "store": str(tmp_path)}
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(f"import theodolite\ntheodolite.survey(**{given})")]
    kernel = AsyncKernelManager(kernel_name="python3")
    kernel.kernel_spec.argv[0] = sys.executable
    NotebookClient(notebook, km=kernel, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = json.dumps(notebook.cells[0].outputs)
    assert '<progress value=\\"21\\" max=\\"21\\"></progress> capture: 21/21 prompts' in said
    assert "Separable?" in said
