"""Benchmarks still run, at a small size, and results of simulations have the formulas of today. No number is tested."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from theodolite.groups import GROUPS

ROOT = Path(__file__).parents[1]

SMALL = {
    "capture_gpu": "--tiny --prompts 16 --repeats 1",
    "effects": "--prompts 2 --tokens 8 --layers 2 --controls 1 --sample 2 --repeats 1 --threads 1",
    "families_gpu": "--device cpu --only llama,t5",
    "million": "--prompts 500 --keep 64",
    "pipeline": "--shards 11 --prompts 4 --shapes 7b-h100 --stores folder bucket-20ms",
    "statistics": "--prompts 64 --layers 2 --d-model 64 --rehearsal-prompts 64 --rehearsal-layers 2 --repeats 1",
    "words_gpu": "--device cpu --vocabulary 500 --nouns 4",
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs(name, tmp_path):
    out = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / f"benchmarks/{name}.py"), *SMALL[name].split(), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result == json.loads(done.stdout.splitlines()[-1])
    assert result["versions"]["theodolite"]


@pytest.mark.nightly  # after a change of a formula, `make simulate` takes hours
def test_the_stored_results_of_simulations_were_made_with_the_formulas_of_today():
    simulate = runpy.run_path(str(ROOT / "benchmarks/simulate.py"))
    assert {group for groups in simulate["SIMULATIONS"].values() for group in groups} <= GROUPS.keys()
    assert list(filter(simulate["is_outdated"], simulate["SIMULATIONS"])) == [], "run: make simulate"
