"""Surveys of encoders whose models have a decoder too, with all analyses that an encoder has, and the report."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from support.dense_encoders import dense_sites
from support.nightly import at_night
from support.sentences import assert_says
from support.tiny_configs import CONFIGS
from support.tiny_survey import save_model, spec_of
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from theodolite.errors import UnsupportedModelError
from theodolite.settings import Settings
from theodolite.store.layout import REPORT
from theodolite.store.objects import get
from theodolite.store.result_reader import read_group
from theodolite_jobs.models.load import load_config, load_tokenizer
from theodolite_jobs.prepare import prepare
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas")

ANALYSES = ["curves", "sphere", "weights", "heads", "words", "travel"]
END = "</s>"


@pytest.fixture(scope="module", params=["t5-gated", *at_night(["umt5"])])
def folder(request, tmp_path_factory):
    """The folder of a model whose tokenizer adds a last token to each text, as that of T5 does."""
    folder = save_model(tmp_path_factory.mktemp("encoder") / "model", config=CONFIGS[request.param])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    spec = spec_of(folder, analyses=ANALYSES, heads={"vectors": 3, "composition": [0, 4]})
    store = tmp_path_factory.mktemp("store")
    return survey(spec, Path(), Settings(store=str(store), replicas=1, gpus_per_replica=0), Console())


@pytest.mark.nightly
def test_the_record_names_the_encoder(run):
    assert run.record.model.text_model == "encoder"
    assert run.record.model.n_layers == 5
    assert run.record.parity["max_error"] < 5e-5


@pytest.mark.nightly
def test_the_captured_states_are_those_of_the_files(run, folder):
    tokenizer, tensors = load_tokenizer(folder), load_file(folder / "model.safetensors")
    kept = prepare(run.record.spec, Path(), Settings()).tokens["harmful"]
    assert all(ids[-1] == tokenizer.eos_token_id for ids in kept)
    config = load_config(folder)
    means = read_group(run, "moments")["mean"].sel(set="harmful", position=-1)
    for site in ("resid_pre", "resid_mid"):
        ours = means.sel(site=site).transpose("layer", ...).values
        theirs = np.mean([dense_sites(tensors, config, ids)[site][-1].numpy() for ids in kept], axis=0)
        assert np.linalg.norm(ours - theirs) < 5e-5 * np.linalg.norm(theirs), site


def test_all_heads_have_numbers_and_the_report_says_what_they_leave_out(run):
    heads = read_group(run, "heads")
    assert np.isfinite(heads["singular_values"]).all()
    assert np.isfinite(read_group(run, "curves")["cosine_of_means"]).all()
    assert np.isfinite(read_group(run, "weights")["writing_overlap"].sel(matrices="model")).any()
    assert_says(get(run.location, REPORT).decode(), "QK leaves out … relative positions")


def test_effects_are_refused_before_anything_is_captured(folder):
    with pytest.raises(UnsupportedModelError, match="is an encoder; leave effects out"):
        prepare(spec_of(folder, analyses=["curves", "effects"]), Path(), Settings())
