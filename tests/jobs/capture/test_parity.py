import copy
from dataclasses import replace

import accelerate
import numpy as np
import pytest
import torch
from support import tiny
from support.each import each
from support.layouts import TAPS
from support.nightly import at_night
from support.sentences import assert_says
from support.tiny_configs import CONFIGS
from transformers import AutoModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel

from theodolite.errors import ModelError, ParityError, UnsupportedModelError
from theodolite.sites import Site
from theodolite_jobs.capture import parity
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.parity import certify, first_block_count
from theodolite_jobs.capture.plan import plan_set, probe_prompts
from theodolite_jobs.models.anatomy import Tap
from theodolite_jobs.models.batching import can_share_prefix, length_class_of
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import wrap

SITES = (Site.RESID_PRE, Site.RESID_MID)


def certify_tiny(model, lengths=(12, 30, 17, 25), prefix=9, **bound):
    tokens = {"set": tiny.random_tokens(lengths, prefix)}
    share = can_share_prefix(model.config, model.anatomy)
    options = {"shard_prompts": 4, "batch_tokens": 64, "share_prefix": share}
    plan = plan_set("set", tokens["set"], (-1,), **options, length_class=length_class_of(model.config))
    probes = {"set": probe_prompts(tokens["set"])}
    return certify(model, (*model.anatomy.taps, Site.RESID_FINAL), range(5), {"set": plan.layout}, probes, **bound)


@each("family", CONFIGS)
def test_every_family_passes_in_float32(family):
    certificate = certify_tiny(wrap(tiny.tiny_model(family)))
    assert certificate.max_error < 1e-5
    assert certificate.warning is None
    assert certificate.identity_error < 1e-6
    assert {*known_anatomy(CONFIGS[family]).taps, "resid_final"} == set(certificate.max_error_by_site)
    # Prompts of the probes' two lengths never share a batch in this family, so each has a companion of its length.
    assert certificate.prompts == (4 if family in ("llama-dynamic", "phi3-longrope", "phimoe-longrope") else 2)


def half_precision_also_checks_the_first_blocks_in_float32(family):
    model = wrap(tiny.tiny_model(family).bfloat16())
    certificate = certify_tiny(model)
    assert certificate.dtype == "bfloat16"
    assert certificate.float32_blocks_max_error < 1e-5
    assert len(model.blocks) == 5
    assert model.dtype == torch.bfloat16


# A third of the kinds by day; in float32, all families by day.
test_half_precision_by_day = each("family", TAPS[::3])(half_precision_also_checks_the_first_blocks_in_float32)
test_half_precision_by_night = pytest.mark.nightly(
    each("family", [*TAPS[1::3], *TAPS[2::3]])(half_precision_also_checks_the_first_blocks_in_float32)
)


@each(
    "lengths, prefix, prompts",
    [
        ((3, 60), 0, 2),  # a batch of the plan would charge more for the padding than for a second batch
        ((12, 30), 9, 2),
        ((12, 12), 0, 2),  # the second probe is the first without its end
        ((12, 12), 9, 2),
        ((1, 1), 0, 2),  # the second probe is the first one twice
        ((9,), 0, 2),
    ],
)
@each("family", ["llama", "bert"])
def test_the_probes_are_in_one_batch_with_padding(monkeypatch, family, lengths, prefix, prompts):
    forward, batches = Engine._forward, []

    def noted(self, plan, prompts, *recorded):
        batches.append([len(ids) for ids in prompts])
        return forward(self, plan, prompts, *recorded)

    monkeypatch.setattr(Engine, "_forward", noted)
    certificate = certify_tiny(wrap(tiny.tiny_model(family)), lengths, prefix)
    assert certificate.max_error < 1e-5
    assert certificate.prompts == prompts
    (batch,) = batches
    assert len(batch) == prompts
    assert len(set(batch)) > 1


class _TokenFirstBlock(LlamaDecoderLayer):
    def forward(self, hidden, rotary):
        return super().forward(hidden.transpose(0, 1), position_embeddings=rotary).transpose(0, 1)


class _TokenFirst(LlamaModel):
    """A decoder whose blocks hold (token, prompt, d_model), as the code of some authors does."""

    def __init__(self, config):
        super().__init__(config)
        self.layers = torch.nn.ModuleList(_TokenFirstBlock(config, layer) for layer in range(5))

    def forward(self, input_ids, **_):
        hidden = self.embed_tokens(input_ids)
        rotary = self.rotary_emb(hidden, torch.arange(input_ids.shape[1])[None])
        hidden = hidden.transpose(0, 1)
        for block in self.layers:
            hidden = block(hidden, rotary)
        return BaseModelOutputWithPast(self.norm(hidden.transpose(0, 1)))


@each("lengths", [(12, 30), (3, 60), (12, 12)])
def test_blocks_that_hold_the_tokens_first_are_refused(lengths):
    torch.manual_seed(0)
    module = _TokenFirst(CONFIGS["llama"])
    taps = {Site.RESID_PRE: Tap("", "input"), Site.RESID_POST: Tap("", "output")}
    model = wrap(module, replace(known_anatomy(module.config), taps=taps))
    with pytest.raises(UnsupportedModelError, match=r"supported are blocks that hold \(prompt, token, d_model\)"):
        certify_tiny(model, lengths, 0)


def test_a_site_read_from_the_wrong_module_is_refused_and_named():
    model = wrap(tiny.tiny_model("llama"))
    wrong = {**model.anatomy.taps, Site.RESID_MID: Tap("input_layernorm", "input")}
    with pytest.raises(ParityError, match="at resid_mid"):
        certify_tiny(replace(model, anatomy=replace(model.anatomy, taps=wrong)))


def test_half_precision_cannot_hide_a_wrong_site():
    model = wrap(tiny.tiny_model("llama").bfloat16())
    with torch.no_grad():  # attention adds so little that the error in bf16 would be within its bound
        for block in model.blocks:
            block.self_attn.o_proj.weight.mul_(1e-3)
            block.self_attn.o_proj.bias.mul_(1e-3)
    wrong = {**model.anatomy.taps, Site.RESID_MID: Tap("input_layernorm", "input")}
    with pytest.raises(ParityError, match="at resid_mid, allowed 1e-05"):
        certify_tiny(replace(model, anatomy=replace(model.anatomy, taps=wrong)))


def test_certify_does_not_change_the_attention_kernel():
    model = wrap(tiny.tiny_model("llama"))
    before = model.config._attn_implementation
    assert certify_tiny(model).attention == before == model.config._attn_implementation == "sdpa"


@each("dtype", [torch.float32, torch.bfloat16])
@each("site", SITES)
def test_a_capture_that_is_not_a_number_is_refused(monkeypatch, dtype, site):
    capture = Engine.capture

    def broken(self, *arguments):
        captured = capture(self, *arguments)
        captured.activations[site][:] = float("nan")
        return captured

    monkeypatch.setattr(Engine, "capture", broken)
    with pytest.raises(ParityError, match="nan"):
        certify_tiny(wrap(tiny.tiny_model("llama").to(dtype)))


def test_a_model_that_overflows_by_itself_is_not_reported_as_a_wrong_site():
    model = wrap(tiny.tiny_model("llama").half())
    with torch.no_grad():
        model.blocks[1].mlp.down_proj.weight.fill_(6e4)
    with pytest.raises(ParityError, match=r"NaN or infinity .* set model\.dtype to bfloat16 or float32"):
        certify_tiny(model)


def test_rounding_that_float64_removes_gives_a_measured_bound():
    certificate = certify_tiny(wrap(tiny.tiny_model("gpt2")), float32_bound=1e-8)
    assert 1e-8 < certificate.max_error <= certificate.bound
    assert certificate.bound == 5 * certificate.float32_rounding + 1e-5
    assert "is up to" in certificate.warning


def with_an_error(size, monkeypatch):
    """Move one captured vector of float32 models by this part of its length, in a direction of its own."""
    capture = Engine.capture

    def moved(self, *arguments):
        captured = capture(self, *arguments)
        if self.model.dtype == torch.float32:
            values = captured.activations[Site.RESID_POST]
            values[-1, 0, 1, 0] += size * np.linalg.norm(values[-1, 0, 1])
        return captured

    monkeypatch.setattr(Engine, "capture", moved)


@each("dtype", [torch.float32, torch.bfloat16])
def test_a_capture_that_only_rounds_has_no_warning_and_states_its_rounding(dtype):
    certificate = certify_tiny(wrap(tiny.tiny_model("llama").to(dtype)))
    assert certificate.warning is None
    assert 1e-8 < certificate.float32_rounding < 1e-6
    error = certificate.max_error if dtype == torch.float32 else certificate.float32_blocks_max_error
    assert error < 3 * certificate.float32_rounding
    assert certificate.bound == (5e-5 if dtype == torch.float32 else None)


@each("dtype", [torch.float32, torch.bfloat16])
def test_an_error_that_rounding_does_not_explain_has_a_warning(dtype, monkeypatch):
    with_an_error(3e-5, monkeypatch)
    certificate = certify_tiny(wrap(tiny.tiny_model("llama").to(dtype)))
    rounding = f"{certificate.float32_rounding:.1e}"
    assert_says(certificate.warning, f"3.0e-05, passes the check, but plain float32 … {rounding} from float64")


def test_an_error_that_rounding_explains_has_no_warning(monkeypatch):
    """Plain float32 that rounds by 2e-5 explains an error of 3e-5: captured and plain runs both round."""
    with_an_error(3e-5, monkeypatch)
    monkeypatch.setattr(parity, "distance_from_float64", lambda *_: 2e-5)
    certificate = certify_tiny(wrap(tiny.tiny_model("llama")))
    assert (certificate.warning, certificate.float32_rounding) == (None, 2e-5)


def test_without_a_run_in_float64_the_warning_says_that_rounding_was_not_measured(monkeypatch):
    def without_memory(*_):
        raise torch.OutOfMemoryError("no memory left")

    with_an_error(3e-5, monkeypatch)
    monkeypatch.setattr(parity, "distance_from_float64", without_memory)
    certificate = certify_tiny(wrap(tiny.tiny_model("llama")))
    assert certificate.float32_rounding is None
    assert_says(certificate.warning, "passes the check … rounding was not measured")


def test_rounding_is_measured_on_the_first_blocks_of_the_prompt_with_the_largest_error(monkeypatch):
    measured = []

    def noted(head, comparison, ids, spans):
        measured.append((len(head.blocks), comparison.layers, len(ids), spans))
        return 0.0

    model = wrap(tiny.tiny_model("llama"))
    with_an_error(3e-5, monkeypatch)
    monkeypatch.setattr(parity, "distance_from_float64", noted)
    certify_tiny(model)
    assert measured == [(4, (0, 1, 2, 3), 30, ((29, 30),))]
    assert len(model.blocks) == model.config.num_hidden_layers == 5


def test_the_measurement_of_rounding_leaves_the_weights_as_they_are():
    model = wrap(tiny.tiny_model("llama"))
    before = {name: (weight.data_ptr(), weight.clone()) for name, weight in model.module.named_parameters()}
    certify_tiny(model)
    for name, weight in model.module.named_parameters():
        assert weight.data_ptr() == before[name][0]
        assert torch.equal(weight, before[name][1])


def test_captured_activations_that_are_less_exact_than_plain_ones_are_reported_as_rounding(monkeypatch):
    capture = Engine.capture

    def coarse(self, *arguments):
        captured = capture(self, *arguments)
        if self.model.dtype == torch.float32:
            captured.activations[Site.RESID_POST] *= 1 + 3e-4
        return captured

    monkeypatch.setattr(Engine, "capture", coarse)
    with pytest.raises(ParityError, match=r"first 5 blocks differ by .* this is rounding"):
        certify_tiny(wrap(tiny.tiny_model("gpt2")))


def inexact(family):
    """Return a model whose gated delta rule, which transformers runs in float32, rounds much."""
    model = tiny.tiny_model(family)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "in_proj" in name:
                weight.mul_(100)
    return model


LONG = {"lengths": (60, 120, 90, 75)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen3_next", *at_night(["qwen3_5_text"])])
def test_a_gated_delta_rule_that_rounds_much_passes_with_a_measured_bound(family, dtype):
    certificate = certify_tiny(wrap(inexact(family).to(dtype)), **LONG)
    assert certificate.float32_rounding > 1e-5
    assert_says(certificate.warning, "Plain Hugging Face in float32")
    if dtype == torch.float32:
        assert 5e-5 < certificate.max_error <= certificate.bound


def planted(mistake, monkeypatch, model):
    """Plant a mistake; that of `shifted` is smaller than the rounding of the model."""
    capture, forward = Engine.capture, Engine._forward
    if mistake == "wrong tap":
        wrong = {**model.anatomy.taps, Site.RESID_MID: Tap("input_layernorm", "input")}
        return replace(model, anatomy=replace(model.anatomy, taps=wrong))

    def shifted(self, *arguments):
        captured = capture(self, *arguments)
        values = captured.activations[Site.RESID_POST]
        values[0] = values[0] + 1e-4 * (values[-1] - values[0])  # a little of another prompt
        return captured

    def with_other_tokens(self, plan, prompts, *recorded):
        return forward(self, plan, [(*ids[:-2], ids[-1], ids[-1]) for ids in prompts], *recorded)

    monkeypatch.setattr(Engine, *(("capture", shifted) if mistake == "shifted" else ("_forward", with_other_tokens)))
    return model


@pytest.mark.parametrize("mistake", ["wrong tap", "shifted", *at_night(["other tokens"])])
@pytest.mark.parametrize("family", ["qwen3_next", *at_night(["qwen3_5_text"])])
def test_a_mistake_in_a_model_that_rounds_much_is_still_refused(family, mistake, monkeypatch):
    model = planted(mistake, monkeypatch, wrap(inexact(family)))
    with pytest.raises(ParityError, match=r"not rounding but a mistake|is not read from the correct module"):
        certify_tiny(model, **LONG)


@each("dtype", [torch.float32, torch.bfloat16])
@each("family, setting", [("qwen3_moe", "moe_intermediate_size"), ("mixtral", "intermediate_size")])
def test_experts_of_a_width_that_no_grouped_product_takes_run_one_after_the_other(family, setting, dtype):
    config = copy.deepcopy(CONFIGS[family])
    setattr(config, setting, 22)
    model = wrap(tiny.random_model(config, AutoModel).to(dtype))
    assert model.config._experts_implementation == "eager"
    assert certify_tiny(model).dtype == str(dtype).removeprefix("torch.")


@each("width, implementation", [(24, "grouped_mm"), (22, "eager")])
def test_only_experts_of_a_width_that_a_grouped_product_takes_run_together(width, implementation):
    config = copy.deepcopy(CONFIGS["mixtral"])
    config.intermediate_size = width
    with torch.device("meta"):  # any device but the CPU
        model = wrap(AutoModel.from_config(config))
    assert model.config._experts_implementation == implementation


@each("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_named(value):
    model = wrap(tiny.tiny_model("llama"))
    with torch.no_grad():
        model.blocks[2].mlp.up_proj.weight[3, 5] = value
    with pytest.raises(ModelError, match=r"layers\.2\.mlp\.up_proj\.weight has NaN or infinity in float32 in 1 of"):
        certify_tiny(model)


@each("dtype", [torch.float32, torch.bfloat16])
def test_a_failure_that_remains_in_float64_is_reported_as_a_mistake(monkeypatch, dtype):
    capture = Engine.capture

    def off(self, *arguments):
        captured = capture(self, *arguments)
        captured.activations[Site.RESID_POST] *= 1.1
        return captured

    monkeypatch.setattr(Engine, "capture", off)
    with pytest.raises(ParityError, match=r"error .* at resid_post.* not rounding but a mistake"):
        certify_tiny(wrap(tiny.tiny_model("mixtral").to(dtype)))


def test_a_bidirectional_decoder_gets_a_mask():
    config = copy.deepcopy(CONFIGS["gemma3_text"])
    config.use_bidirectional_attention = True
    torch.manual_seed(0)
    model = wrap(AutoModel.from_config(config))
    assert not model.anatomy.causal
    assert certify_tiny(model).max_error < 1e-5


def test_a_certificate_says_whether_differences_of_the_stream_are_outputs_of_the_branches():
    llama, bert, gemma4 = (certify_tiny(wrap(tiny.tiny_model(name))) for name in ("llama", "bert", "gemma4"))
    assert (llama.branches_add, bert.branches_add, gemma4.branches_add) == (True, False, False)
    assert (llama.post_norm, bert.post_norm, gemma4.post_norm) == (False, True, False)


def test_a_mistake_after_the_first_blocks_is_not_reported_as_rounding(monkeypatch):
    capture = Engine.capture

    def off_at_the_end(self, *arguments):
        captured = capture(self, *arguments)
        if len(self.layers) == 5:
            captured.activations[Site.RESID_POST][:, :, 4] *= 1.1
        return captured

    monkeypatch.setattr(Engine, "capture", off_at_the_end)
    with pytest.raises(ParityError, match=r"first 5 blocks differ by .* not rounding but a mistake"):
        certify_tiny(wrap(tiny.tiny_model("gpt2")))


def test_a_failure_is_reported_even_if_it_cannot_be_measured_in_float64(monkeypatch):
    capture = Engine.capture

    def without_memory_for_float64(self, *arguments):
        if self.model.dtype == torch.float64:
            raise torch.OutOfMemoryError("no memory left")
        return capture(self, *arguments)

    monkeypatch.setattr(Engine, "capture", without_memory_for_float64)
    with pytest.raises(ParityError, match=r"differ from plain Hugging Face.*could not be measured again"):
        certify_tiny(wrap(tiny.tiny_model("gpt2")), float32_bound=1e-8)


@pytest.mark.parametrize("family", ["gemma3", *at_night(["llama", "bert"])])
def test_a_model_with_a_device_map_is_copied_and_not_cast(family):
    model = tiny.tiny_model(family).bfloat16()
    model = wrap(accelerate.dispatch_model(model, {"": "cpu"}, main_device="cpu", force_hooks=True))
    assert certify_tiny(model).dtype == "bfloat16"
    assert {weight.dtype for weight in model.module.parameters()} == {torch.bfloat16}
    assert model.config.get_text_config().num_hidden_layers == 5


@each("family", ["gpt_neox", "gptj"])
def test_terms_that_cancel_in_half_precision_pass(family):
    model = tiny.tiny_model(family).bfloat16()
    with torch.no_grad():  # the second block adds a large value to one feature, and the last block subtracts it
        for block, planted in ((1, 2000.0), (4, -2000.0)):
            path = {"gpt_neox": f"layers.{block}.mlp.dense_4h_to_h", "gptj": f"h.{block}.mlp.fc_out"}[family]
            model.get_submodule(path).bias[7] += planted
    assert certify_tiny(wrap(model)).identity_error < 2e-2


def test_first_blocks_include_every_kind_of_layer():
    config = copy.deepcopy(CONFIGS["gemma3_text"])
    config.num_hidden_layers, config.layer_types = 7, ["sliding_attention"] * 5 + ["full_attention"] * 2
    torch.manual_seed(0)
    assert first_block_count(wrap(AutoModel.from_config(config))) == 6
    assert first_block_count(wrap(tiny.tiny_model("llama"))) == 4
