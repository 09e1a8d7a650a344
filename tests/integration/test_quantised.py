"""Surveys of quantised weights: the same bits as a survey of the plain matrices, with the format named everywhere."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from safetensors.torch import save_file
from support import quantised as q
from support.sentences import assert_says
from support.tiny_survey import save_model, spec_of

from theodolite.errors import ModelError
from theodolite.query.twin import untrained_twin
from theodolite.settings import Settings
from theodolite.store.result_reader import read_group
from theodolite_jobs import analysis
from theodolite_jobs.estimate import plan_survey
from theodolite_jobs.models import source
from theodolite_jobs.progress import Console
from theodolite_jobs.report.page import render_report
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")

NAME = "GPTQ (4 bits, groups of 16)"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": q.GROUP}


def settings(store: Path) -> Settings:
    return Settings(store=str(store), cache=store / "cache", replicas=1, gpus_per_replica=0)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A quantised model, and the plain model that it means."""
    quantised = save_model(tmp_path_factory.mktemp("quantised") / "model")
    plain = tmp_path_factory.mktemp("plain") / "model"
    shutil.copytree(quantised, plain)
    save_file(q.quantise(quantised, GPTQ, q.gptq(4)), plain / "model.safetensors", metadata={"format": "pt"})
    return quantised, plain


@pytest.fixture(scope="module")
def runs(models, tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    analyses = ["curves", "sphere", "heads", "weights", "words"]
    return [survey(spec_of(one, analyses=analyses), Path(), settings(store), Console()) for one in models]


def test_activations_and_results_are_those_of_the_plain_matrices(runs):
    ours, plain = runs
    assert ours.id != plain.id
    for name in ("harmful", "harmless"):
        arrays = [xr.open_zarr(f"{run.url}/activations.zarr", group=name, consolidated=False) for run in runs]
        xr.testing.assert_identical(arrays[0].drop_attrs(), arrays[1].drop_attrs())
    for group in ("curves", "sphere", "heads", "weights", "words"):
        one, other = (read_group(run, group) for run in runs)
        numbers = [name for name in one.data_vars if one[name].dtype.kind == "f"]
        assert numbers
        for name in numbers:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_the_run_and_its_report_name_the_format(runs):
    ours, plain = runs
    assert ours.record.model.dequantised_from == ours.record.parity["dequantised_from"] == NAME
    assert "model.layers.0.mlp.down_proj.weight" in ours.record.parity["held_against_source"]["tensors"]
    assert plain.record.model.dequantised_from is plain.record.parity["dequantised_from"] is None
    report = render_report(ours)
    assert_says(report, f"same weights, dequantised from {NAME}", f"those of model, dequantised from {NAME}")
    assert "dequantised" not in render_report(plain)


def test_another_rule_of_dequantisation_does_not_read_or_capture_the_weights_again(runs, models, tmp_path, monkeypatch):
    ours, plain = runs
    assert ours.record.versions["dequantisation"] == "rule1"
    assert "dequantisation" not in plain.record.versions
    said = r"weights were computed with dequantisation rule1, and dequantisation rule2 may compute others"
    monkeypatch.setattr(source, "DEQUANTISATION", 2)
    source.check_weight_versions(plain)
    with pytest.raises(ModelError, match=said):
        analysis._open_weights(ours, ours.record.spec, None, settings(Path(ours.store)))
    unfinished = Path(shutil.copytree(ours.url, tmp_path / "runs" / ours.id))
    (unfinished / "COMPLETE").unlink()
    next(unfinished.glob("shards/*/*.json")).unlink()
    with pytest.raises(ModelError, match=said):
        survey(ours.record.spec, models[0].parent, settings(tmp_path), Console())


def test_a_plan_names_the_format_and_counts_dequantised_weights(models, tmp_path):
    ours, plain = (plan_survey(spec_of(one), Path(), settings(tmp_path)) for one in models)
    assert ours["model"].pop("dequantised_from") == NAME
    assert "dequantised_from" not in plain["model"]
    assert ours["replica_memory_bytes"] == plain["replica_memory_bytes"]
    assert not (tmp_path / "cache").exists()


@pytest.mark.nightly
def test_the_twin_of_quantised_weights_is_that_of_the_plain_model(models, tmp_path):
    spec = spec_of(models[0], analyses=["curves"])
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"weights": "random"})})
    twin = survey(spec, Path(), settings(tmp_path), Console())
    assert (twin.record.model.weights, twin.record.model.dequantised_from) == ("random", None)
    trained = survey(spec_of(models[0], analyses=["curves"]), Path(), settings(tmp_path), Console())
    found = untrained_twin(trained)
    assert found is not None
    assert found.id == twin.id
    assert "dequantised" not in render_report(twin)
