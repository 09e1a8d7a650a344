"""The estimated cost of analyses, against stored measurements of surveys of several sizes."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.tiny_sizes import GROUPED
from support.tiny_survey import save_model
from transformers import LlamaConfig

from theodolite.groups import GROUPS
from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite.store.runs import Run
from theodolite_jobs.analysis_costs import analysis_costs, costs_on_request, forwards, seconds_of
from theodolite_jobs.analysis_counts import COUNTS, Survey
from theodolite_jobs.commands.plan_text import cost_lines, short
from theodolite_jobs.costs import EFFECTS_SHARE, NANOSECONDS, START_SECONDS, Forward
from theodolite_jobs.prepare import prepare

ROOT = Path(__file__).parents[2]
(MEASURED,) = (json.loads(path.read_text())["shapes"] for path in ROOT.glob("benchmarks/results/analyses_*.json"))
PEAK = 96e9  # of a core of that machine (benchmarks/results/capture_epyc-2-cores_2026-11-29.json)
ALLOWED = 3
MID = {**GROUPED, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8, "max_position_embeddings": 512}

SETS = ("harmful", "harmless", "everyday")
CONTRASTS = {
    "refusal": {"positive": "harmful", "negative": "everyday"},
    "matched": {"positive": "harmful", "negative": "harmless"},
}


def survey_of(model: str | Path, n: int, folder: Path, **changes: Any) -> Survey:
    """Return the survey of the built-in demo for a model and numbers of prompts, before its capture."""
    spec = {
        "model": {"id": str(model)},
        "prompts": {name: {"source": f"builtin:{name}", "limit": n} for name in SETS},
        "capture": {"sites": ["resid_pre", "resid_mid", "head_out"]},
        "contrasts": CONTRASTS,
        "effects": {},
        "words": {},
        **changes,
    }
    found = prepare(parse_spec(spec), folder, Settings(cache=Settings().cache))
    weights = found.block_weights
    return Survey(Run("", found.record("", {})), found.spec, found.spec.resolved_contrasts(), found.config, weights)


def model_of(shape: str, folder: Path) -> str | Path:
    config = LlamaConfig(**MID if shape == "mid" else {**GROUPED, "max_position_embeddings": 512})
    return "smollm2-135m-instruct" if shape.startswith("demo") else save_model(folder / "model", config=config)


@pytest.mark.parametrize("shape", ["demo", "demo-64", "mid", "tiny"])
def test_estimates_are_near_the_measured_seconds(shape: str, tmp_path: Path) -> None:
    measured = MEASURED[shape]
    changes = {} if shape.startswith("demo") else {"heads": {"composition": [0, measured["n_layers"] - 1]}}
    if shape == "demo-64":
        changes = {"heads": {"composition": [0, 9]}}
    survey = survey_of(model_of(shape, tmp_path), measured["prompts"]["harmful"], tmp_path, **changes)
    first, second = measured["passes"]
    seconds = {**measured["seconds"], "moments": first, "curves": first}
    seconds |= {name: seconds[name] + second / 2 for name in ("sphere", "travel")}
    compared = {name: value for name, value in seconds.items() if value >= 0.5 and name not in ("moments", "curves")}
    assert len(compared) > 4
    for name, value in compared.items():
        own = seconds_of(survey, name) - (START_SECONDS["effects"] if name == "effects" else 0)
        assert value / ALLOWED < own < value * ALLOWED, name
    if "forwards" in measured:
        estimated = Forward(PEAK, EFFECTS_SHARE).seconds(*forwards(survey))
        assert measured["forwards"] / ALLOWED < estimated < measured["forwards"] * ALLOWED


def test_every_analysis_has_a_count_and_constants(tmp_path: Path) -> None:
    survey = survey_of(model_of("tiny", tmp_path), 10, tmp_path)
    assert set(COUNTS) == set(NANOSECONDS) == set(GROUPS)
    assert {name: set(count(survey)) for name, count in COUNTS.items()} == {
        name: set(kinds) for name, kinds in NANOSECONDS.items()
    }


def test_the_requested_analyses_are_estimated_and_the_others_on_request(tmp_path: Path) -> None:
    model = model_of("tiny", tmp_path)
    one_core = Forward(PEAK, 0.66)
    whole = survey_of(model, 20, tmp_path)
    assert {"effects", "words"} < set(analysis_costs(whole, one_core))
    assert costs_on_request(whole, one_core).keys() == {"probes"}
    plain = survey_of(model, 20, tmp_path, effects=None, words=None)
    assert costs_on_request(plain, one_core).keys() == {"effects", "words", "probes"}
    costs = analysis_costs(plain, one_core)
    assert {"effects", "words", "composition", "routing", "probes"}.isdisjoint(costs)
    assert all(cost["bytes"] > 0 and cost["seconds"]["one CPU core"] >= 0 for cost in costs.values())
    no_prompts = survey_of(model, 20, tmp_path, prompts={}, contrasts={}, effects=None, words=None)
    assert set(analysis_costs(no_prompts, one_core)) == {"sphere", "weights", "heads"}
    assert set(costs_on_request(no_prompts, one_core)) == {"words"}


def test_four_times_the_prompts_cost_more_than_four_times_the_time_of_maps(tmp_path: Path) -> None:
    model = model_of("tiny", tmp_path)
    few, many = (survey_of(model, n, tmp_path) for n in (60, 240))
    assert seconds_of(many, "basis") > 4 * seconds_of(few, "basis")
    assert seconds_of(many, "weights") == seconds_of(few, "weights")


def test_the_table_of_the_command() -> None:
    parts = {
        "capture": {"seconds": {"one CPU core": 1234.0, "one H200 GPU": 0.3}, "bytes": 1_650_000},
        "gram": {"seconds": {"one CPU core": 22.0}, "bytes": 3_400},
    }
    head, capture, gram, words = cost_lines(parts, {"words": parts["gram"]})
    assert len({len(line) for line in (head, capture, gram, words)}) == 1
    assert capture.split() == ["capture", "1,200", "s", "under", "1", "s", "1.6", "MB"]
    assert gram.split() == ["gram", "22", "s", "3.4", "kB"]
    assert words.startswith("words (not requested)")
    assert short(None, "s") == ""
    assert short(5e15, "B") == "5,000 TB"
