"""Attention and MLP computed by hand from the weights in the files equal the model's own modules, in float64."""

from dataclasses import fields
from functools import lru_cache

import numpy as np
import torch
from support.reference_blocks import (
    activation_of,
    after_branch,
    epsilon_of,
    gpt_oss_mlp,
    inputs_of,
    joined_heads,
    normalised,
    read_attention,
    recorded,
    reference_heads,
    reference_mlp,
)

from theodolite.sites import Site
from theodolite_jobs.effects.next_token import logit_head
from theodolite_jobs.models.config_numbers import embedding_scale, norm_epsilon
from theodolite_jobs.models.families import is_encoder_alone
from theodolite_jobs.models.load import load_config
from theodolite_jobs.models.reference import read_sites, relative_errors
from theodolite_jobs.models.stored_names import compare_names
from theodolite_jobs.models.tensors import TensorFiles
from theodolite_jobs.models.weights import SHARED, Weights

TOKENS = (5, 60, 17, 33, 9)  # fewer tokens than the tiny models' windows
POSITIONS = [-5, -4, -3, -2, -1]
BOUND = 1e-9
# GPT-J has a table of sines in float32, and Phi-MoE computes its frequencies in each run, here in float64.
BOUND_OF_ANGLES = {"gptj": 1e-6, "phimoe": 1e-6}


@lru_cache(maxsize=1)
def weights_of(folder):
    return Weights(folder, load_config(folder), torch.float64)


def bound_of(model):
    return BOUND_OF_ANGLES.get(model.config.model_type, BOUND)


def names_of_tensors(folder, model):
    files = TensorFiles(folder)
    stored = compare_names(load_config(folder), files.headers)
    assert (stored.missing, stored.surplus, stored.repeated, stored.next_token) == ([], [], [], set())
    stored.check_files(files)
    assert len(stored.shape_of) > 5
    assert stored.embedding


def attention_by_hand(folder, model):
    """What attention adds to the stream, and what each head puts out."""
    weights = weights_of(folder)
    inputs = inputs_of(model, "attention", TOKENS)
    for layer, theirs in read_attention(model, TOKENS).items():
        attention, source = weights.attention(layer), inputs[model.anatomy.keys_of.get(layer, layer)]
        heads = reference_heads(inputs[layer], attention, layer, model, source)
        added = after_branch(joined_heads(heads, attention), layer, "attention_output", weights, model)
        assert relative_errors(added.numpy(), theirs[Site.ATTN_OUT]).max() < bound_of(model), layer
        of_heads = heads.transpose(0, 1).flatten(1)
        assert relative_errors(of_heads.numpy(), theirs[Site.HEAD_OUT]).max() < bound_of(model), layer


ROUTERS = {"phimoe": "mlp.router", "gpt_oss": "mlp.router", "granitemoe": "block_sparse_moe.router"}
ROUTERS |= {"nemotron_h": "mixer.gate", "jamba": "feed_forward.router", "lfm2_moe": "feed_forward.gate"}
ROUTERS |= dict.fromkeys(("granitemoehybrid", "granitemoeshared"), "block_sparse_moe.router")
ROUTERS |= {"llama4_text": "feed_forward.router", "gemma4_text": "router"}


def routes_of(model):
    """Return the shares and the indices of each token's experts in each layer that has experts."""
    found, handles = {}, []
    for layer, block in enumerate(model.blocks):
        router = dict(block.named_modules()).get(ROUTERS.get(model.config.model_type, "mlp.gate"))
        if router is not None:
            keep = lambda _, __, output, layer=layer: found.update({layer: output[-2:]})  # noqa: E731
            handles.append(router.register_forward_hook(keep))
    read_sites(model, TOKENS, [-1])
    for handle in handles:
        handle.remove()
    return found


def routed(model, weights, layer, x, route):
    """Return what a block with experts adds: each token's chosen experts by their shares, and the shared expert."""
    activation, (shares, chosen) = activation_of(model, layer), route
    experts = weights.experts(layer)

    def run(inputs, expert):
        if model.config.model_type == "gpt_oss":
            return gpt_oss_mlp(inputs, weights.mlp(layer, expert), model)
        return reference_mlp(inputs, weights.mlp(layer, expert), activation)

    if model.config.model_type == "gemma4_text":  # the experts and the MLP have norms of their own

        def norm(name, inputs):
            module = model.blocks[layer].get_submodule(name)
            return normalised(inputs, "rms", module.weight, None, module.eps)

        normed = norm("pre_feedforward_layernorm_2", x)
        every = torch.stack([run(normed, one) for one in experts if one != SHARED], 1)
        added = (every.gather(1, chosen[..., None].expand(-1, -1, x.shape[-1])) * shares[..., None]).sum(1)
        dense = run(norm("pre_feedforward_layernorm", x), SHARED)
        total = norm("post_feedforward_layernorm_1", dense) + norm("post_feedforward_layernorm_2", added)
        return norm("post_feedforward_layernorm", total)
    if model.config.model_type == "llama4_text":  # it multiplies what the experts read
        scores = shares
        return sum(run(x * scores[:, one, None], one) for one in experts if one != SHARED) + run(x, SHARED)
    every = torch.stack([run(x, one) for one in experts if one != SHARED], 1)
    out = (every.gather(1, chosen[..., None].expand(-1, -1, x.shape[-1])) * shares[..., None]).sum(1)
    if SHARED in experts:
        shared = reference_mlp(x, weights.mlp(layer, SHARED), activation)
        gate = getattr(getattr(model.blocks[layer], "mlp", None), "shared_expert_gate", None)  # Qwen2-MoE
        out = out + (shared if gate is None else gate(x).sigmoid() * shared)
    return out


def mlp_by_hand(folder, model):
    weights = weights_of(folder)
    read, routes = read_sites(model, TOKENS, POSITIONS), routes_of(model)
    # The blocks of Nemotron-H add one module each.
    theirs = read[Site.MLP_OUT] if Site.MLP_OUT in read else read[Site.RESID_POST] - read[Site.RESID_PRE]
    if model.anatomy.after_mlp:  # Gemma 4
        theirs = torch.stack(recorded(model, "post_feedforward_layernorm", TOKENS), dim=1).numpy()
    for layer, x in enumerate(inputs_of(model, "mlp", TOKENS)):
        if layer in model.anatomy.layers_without_mlp:
            assert weights.experts(layer) == []
            continue
        if layer in routes:
            out = routed(model, weights, layer, x, routes[layer])
        else:
            out = reference_mlp(x, weights.mlp(layer), activation_of(model, layer))
        ours = after_branch(out, layer, "mlp_output", weights, model)
        assert relative_errors(ours.numpy(), theirs[:, layer]).max() < bound_of(model), layer
    dense = [layer for layer in range(5) if weights.experts(layer) == [None]]
    without = model.anatomy.layers_without_mlp
    assert dense == [layer for layer in range(5) if layer not in routes and layer not in without]


def norms_and_embeddings(folder, model):
    whole, config = load_config(folder), model.config  # of a multimodal model, the whole says what is tied
    weights = weights_of(folder)
    torch.testing.assert_close(weights.embedding(), model.module.get_input_embeddings().weight)
    torch.testing.assert_close(weights.embedding(slice(3, 7)), model.module.get_input_embeddings().weight[3:7])
    assert weights.unembedding().shape == weights.embedding().shape
    assert torch.equal(weights.unembedding(), weights.embedding()) == weights.tied
    assert weights.tied == bool(whole.tie_word_embeddings)
    stream = torch.randn(4, model.dimensions.d_model, dtype=torch.float64)
    pairs = norms_of_a_block(weights, model)
    if model.anatomy.final_norm:
        pairs.append((weights.final_norm(), model.module.get_submodule(model.anatomy.final_norm)))
    for norm, module in pairs:
        epsilon = module.eps if config.model_type == "opt" else epsilon_of(config)
        ours = normalised(stream, model.anatomy.norm_kind, norm.scale, norm.bias, epsilon)
        assert relative_errors(ours.numpy(), module(stream).numpy()).max() < 1e-6


def norms_of_a_block(weights, model):
    """Return each norm of a block from the files, and its module; a block that is one module has one of them."""
    found = {path: weights.norm(2, name) for name, path in model.anatomy.norms.items() if weights.norm(2, name)}
    assert set(found) == set(model.anatomy.norms.values())
    return [(norm, model.blocks[2].get_submodule(path)) for path, norm in found.items()]


ROTARY_ENCODERS = {"gte", "jina_embeddings_v3", "nomic_bert"}


def positions_of_encoder(encoder, family):
    if family.endswith("t5"):
        return 0
    if family == "m2m_100":
        return encoder.embed_positions.weights[2 : 2 + len(TOKENS)]
    start = 0 if family in ("marian", "pegasus") else 2
    return encoder.embed_positions.weight[start : start + len(TOKENS)]


def positions_of(model):
    """Return what a family adds to the embeddings of TOKENS for their positions, or nothing."""
    module, count, reserved = model.module, len(TOKENS), model.anatomy.reserved_positions
    if model.config.model_type in ("gpt2", "gpt_bigcode"):
        return module.wpe.weight[:count]
    if model.config.model_type == "opt":
        return module.decoder.embed_positions.weight[2 : 2 + count]
    if is_encoder_alone(model.config):
        return positions_of_encoder(module, model.config.model_type)
    if model.config.model_type in ROTARY_ENCODERS:
        return module.embeddings.token_type_embeddings.weight[0]
    if not model.anatomy.positions.startswith("learned"):
        return 0
    kinds = getattr(module.embeddings, "token_type_embeddings", None)  # MPNet has none
    learned = module.embeddings.position_embeddings.weight[reserved : reserved + count]
    tasks = getattr(module.embeddings, "task_type_embeddings", None)  # ERNIE
    return learned + sum(table.weight[0] for table in (kinds, tasks) if table is not None)


def input_of_the_first_block(folder, model):
    weights = weights_of(folder)
    table = weights.embedding()[list(TOKENS)] * embedding_scale(model.config)
    if model.config.model_type == "opt" and table.shape[1] != model.dimensions.d_model:
        table = model.module.decoder.project_in(table)  # OPT-350m
    x, norm = table + positions_of(model), weights.embedding_norm()
    if norm is not None:
        x = normalised(x, norm.kind, norm.scale, norm.bias, norm.epsilon)
    is_albert = model.config.model_type == "albert"
    assert weights.embeds_into_stream != (is_albert or weights.embedding().shape[1] != model.dimensions.d_model)
    if is_albert or x.shape[1] != model.dimensions.d_model:  # the others are small ELECTRA models
        project = model.module.encoder.embedding_hidden_mapping_in if is_albert else model.module.embeddings_project
        x = project(x)
    normed = {"bert", "bloom", "camembert", "distilbert", "electra", "modernbert", "mpnet", "nomic_bert", "roberta"}
    normed |= {"albert", "bart", "deberta", "deberta-v2", "mbart", "plbart"}
    normed |= {"bert-generation", "data2vec-text", "ernie", "gte", "jina_embeddings_v3", "xlm-roberta"}
    assert (norm is not None) == (model.config.model_type in normed)
    entering = read_sites(model, TOKENS, POSITIONS)[Site.RESID_PRE][:, 0]
    assert relative_errors(x.numpy(), entering).max() < 1e-6


def epsilons_of_norms(folder, model):
    """Use a stream so small that ε is half of the sum under the root."""
    weights = weights_of(folder)
    epsilon = norm_epsilon(weights.config)
    pairs = norms_of_a_block(weights, model)
    others = {model.anatomy.final_norm: weights.final_norm(), model.anatomy.embedding_norm: weights.embedding_norm()}
    pairs += [(norm, model.module.get_submodule(path)) for path, norm in others.items() if path]
    for norm, module in pairs:
        assert norm.epsilon == epsilon
        stream = torch.randn(4, len(norm.scale), dtype=torch.float64) * epsilon**0.5
        ours = normalised(stream, norm.kind, norm.scale, norm.bias, norm.epsilon)
        assert relative_errors(ours.numpy(), module(stream).numpy()).max() < 1e-6


def files_of_the_base_model(folder, model, base):
    with_head, without = weights_of(folder), Weights(base, load_config(base), torch.float64)
    for layer in (0, 4):
        ours, theirs = [each.attention(layer) for each in (with_head, without)] if model.anatomy.files.qkv else [(), ()]
        for field in fields(ours) if ours else ():
            assert_same(getattr(ours, field.name), getattr(theirs, field.name))
        assert with_head.experts(layer) == without.experts(layer)
        for expert in with_head.experts(layer):
            ours, theirs = with_head.mlp(layer, expert), without.mlp(layer, expert)
            for field in fields(ours):
                assert_same(getattr(ours, field.name), getattr(theirs, field.name))
        for norm in model.anatomy.norms:
            assert_same_norm(with_head.norm(layer, norm), without.norm(layer, norm))
    if model.anatomy.final_norm:
        assert_same_norm(with_head.final_norm(), without.final_norm())


def logits_of_the_head(folder, model, whole):
    """Logits from the files are those of the model with its language-model head, here in float32."""
    if not model.anatomy.causal:
        return
    ids = torch.tensor([TOKENS])
    with torch.inference_mode():
        theirs = whole(input_ids=ids).logits
        ours = logit_head(weights_of(folder)).logits(model.module(input_ids=ids).last_hidden_state)
    torch.testing.assert_close(ours.float(), theirs, rtol=0, atol=float(theirs.abs().max()) * 5e-6)


def assert_same_norm(ours, theirs):
    assert (ours is None) == (theirs is None)
    if ours is not None:
        np.testing.assert_array_equal(ours.scale, theirs.scale)
        np.testing.assert_array_equal(ours.bias, theirs.bias)


def assert_same(ours, theirs):
    if isinstance(ours, torch.Tensor):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    else:
        assert ours == theirs


CHECKS = (names_of_tensors, mlp_by_hand, norms_and_embeddings, input_of_the_first_block, epsilons_of_norms)
