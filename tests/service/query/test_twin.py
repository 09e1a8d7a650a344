"""The untrained twin of a run: which run it is, and which of its results are compared."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from support.each import each
from support.finished_runs import REFUSAL, finished_run, model_facts
from support.sealed import reseal

from theodolite.query.twin import read_twin, twin_state, untrained_twin
from theodolite.store.result_writer import remove_groups
from theodolite.store.runs import Run

RESULTS = {
    "curves": {"cosine_of_means_debiased": {"value": {"raw": 0.5}}},
    "separation": {"auroc": {"value": 0.75}},
}
TWIN = "tiny-random-weights-0"


def trained(folder: Path, **changes: Any) -> Run:
    return finished_run(folder, RESULTS, **changes)


def random(folder: Path, run_id: str = TWIN, facts: dict[str, Any] | None = None, **changes: Any) -> Run:
    own = {"name": "tiny (random weights)", "weights": "random", "seed": 0, **(facts or {})}
    return finished_run(folder, RESULTS, model_facts().model_copy(update=own), run_id, **changes)


def test_a_run_of_the_same_model_and_prompts_with_random_weights_is_the_twin(tmp_path):
    run = trained(tmp_path)
    assert untrained_twin(run) is None
    assert read_twin(run, "curves") == {}
    assert twin_state(run) == ""
    twin = random(tmp_path)
    assert untrained_twin(run) == twin
    found = read_twin(run, "curves", "separation")
    assert found["refusal"]["separation"].attrs["seed"] == 0
    separation, curves = (found["refusal"][name].sel(estimate="value") for name in ("separation", "curves"))
    np.testing.assert_array_equal(separation["auroc"], np.full((2, 1, 4), 0.75))
    cosine = curves["cosine_of_means_debiased"].sel(space="raw")
    np.testing.assert_array_equal(cosine, np.full((2, 1, 4), 0.5))


def test_a_twin_has_no_twin(tmp_path):
    random(tmp_path)
    assert untrained_twin(random(tmp_path, "tiny-random-weights-1")) is None
    assert untrained_twin(random(tmp_path, "tiny-random-weights-random-weights-1")) is None


@each(
    "facts",
    [
        {"weights": "trained", "seed": None},
        {"revision": "sha256:1"},
        {"kind": "hub"},
        {"place": "other"},
        {"dtype": "bfloat16"},
        {"attention": "eager"},
        {"n_heads": 4},
    ],
)
def test_a_run_of_another_model_or_arithmetic_is_no_twin(tmp_path, facts):
    random(tmp_path, facts=facts)
    assert untrained_twin(trained(tmp_path)) is None


@each("changes", [{"positions": [-2, -1]}, {"sites": ["resid_pre"]}, {"layers": [0, 1]}])
def test_a_run_of_other_places_in_the_stream_is_no_twin(tmp_path, changes):
    random(tmp_path, **changes)
    assert untrained_twin(trained(tmp_path)) is None


def test_a_run_of_other_prompts_is_no_twin(tmp_path):
    twin, run = random(tmp_path), trained(tmp_path)
    sets = {name: facts.model_dump() for name, facts in twin.record.sets.items()}
    reseal(tmp_path / "runs" / TWIN / "run.json", sets={**sets, "harmless": {**sets["harmless"], "template": "chat"}})
    assert untrained_twin(run).id == TWIN
    other = {**sets["harmless"], "token_ids_sha256": "1"}
    reseal(tmp_path / "runs" / TWIN / "run.json", sets={**sets, "harmless": other})
    assert untrained_twin(run) is None


def test_contrasts_that_the_runs_define_differently_are_not_compared(tmp_path):
    run = trained(tmp_path)
    random(tmp_path, contrasts={"refusal": {**REFUSAL["refusal"], "paired": True}, "other": REFUSAL["refusal"]})
    assert read_twin(run, "curves", "separation") == {}


def test_the_newest_of_several_twins_is_compared(tmp_path):
    run = trained(tmp_path)
    for run_id, year in (("tiny-random-weights-1", 2028), ("tiny-random-weights-2", 2027)):
        random(tmp_path, run_id)
        reseal(tmp_path / "runs" / run_id / "run.json", created=datetime(year, 1, 1, tzinfo=UTC).isoformat())
    assert untrained_twin(run).id == "tiny-random-weights-1"


def test_incomplete_and_damaged_runs_are_ignored(tmp_path):
    run, twin = trained(tmp_path), random(tmp_path)
    state = twin_state(run)
    remove_groups(twin, ["separation"])
    assert twin_state(run) not in (state, "")
    assert list(read_twin(run, "curves", "separation")["refusal"]) == ["curves"]
    remove_groups(twin, ["curves"])
    assert untrained_twin(run) is None
    (tmp_path / "runs" / TWIN / "run.json").write_bytes(b"damaged")
    assert untrained_twin(run) is None


def test_damaged_results_of_a_twin_are_ignored(tmp_path):
    run, twin = trained(tmp_path), random(tmp_path)
    for chunk in Path(twin.url).glob("results.zarr/curves/cosine_of_means_debiased/c/**/*"):
        if chunk.is_file():
            chunk.write_bytes(b"damaged")
    assert list(read_twin(run, "curves", "separation")["refusal"]) == ["separation"]
