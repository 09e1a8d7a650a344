"""The head atlas of real models, from the command line and inside a survey."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from safetensors.torch import load_file, save_file
from support.commands import theodolite
from support.encoder_run import ENCODER, PROMPTS, TOKENS, VECTORS, encoder_run
from support.nightly import at_night, one_in
from support.stored import assert_declared, store_run
from support.tiny import tiny_model
from transformers import AutoModel, XGLMConfig

from theodolite.errors import SiteNotFoundError, SpecError, StoreError
from theodolite.groups import GROUPS
from theodolite.query.heads import read_head
from theodolite.query.runs import run_state, spec_of_results, summaries
from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite.spec_options import HeadsSpec
from theodolite.spec_parts import ModelSpec
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group, read_layer
from theodolite.store.result_writer import claim_layers
from theodolite.store.runs import open_run
from theodolite_jobs.analysis import analyse_run
from theodolite_jobs.groups.heads import compute as heads_module
from theodolite_jobs.models.source import ModelSource, fetch, resolve_source
from theodolite_jobs.models.tensors import TensorFiles
from theodolite_jobs.progress import Console
from theodolite_jobs.report.page import render_report

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")


def heads(store, model, *options):
    return theodolite("heads", model, "--store", store, "--json", *options)


@pytest.fixture(scope="module")
def atlas(tmp_path_factory, chat_model_folder):
    store = tmp_path_factory.mktemp("atlas")
    done = heads(store, "smollm2-135m-instruct", "--no-words", "--offsets", "0,5", "--composition", "0:2")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["state"] == "complete"
    return open_run(str(store), outcome["run_id"])


@pytest.fixture(scope="module")
def encoder_folder():
    return fetch(resolve_source(ModelSpec(id=ENCODER), Path()), Settings().cache)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return encoder_run(tmp_path_factory)


def test_all_heads_are_there_and_some_equal_a_dense_decomposition(atlas, chat_model_folder):
    found = read_group(atlas, "heads")
    values = found["singular_values"].transpose("circuit", "offset", "layer", "head", "rank").values
    assert values.shape == (2, 2, 30, 9, 64)
    assert np.isfinite(values[0]).all()
    assert np.isfinite(values[1, 0]).all()
    assert np.isnan(values[1, 1]).all()
    stored = TensorFiles(chat_model_folder)
    for layer, head in ((0, 0), (17, 4), (29, 8)):
        q, k, v, o = (
            stored.read(f"model.layers.{layer}.self_attn.{name}_proj.weight").double().numpy() for name in "qkvo"
        )
        own, kv = slice(64 * head, 64 * head + 64), slice(64 * (head // 3), 64 * (head // 3) + 64)
        for circuit, whole in enumerate((q[own].T @ k[kv] / 8, v[kv].T @ o[:, own].T)):
            u, dense, vt = np.linalg.svd(whole)
            np.testing.assert_allclose(values[circuit, 0, layer, head], dense[:64], atol=1e-12 * dense[0])
            vectors = read_layer(atlas, "heads", layer).isel(circuit=circuit, offset=0, head=head)
            for side, reference in (("left", u.T), ("right", vt)):
                cosines = (vectors[f"{side}_vectors"].values * reference[:20]).sum(axis=1)
                np.testing.assert_allclose(np.abs(cosines), 1, atol=1e-5)


def test_a_rotary_offset_changes_scores_spectra_and_nothing_else(atlas):
    values = read_group(atlas, "heads")["singular_values"].sel(circuit="qk")
    assert np.abs(values.sel(offset=0) - values.sel(offset=5)).max() > 0.1
    # A rotation of a factor keeps its length: Σσ² may change, but not past the product of both factors' norms.
    assert (values.sel(offset=5)[..., 0] < 3 * values.sel(offset=0)[..., 0]).all()


def test_composition_is_of_later_heads_with_earlier_ones_alone(atlas):
    score = read_group(atlas, "composition")["score"].transpose("composition", "layer", "layer_other", ...)
    for first in range(3):
        for second in range(3):
            there = np.isfinite(score[:, first, second].values)
            assert there.all() if first < second else not there.any()
    assert float(score.max()) < 1


def test_a_run_of_weights_is_whole_and_opens_without_a_warning(atlas):
    assert list(verify(atlas)) == []
    assert run_state(atlas) == "complete"
    assert atlas.record.sets == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree = xr.open_datatree(f"{atlas.url}/results.zarr", engine="zarr")
    assert tree["heads"]["left_vectors"].dims == ("circuit", "offset", "layer", "head", "vector", "d_model")
    assert "Parity check" not in Path(atlas.report).read_text()


def test_asking_again_repeats_nothing(atlas):
    again = heads(atlas.store, atlas.record.spec.model.id, "--no-words", "--offsets", "0,5", "--composition", "0:2")
    assert "all results of this spec exist already" in again.stderr


def test_a_head_that_is_not_there_is_refused_with_what_is(atlas):
    with pytest.raises(SiteNotFoundError, match="no layer 30; it has 0 to 29"):
        read_head(atlas, 30, 0, "qk")
    with pytest.raises(SiteNotFoundError, match="no head 9; it has 0 to 8"):
        read_head(atlas, 0, 9, "qk")
    with pytest.raises(SiteNotFoundError, match="no offset 1; it has 0, 5"):
        read_head(atlas, 0, 0, "qk", offset=1)


def test_an_encoder_gets_the_same_atlas_within_a_survey(encoder):
    assert set(finished_groups(encoder)) == set(GROUPS) - {
        *("composition", "contributions", "effects", "logit_lens", "probes", "routing")
    }
    found = read_group(encoder, "heads")
    assert found.sizes["layer"] == 6
    assert (found["null_dimension"] == 384 - 32).all()
    unseen = found["null_variance"].values
    assert (unseen > 0).all()
    assert (unseen < 1).all()
    assert found["n_samples"].values.tolist() == [[PROMPTS], [PROMPTS]]
    assert np.isfinite(found["direction_alignment"]).all()
    assert (found["direction_alignment"] <= 1 + 1e-12).all()
    null = found["direction_alignment_null"].to_dataset("null")
    tested = null["mean"] + null["z"] * null["sd"]
    np.testing.assert_allclose(tested, found["direction_alignment"], rtol=1e-6)  # all prompts take part
    assert ((null["p"] > 0) & (null["p_family"] >= null["p"] - 0.02)).all()
    low = null["p_low_family"]
    assert ((low > 0) & (low + null["p_family"] > 0.5)).all()  # no head is in both tails
    assert_declared(encoder)
    tables = Path(encoder.url) / "tables"
    biases = pd.read_parquet(tables / "bias_tokens.parquet")
    assert set(biases["side"]) == {"query", "key"}
    assert len(pd.read_parquet(tables / "head_tokens.parquet")) == 6 * 12 * 4 * VECTORS * 2 * TOKENS
    trajectories = pd.read_parquet(tables / "trajectories.parquet")
    assert set(trajectories["sentence"]) == {0, 1}
    assert (trajectories.loc[trajectories["site"] == "resid_final", "angle_to_final"] == 0).all()
    card = read_head(encoder, 5, 11, "ov")
    assert len(card.tokens) == VECTORS * 2 * 2 * TOKENS
    assert "Words: trajectory of" in render_report(encoder)
    assert list(verify(encoder)) == []


def test_one_more_contrast_leaves_the_words_as_they_are(encoder, tmp_path):
    run = copied(encoder, tmp_path / "store")
    before = finished_groups(run)
    spec = run.record.spec.model_dump(mode="json")
    spec["contrasts"]["harm"] = {"positive": "good", "negative": "bad", "paired": False}
    analyse_run(run, parse_spec({**spec, "analyses": ["heads", "words"]}), None, Settings(store=run.store), Console())
    after = finished_groups(run)
    assert after["words"] == before["words"]
    assert after["heads"] != before["heads"]
    alignment = read_group(run, "heads")["direction_alignment"].sel(side="qk_key")
    np.testing.assert_allclose(alignment.sel(contrast="harm"), alignment.sel(contrast="refusal"), rtol=1e-6)


def copied(run, folder):
    shutil.copytree(run.store, folder)
    return open_run(str(folder), run.id)


@pytest.mark.nightly
def test_words_of_other_vectors_go_with_those_vectors_and_so_do_their_chunks(encoder, tmp_path):
    run = copied(encoder, tmp_path / "store")
    spec = run.record.spec.model_copy(update={"analyses": ["heads"], "heads": HeadsSpec(vectors=0)})
    analyse_run(run, spec, None, Settings(store=run.store), Console())
    lacking = {"composition", "contributions", "effects", "logit_lens", "routing", "words"}
    assert set(finished_groups(run)) == set(GROUPS) - lacking
    assert not list(Path(run.url).glob("results.zarr/heads/*_vectors/c/**/*"))
    assert list(verify(run)) == []
    assert len(read_head(run, 0, 0, "qk").tokens) == 0
    # What was asked last is what `analyse` keeps, and what the report says was asked.
    assert spec_of_results(run).heads == HeadsSpec(vectors=0)
    assert 'id="about-tokens"' not in render_report(run)


@pytest.mark.nightly
def test_heads_go_where_the_directions_they_were_held_against_change(encoder, tmp_path):
    run = copied(encoder, tmp_path / "store")
    spec = run.record.spec.model_dump(mode="json")
    spec["contrasts"]["refusal"] = {"positive": "good", "negative": "bad"}
    analyse_run(run, parse_spec({**spec, "analyses": ["curves"]}), None, Settings(store=run.store), Console())
    assert "heads" not in finished_groups(run)


def test_two_drivers_with_other_options_do_not_mix_their_vectors(encoder, tmp_path, monkeypatch):
    run = copied(encoder, tmp_path / "store")
    write = heads_module.write_layer

    def somebody_else_begins(*arguments):
        claim_layers(run, "heads", "other options")
        return write(*arguments)

    monkeypatch.setattr(heads_module, "write_layer", somebody_else_begins)
    spec = run.record.spec.model_copy(update={"heads": HeadsSpec(vectors=2)})
    with pytest.raises(StoreError, match="another process computes heads with other options"):
        analyse_run(run, spec, None, Settings(store=run.store), Console())
    assert "heads" not in finished_groups(run)


def test_a_driver_does_not_list_vectors_that_another_one_has_finished(encoder, tmp_path, monkeypatch):
    """The other driver had other options, and removed its claim when it finished."""
    run = copied(encoder, tmp_path / "store")
    write = heads_module.write_layer

    def somebody_else_finishes(*arguments):
        shutil.rmtree(Path(run.url) / "pending", ignore_errors=True)
        return write(*arguments)

    monkeypatch.setattr(heads_module, "write_layer", somebody_else_finishes)
    spec = run.record.spec.model_copy(update={"heads": HeadsSpec(vectors=2)})
    with pytest.raises(StoreError, match="or has computed it meanwhile"):
        analyse_run(run, spec, None, Settings(store=run.store), Console())
    assert "heads" not in finished_groups(run)


def test_a_model_s_own_code_is_not_run_by_analyse_where_it_is_not_allowed(encoder, tmp_path):
    run = copied(encoder, tmp_path / "store")
    model = run.record.spec.model.model_copy(update={"trust_remote_code": True})
    spec = run.record.spec.model_copy(update={"model": model, "heads": HeadsSpec(vectors=1)})
    with pytest.raises(SpecError, match="does not allow 'all-minilm-l6-v2' to run its own code"):
        analyse_run(run, spec, None, Settings(store=run.store), Console())


def changed_encoder(folder, target, change):
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def nan_in_a_query(tensors):
    tensors[query_of(tensors, 3)][5, 7] = torch.nan


def query_of(tensors, layer):
    return next(name for name in tensors if name.endswith(f"layer.{layer}.attention.self.query.weight"))


BROKEN = {
    "a weight that is not finite": (
        nan_in_a_query,
        "layer 3, query projection: head 0 has a weight that is not finite",
    ),
    "a projection that is missing": (
        lambda tensors: tensors.pop(query_of(tensors, 2)),
        "lack the tensor encoder.layer.2.attention.self.query.weight",
    ),
}


@pytest.mark.parametrize("case", one_in(2, BROKEN))
def test_broken_weights_are_named_and_there_are_no_heads(encoder_folder, tmp_path, case):
    change, message = BROKEN[case]
    folder = changed_encoder(encoder_folder, tmp_path / "model", change)
    done = heads(tmp_path / "store", folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not any("heads" in run["analyses"] for run in summaries(str(tmp_path / "store")))


@pytest.mark.parametrize("has_tokenizer", [True, *at_night([False])])
def test_a_model_that_cannot_be_put_into_words_still_gets_its_atlas(tmp_path, encoder_folder, has_tokenizer):
    """A base model without a head, untied from its embedding: nothing to decode by; and one without a tokenizer."""
    tiny_model("llama").save_pretrained(tmp_path / "model")
    if has_tokenizer:
        shutil.copy(encoder_folder / "tokenizer.json", tmp_path / "model")
    done = heads(tmp_path / "store", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    assert "words: left out, since " in done.stderr
    assert ("no language-model head" if has_tokenizer else "no tokenizer") in done.stderr
    assert '"state": "complete"' in done.stdout
    (run,) = summaries(str(tmp_path / "store"))
    assert run["analyses"] == ["heads", "sphere", "weights"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--composition", "0:30"], "no layer 30; it has 0 to 29"),
        *at_night(
            [
                (["--composition", "3"], "heads.composition"),
                (["--offsets", "one"], "heads.offsets.0: given 'one'"),
                (["--offsets", "-1"], "heads.offsets.0"),
            ]
        ),
    ],
)
def test_wrong_options_are_named(tmp_path, options, message, chat_model_folder):
    done = heads(tmp_path, "smollm2-135m-instruct", "--no-words", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_family_without_a_known_layout_is_refused_by_name_or_left_out_of_a_survey(tmp_path, capsys):
    config = XGLMConfig(num_layers=3, d_model=32, ffn_dim=64, attention_heads=4, vocab_size=100)
    AutoModel.from_config(config).save_pretrained(tmp_path / "model")
    done = heads(tmp_path / "store", tmp_path / "model")
    assert done.returncode == 1
    assert "the tensor names of the family 'xglm' are not known" in done.stderr
    values = np.random.default_rng(0).normal(size=(6, 1, 3, 8)).astype(np.float32)
    run = store_run(tmp_path, {"bad": {"resid_pre": values}})
    spec = run.record.spec.model_copy(update={"analyses": None})
    source = ModelSource("tiny", "folder", str(tmp_path / "model"), "sha256:0")
    analyse_run(run, spec, source, Settings(store=str(tmp_path)), Console())
    reason = "the tensor names of the family 'xglm' are not known"
    assert f"sphere, heads, weights: left out, since {reason}" in capsys.readouterr().err
    assert set(finished_groups(run)) == {"moments", "curves", "travel", "gram", "basis"}
