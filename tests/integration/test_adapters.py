"""Surveys of an adapter: the same results as a survey of the merged model, with base and adapter named everywhere."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from support.adapters import change_settings, save_adapter
from support.sentences import assert_says
from support.tiny_survey import save_model, spec_of

from theodolite.errors import ModelError
from theodolite.query.compare import Question, comparison, labels
from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.spec_parts import ModelSpec
from theodolite.store.result_reader import read_group
from theodolite_jobs import analysis
from theodolite_jobs.analysis import analyse_run
from theodolite_jobs.estimate import plan_survey
from theodolite_jobs.models import source
from theodolite_jobs.models.convert.adapters import merge_adapter
from theodolite_jobs.progress import Console
from theodolite_jobs.repair.run import repair
from theodolite_jobs.report.page import render_report
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")

ANALYSES = ["curves", "sphere", "heads", "weights", "words"]
SUMMARY = "lora (LoRA of rank 4, 11 matrices changed)"


def settings(store: Path) -> Settings:
    return Settings(store=str(store), cache=store / "cache", replicas=1, gpus_per_replica=0)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A base, its adapter, and the merged model as a plain checkpoint."""
    folder = tmp_path_factory.mktemp("models")
    base = save_model(folder / "base")
    adapter = save_adapter(base, folder / "lora", target_modules=["q_proj", "down_proj", "embed_tokens"])
    merged = merge_adapter(base, adapter, folder / "merged")
    return base, adapter, merged


@pytest.fixture(scope="module")
def runs(models, tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    _, adapter, merged = models
    return [survey(spec_of(one, analyses=ANALYSES), Path(), settings(store), Console()) for one in (adapter, merged)]


def test_activations_and_results_are_those_of_the_merged_model(runs):
    ours = runs[0]
    assert ours.id.startswith("base-lora-")
    for name in ("harmful", "harmless"):
        arrays = [xr.open_zarr(f"{run.url}/activations.zarr", group=name, consolidated=False) for run in runs]
        xr.testing.assert_identical(arrays[0].drop_attrs(), arrays[1].drop_attrs())
    for group in ANALYSES:
        one, other = (read_group(run, group) for run in runs)
        numbers = [name for name in one.data_vars if one[name].dtype.kind == "f"]
        assert numbers
        for name in numbers:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    assert list(verify(ours)) == []


def test_the_run_its_report_and_its_plan_name_base_and_adapter(runs, models, tmp_path):
    adapter = models[1]
    facts = runs[0].record.model
    assert (facts.name, facts.place, facts.adapter.summary) == ("base + lora", "base", SUMMARY)
    report = render_report(runs[0])
    assert_says(report, f"The weights are those of base … {SUMMARY}", "read a second way")
    assert f"<dt>adapter</dt><dd>{SUMMARY}</dd>" in report
    plan = plan_survey(spec_of(adapter), Path(), settings(tmp_path))
    assert plan["model"]["adapter"]["matrices"] == 11
    assert any(f"the adapter {SUMMARY} is merged into base" in warning for warning in plan["warnings"])


@pytest.mark.nightly
def test_base_and_adapter_in_the_spec_are_the_same_run(runs, models):
    base, adapter, _ = models
    spec = spec_of(base, analyses=["curves"])
    spec = spec.model_copy(update={"model": ModelSpec(id=str(base), adapter=str(adapter))})
    store = Path(runs[0].store)
    assert survey(spec, Path(), settings(store), Console()).id == runs[0].id
    plain = survey(spec_of(base, analyses=["curves"]), Path(), settings(store), Console())
    assert plain.id != runs[0].id
    frame = comparison([plain, runs[0]], Question())
    assert list(labels(frame).values()) == ["base", "base + lora"]


@pytest.mark.nightly
def test_later_results_find_the_weights_again(runs):
    spec = runs[0].record.spec
    fewer = spec.model_copy(update={"analyses": ["heads"], "heads": spec.heads.model_copy(update={"vectors": 1})})
    before = read_group(runs[0], "heads")
    analyse_run(runs[0], fewer, None, settings(Path(runs[0].store)), Console())
    after = read_group(runs[0], "heads")
    assert after.sizes["vector"] == 1 < before.sizes["vector"]
    np.testing.assert_array_equal(after["singular_values"], before["singular_values"])


@pytest.mark.nightly
def test_a_damaged_shard_is_repaired(runs):
    ours = runs[0]
    chunk = next(path for path in Path(ours.url).glob("activations.zarr/harmful/resid_pre/c/**/*") if path.is_file())
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:-1])
    assert repair(ours.id, None, Path(), settings(Path(ours.store)), Console()) == []
    assert chunk.read_bytes() == whole


def test_another_version_of_peft_or_a_changed_adapter_is_refused(runs, models, monkeypatch, tmp_path):
    ours, spec = runs[0], runs[0].record.spec
    with monkeypatch.context() as changed:
        changed.setattr(source, "merge_versions", lambda: {"peft": "9.0"})
        with pytest.raises(ModelError, match=r"computed with peft .*, and peft 9\.0 may compute others"):
            analysis._open_weights(ours, spec, None, settings(Path(ours.store)))
    kept = Path(shutil.copytree(models[1], tmp_path / "kept"))
    change_settings(models[1], lora_alpha=7)
    try:
        with pytest.raises(ModelError, match=r"the weights of base \+ lora differ from those of the run"):
            analysis._open_weights(ours, spec, None, settings(Path(ours.store)))
    finally:
        shutil.copytree(kept, models[1], dirs_exist_ok=True)
