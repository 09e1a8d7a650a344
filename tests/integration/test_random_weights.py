"""Surveys of an untrained twin: all stages run on random weights, and the report of the model mentions them."""

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from support.sentences import assert_says
from support.tiny_survey import save_model, spec_of
from transformers import AutoModelForCausalLM

from theodolite.errors import ModelError
from theodolite.query.compare import Question, comparison, labels
from theodolite.query.runs import summaries
from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.store.layout import REPORT
from theodolite.store.objects import get
from theodolite.store.prompts import read_tokens
from theodolite.store.result_reader import read_group
from theodolite_jobs import analysis
from theodolite_jobs.models import source
from theodolite_jobs.models.convert.random_weights import RULE, SEED
from theodolite_jobs.progress import Console
from theodolite_jobs.repair.run import repair
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas")

ANALYSES = ["curves", "separation", "heads"]
TWIN = "An untrained twin of this model (random weights, seed 0)"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("tiny") / "model")


def surveyed(model, store, weights):
    spec = spec_of(model, analyses=ANALYSES)
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"weights": weights})})
    settings = Settings(store=str(store), cache=store / "cache", replicas=1, gpus_per_replica=0)
    return survey(spec, Path(), settings, Console())


@pytest.fixture(scope="module")
def runs(model, tmp_path_factory):
    """A survey of a model, then one of its twin in the same store; the first report, and the one after the second."""
    store = tmp_path_factory.mktemp("store")
    trained = surveyed(model, store, "trained")
    before = get(trained.location, REPORT).decode()
    twin = surveyed(model, store, "random")
    surveyed(model, store, "trained")
    return trained, twin, before, get(trained.location, REPORT).decode()


def test_the_run_has_a_name_of_its_own_and_records_its_weights(runs, model):
    trained, twin, _, _ = runs
    assert twin.id.startswith("model-random-weights-")
    assert trained.record.model.weights == "trained"
    facts = {"name": "model (random weights)", "weights": "random", "seed": SEED}
    assert twin.record.model == trained.record.model.model_copy(update=facts)
    assert twin.record.versions == {**trained.record.versions, "random_weights": f"rule{RULE}"}
    assert [item["model"] for item in summaries(trained.store)] == ["model (random weights)", "model"]
    assert list(verify(twin)) == []


def test_activations_are_those_of_an_untrained_model(runs, model):
    twin = runs[1]
    config = AutoModelForCausalLM.from_pretrained(model).config
    with torch.device("meta"):
        untrained = AutoModelForCausalLM.from_config(config)
    untrained.to_empty(device="cpu")
    torch.manual_seed(SEED)
    untrained.initialize_weights()
    untrained.eval()
    with xr.open_zarr(f"{twin.url}/activations.zarr", group="harmful", chunks=None) as dataset:
        captured = dataset["resid_pre"].sel(position=-1).values
    for sample, ids in enumerate(read_tokens(twin, "harmful")):
        with torch.inference_mode():
            states = untrained(torch.tensor([ids]), output_hidden_states=True).hidden_states
        expected = torch.stack([state[0, -1] for state in states[:-1]]).numpy()
        errors = np.linalg.norm(captured[sample] - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
        assert errors.max() <= 5e-5


def test_heads_are_those_of_the_random_weights(runs):
    trained, twin, _, _ = runs
    (folder,) = (Path(twin.store) / "cache" / "random").glob("*/")
    weights = AutoModelForCausalLM.from_pretrained(folder).model.layers[1].self_attn
    value, output = (one.weight.double().detach().numpy() for one in (weights.v_proj, weights.o_proj))
    d_head = twin.record.model.d_head
    circuit = value[:d_head].T @ output[:, :d_head].T  # of head 0
    spectrum = np.linalg.svd(circuit, compute_uv=False)[:d_head]
    of_ov = read_group(twin, "heads")["singular_values"].sel(circuit="ov", layer=1, head=0, offset=0)
    np.testing.assert_allclose(of_ov.values.ravel()[:d_head], spectrum, rtol=1e-6)
    assert not np.allclose(of_ov, read_group(trained, "heads")["singular_values"].sel(of_ov.coords))


@pytest.mark.nightly
def test_a_second_survey_elsewhere_gives_the_same_bits(runs, model, tmp_path):
    again = surveyed(model, tmp_path, "random")
    assert again.id == runs[1].id
    for group in ("moments", "curves", "separation", "heads"):
        assert read_group(again, group).drop_attrs().identical(read_group(runs[1], group).drop_attrs())


def test_the_report_of_the_model_is_refreshed_and_states_what_the_twin_shares(runs):
    _, twin, before, after = runs
    assert TWIN not in before
    assert_says(after, f"{TWIN} … smallest debiased cosine", f"{TWIN} … largest AUROC")
    own = get(twin.location, REPORT).decode()
    assert TWIN not in own
    assert "<dt>weights</dt><dd>random, seed 0</dd>" in own
    assert "<h1>model (random weights)</h1>" in own


def test_both_runs_are_compared_under_different_names(runs):
    frame = comparison(runs[:2], Question("auroc"))
    assert list(labels(frame).values()) == ["model", "model (random weights)"]


def test_other_versions_of_the_libraries_do_not_read_the_weights_again(runs, monkeypatch):
    twin = runs[1]
    versions = {**source.random_versions(), "torch": "1.0"}
    monkeypatch.setattr(source, "random_versions", lambda: versions)
    with pytest.raises(ModelError, match=r"weights were computed with torch .*, and torch 1\.0 may compute others"):
        analysis._open_weights(twin, twin.record.spec, None, Settings())


def test_a_damaged_shard_is_repaired(runs):
    twin = runs[1]
    chunk = next(path for path in Path(twin.url).glob("activations.zarr/harmful/resid_pre/c/**/*") if path.is_file())
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:-1])
    cache = Path(twin.store) / "cache"
    settings = Settings(store=twin.store, cache=cache, replicas=1, gpus_per_replica=0)
    assert repair(twin.id, None, Path(), settings, Console()) == []
    assert chunk.read_bytes() == whole
    assert list(verify(twin)) == []
