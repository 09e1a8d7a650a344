"""A model with a decoder is surveyed as its encoder; the reference is computed in float64 from the files."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support import tiny
from support.dense_encoders import dense_sites, sinusoids
from support.each import each, together
from support.nightly import one_in
from support.tiny_configs import CONFIGS
from transformers import AutoModel, AutoModelForSeq2SeqLM, InstructBlipConfig

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite.sites import Site
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.parity import certify
from theodolite_jobs.capture.plan import HALF_PROBES, plan_set, probe_prompts
from theodolite_jobs.models.anatomy import check_next_token
from theodolite_jobs.models.facts import describe_model
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.reference import relative_errors
from theodolite_jobs.models.sharding import check_shardable
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import notes_on

WEIGHTS = "model.safetensors"
ENCODERS = [family for family, config in CONFIGS.items() if known_anatomy(config).encoder_alone]
T5 = [family for family in ENCODERS if "t5" in family]
TOKENS = tiny.random_tokens([12, 30, 17, 25, 21])  # padded in batches, and longer than the last bucket of offsets
BOUND = 5e-5


# By day, test_every_family.py compares the sites and the weights of the others with their modules.
@pytest.fixture(scope="module", params=one_in(2, ENCODERS))
def saved(request, tmp_path_factory):
    """Return the family and the folder of the whole model, which has other layers in its decoder."""
    folder = tmp_path_factory.mktemp(request.param)
    tiny.model_with_head(request.param).save_pretrained(folder)
    return request.param, folder


def captured(model: LoadedModel) -> dict[Site, Any]:
    """Return the sites of the last two tokens of each prompt, captured in padded batches."""
    plan = plan_set("set", TOKENS, (-2, -1), shard_prompts=5, batch_tokens=128, share_prefix=False)
    return (
        Engine(model, (*model.anatomy.taps, Site.RESID_FINAL), range(5))
        .capture(plan.task(plan.shards[0], TOKENS))
        .activations
    )


def largest_error(activations: dict[Site, Any], tensors: dict[str, torch.Tensor], config: Any) -> float:
    errors = []
    for sample, ids in enumerate(TOKENS):
        reference = dense_sites(tensors, config, ids)
        assert set(activations) <= set(reference)
        for site, values in activations.items():
            theirs = reference[site][-2:].numpy()
            errors.append(relative_errors(values[sample].reshape(theirs.shape), theirs).max())
    return max(errors)


def captured_sites_equal_those_computed_from_the_files(saved):
    family, folder = saved
    model = load_model(folder, dtype="float32")
    assert largest_error(captured(model), load_file(folder / WEIGHTS), CONFIGS[family]) < BOUND


def no_block_of_the_decoder_is_loaded(saved, monkeypatch):
    _, folder = saved
    whole = []
    monkeypatch.setattr(
        "theodolite_jobs.models.text_part.text_part", lambda module: whole.append(module) or module.encoder
    )
    load_model(folder)
    names = [name for name, _ in whole[0].named_parameters()]
    assert not any("decoder" in name and (".block." in name or ".layers." in name) for name in names)


def the_encoder_is_named_and_predicts_no_next_token(saved):
    family, folder = saved
    config = load_config(folder)
    facts = describe_model(config)
    assert (facts["family"], facts["text_model"], facts["causal"]) == (config.model_type, "encoder", False)
    assert facts["parameters"]["base_model"] == sum(one.numel() for one in load_model(folder).module.parameters())
    with pytest.raises(UnsupportedModelError, match="is an encoder; leave effects out"):
        check_next_token(known_anatomy(config), family)
    with pytest.raises(UnsupportedModelError, match="transformers has no tensor-parallel plan for its family"):
        check_shardable(config, 2)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_passes_the_parity_check(saved, dtype):
    _, folder = saved
    model = load_model(folder, dtype=dtype)
    tokens = tiny.random_tokens(range(11, 27))
    plan = plan_set("set", tokens, (-3, -1), shard_prompts=64, batch_tokens=512, share_prefix=False)
    sites, probes = (*model.anatomy.taps, Site.RESID_FINAL), {"set": probe_prompts(tokens, HALF_PROBES)}
    certify(model, sites, range(5), {"set": plan.layout}, probes)


@each("family", T5)
def test_a_checkpoint_of_the_encoder_alone_is_read(family, tmp_path):
    config = copy.deepcopy(CONFIGS[family])
    encoder_class = getattr(transformers, type(config).__name__.replace("Config", "EncoderModel"))
    torch.manual_seed(0)
    encoder_class(config).save_pretrained(tmp_path)
    assert not any("decoder" in name for name in load_file(tmp_path / WEIGHTS))
    model = load_model(tmp_path, dtype="float32")
    assert largest_error(captured(model), load_file(tmp_path / WEIGHTS), CONFIGS[family]) < BOUND
    assert Weights(tmp_path, load_config(tmp_path)).attention(4).q.shape[0] == 4


@each("family", [*T5, "bart", "mbart", "plbart"])
def test_a_checkpoint_with_a_classifier_is_read(family, tmp_path):
    config = copy.deepcopy(CONFIGS[family])
    classifier = getattr(transformers, type(config).__name__.replace("Config", "ForSequenceClassification"))
    torch.manual_seed(0)
    classifier(config).save_pretrained(tmp_path)
    stored = load_file(tmp_path / WEIGHTS)
    assert any(name.endswith(".shared.weight") for name in stored)  # behind a prefix
    assert largest_error(captured(load_model(tmp_path, dtype="float32")), stored, CONFIGS[family]) < BOUND
    assert Weights(tmp_path, load_config(tmp_path)).embedding().shape == (64, 48)


def with_tensors(folder: Path, into: Path, change: Any) -> Path:
    shutil.copytree(folder, into)
    tensors = load_file(into / WEIGHTS)
    change(tensors)
    save_file(tensors, into / WEIGHTS, metadata={"format": "pt"})
    return into


def the_table_of_embeddings_may_be_shared_or_that_of_the_encoder(saved, tmp_path):
    _, folder = saved
    stored = load_file(folder / WEIGHTS)
    shared = next((name for name in stored if name.endswith("shared.weight")), None)
    if shared is None:  # a Marian with a table of its own
        assert torch.equal(
            Weights(folder, load_config(folder)).embedding(), stored["model.encoder.embed_tokens.weight"]
        )
        return
    own = shared.replace("shared", "encoder.embed_tokens")
    changes = {
        "own": lambda tensors: tensors.update({own: tensors.pop(shared)}),
        "equal": lambda tensors: tensors.update({own: tensors[shared].clone()}),
        "different": lambda tensors: tensors.update({own: tensors[shared].flip(0).contiguous()}),
        "decoder": lambda tensors: tensors.update({own.replace("encoder", "decoder"): tensors.pop(shared)}),
    }
    for name, change in {"shared": lambda _: None, **changes}.items():
        changed = with_tensors(folder, tmp_path / name, change)
        weights, model = Weights(changed, load_config(changed)), load_model(changed, dtype="float32")
        assert torch.equal(weights.embedding(), model.module.get_input_embeddings().weight), name
        assert torch.equal(weights.unembedding(), weights.embedding()), name  # the head reads the decoder
        assert weights.has_unembedding


@each("family", T5)
def test_a_table_of_offsets_is_missing_or_in_another_block(family, tmp_path):
    tiny.model_with_head(family).save_pretrained(tmp_path / "whole")
    table = "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias.weight"
    missing = with_tensors(tmp_path / "whole", tmp_path / "missing", lambda tensors: tensors.pop(table.format(0)))
    with pytest.raises(ModelError, match=r"lack.* encoder.block.0.layer.0.SelfAttention.relative"):
        load_model(missing)

    def move(tensors):
        tensors[table.format(3)] = tensors.pop(table.format(0))

    if family.startswith("umt5"):
        with pytest.raises(
            ModelError, match=r"lack the tensor encoder.block.0.layer.0.SelfAttention.relative_attention"
        ):
            Weights(missing, CONFIGS[family])
    else:
        moved = with_tensors(tmp_path / "whole", tmp_path / "moved", move)
        with pytest.raises(ModelError, match=r"lack.* encoder.block.0.layer.0.SelfAttention"):
            load_model(moved)


@each("family", T5)
def test_queries_and_keys_leave_out_the_offsets(family, tmp_path):
    tiny.model_with_head(family).save_pretrained(tmp_path)
    weights = Weights(tmp_path, CONFIGS[family])
    assert "QK leaves out the terms that relative positions add to the scores" in notes_on(weights, fold_norm=False)
    assert weights.attention(2).scale == 1.0
    assert weights.dimensions.context_length > 10**9


def test_a_multimodal_model_around_an_encoder_with_a_decoder_is_refused():
    config = InstructBlipConfig(text_config={"model_type": "t5"})
    with pytest.raises(UnsupportedModelError, match="'instructblip' has two residual streams"):
        known_anatomy(config)


def test_a_decoder_alone_is_refused():
    config = copy.deepcopy(CONFIGS["bart"])
    config.is_encoder_decoder, config.is_decoder = False, True
    with pytest.raises(UnsupportedModelError, match="'bart' with is_decoder is a decoder alone"):
        known_anatomy(config)


@torch.inference_mode()
def the_state_after_the_last_norm_is_what_the_whole_model_gives_its_decoder(saved):
    _, folder = saved
    whole, model = (
        AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32),
        load_model(folder, dtype="float32"),
    )
    ids = torch.tensor([TOKENS[0]])
    theirs = whole(input_ids=ids, decoder_input_ids=ids[:, :1]).encoder_last_hidden_state
    ours = model.run(input_ids=ids, use_cache=False).last_hidden_state
    assert relative_errors(ours.numpy(), theirs.numpy()).max() < 1e-6
    assert theirs.isfinite().all()
    assert AutoModel.from_pretrained(folder).config.is_encoder_decoder


def test_a_table_of_sines_that_the_files_lack_is_computed(tmp_path):
    config = CONFIGS["pegasus"]
    tiny.model_with_head("pegasus").save_pretrained(tmp_path / "whole")
    name = "model.encoder.embed_positions.weight"
    folder = with_tensors(tmp_path / "whole", tmp_path / "without", lambda tensors: tensors.pop(name))
    reference = {**load_file(folder / WEIGHTS), name: sinusoids(config.max_position_embeddings, config.d_model)}
    assert largest_error(captured(load_model(folder, dtype="float32")), reference, config) < BOUND


test_an_encoder_is_read_as_the_whole_model_runs_it = together(
    captured_sites_equal_those_computed_from_the_files,
    no_block_of_the_decoder_is_loaded,
    the_encoder_is_named_and_predicts_no_next_token,
    the_table_of_embeddings_may_be_shared_or_that_of_the_encoder,
    the_state_after_the_last_norm_is_what_the_whole_model_gives_its_decoder,
)
