"""A multimodal checkpoint is surveyed as its text model; the reference is the whole model on the same tokens."""

import copy

import numpy as np
import pytest
import torch
from support import tiny
from support.each import each, together
from support.errors import only_line
from support.sentences import assert_says
from support.tiny_configs import CONFIGS
from transformers import AutoModelForImageTextToText, LlavaModel, MusicgenConfig, PaliGemmaConfig, T5Gemma2Config

from theodolite.errors import UnsupportedModelError
from theodolite.sites import Site
from theodolite_jobs.models.anatomy import dimensions_of
from theodolite_jobs.models.facts import describe_model
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.reference import read_sites, relative_errors
from theodolite_jobs.models.text_part import check_text_part, text_part
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import read_circuits

TEXT_MODELS = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "llava": "llama",
    "mistral3": "mistral",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "smolvlm": "llama",
}
IDS = tiny.random_tokens([11])[0]


@pytest.fixture(scope="module", params=TEXT_MODELS)
def saved(request, tmp_path_factory):
    """Return the family, the folder that transformers' multimodal class writes, and the whole model of it."""
    folder = tmp_path_factory.mktemp(request.param)
    tiny.model_with_head(request.param).save_pretrained(folder)
    return request.param, folder, AutoModelForImageTextToText.from_pretrained(folder)


@torch.inference_mode()
def the_stream_is_that_of_the_whole_model(saved):
    family, folder, whole = saved
    model = load_model(folder)
    assert model.config.model_type == TEXT_MODELS[family]
    assert not any("vision" in path for path, _ in model.module.named_modules())
    read = read_sites(model, IDS, range(-len(IDS), 0))[Site.RESID_PRE]
    states = whole(input_ids=torch.tensor([IDS]), output_hidden_states=True, use_cache=False).hidden_states
    for layer in range(5):
        assert relative_errors(read[:, layer], states[layer][0].numpy()).max() < 2e-6, layer


def spread(x):
    return np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6)


@torch.inference_mode()
def heads_and_the_unembedding_are_read_from_the_files_of_the_whole(saved):
    _, folder, whole = saved
    weights, model = Weights(folder, load_config(folder)), load_model(folder)
    assert torch.equal(weights.unembedding(), whole.get_output_embeddings().weight)
    read = read_sites(model, (5,), [-1])  # the output of a head for a single token is the token's value
    for layer in range(5):
        circuits, source = read_circuits(weights, layer), weights.anatomy.keys_of.get(layer, layer)
        x = torch.from_numpy(read[Site.RESID_PRE][0, source]).float()
        normed = model.blocks[source].get_submodule(model.anatomy.norms["attention"])(x).double().numpy()
        value = normed @ circuits.value + (0 if circuits.value_bias is None else circuits.value_bias)
        if weights.anatomy.normed_values:  # Gemma 4, which has no site of the outputs of heads
            value = value / spread(value)
            plain, scaled = (
                np.einsum("hk,hdk->d", value[circuits.kv_head_of], one) for one in (circuits.output, circuits.written)
            )
            assert relative_errors(scaled / spread(plain), read[Site.ATTN_OUT][0, layer]) < 1e-5
            continue
        heads = value[circuits.kv_head_of].reshape(-1)
        assert relative_errors(heads, read[Site.HEAD_OUT][0, layer]) < 1e-5


@each("family", TEXT_MODELS)
def test_the_description_names_the_text_model(family):
    facts = describe_model(CONFIGS[family])
    assert (facts["family"], facts["text_model"]) == (family, TEXT_MODELS[family])
    assert "text_model" not in describe_model(CONFIGS["llama"])


def test_a_model_with_several_text_parts_is_refused():
    for read in (known_anatomy, dimensions_of):
        config = MusicgenConfig()
        config.is_encoder_decoder = False
        with pytest.raises(UnsupportedModelError) as caught:
            read(config)
        assert_says(only_line(caught), "'musicgen' has several text parts")


def test_an_encoder_and_a_decoder_without_a_record_are_refused_as_two_streams():
    with pytest.raises(UnsupportedModelError) as caught:
        known_anatomy(T5Gemma2Config())
    assert_says(only_line(caught), "'t5gemma2' has two residual streams … no record of its encoder; use a model")
    assert "t5, umt5" in str(caught.value)


def test_a_text_model_whose_attention_depends_on_the_kernel_is_refused():
    with pytest.raises(UnsupportedModelError, match="as in PaliGemma: in transformers, its tokens attend"):
        known_anatomy(PaliGemmaConfig())


class _Whole(LlavaModel):
    """A multimodal model that changes the embeddings of text before its text model reads them."""

    def forward(self, input_ids, **options):
        return self.language_model(inputs_embeds=2 * self.get_input_embeddings()(input_ids), **options)


def test_a_text_model_that_differs_from_the_whole_on_text_is_refused():
    check_text_part(LlavaModel(copy.deepcopy(CONFIGS["llava"])))
    whole = _Whole(copy.deepcopy(CONFIGS["llava"]))
    kernel = whole.config._attn_implementation
    with pytest.raises(UnsupportedModelError, match="its text model alone differs from the whole model on text, by"):
        check_text_part(whole)
    assert whole.config._attn_implementation == kernel
    whole.forward = None
    with pytest.raises(UnsupportedModelError) as caught:
        check_text_part(whole)
    assert "it does not run on text alone (TypeError)" in only_line(caught)


def test_a_text_model_that_is_no_module_is_refused():
    model = tiny.tiny_model("llava", auto_class=AutoModelForImageTextToText).model
    model.text = model.language_model
    del model.language_model
    with pytest.raises(UnsupportedModelError) as caught:
        text_part(model)
    assert only_line(caught).startswith("'llava' cannot be surveyed: its text model is not one of its modules; use a")


test_the_text_part_is_read_as_in_the_whole = together(
    the_stream_is_that_of_the_whole_model,
    heads_and_the_unembedding_are_read_from_the_files_of_the_whole,
)
