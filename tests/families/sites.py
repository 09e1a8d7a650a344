"""A family's sites are those of a hand-run: the block's own submodules, called one after the other in float64."""

import copy
from itertools import permutations, product
from typing import Any

import numpy as np
import torch
from support import tiny
from support.hand_calls import run_by_hand
from support.hand_runs import HAND_RUNS, HYBRIDS

from theodolite.sites import STREAM_SITES, Site
from theodolite_jobs.capture import fused
from theodolite_jobs.capture.fused import applied
from theodolite_jobs.models.anatomy import Anatomy
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.reference import identity_errors, read_sites, relative_errors

IDS = tiny.random_tokens([11])[0]
POSITIONS = [-3, -1]


def eager_float64(module: Any) -> LoadedModel:
    """Return a copy of a tiny model, because its configuration changes."""
    copied = copy.deepcopy(module).double()
    copied.set_attn_implementation("eager")
    if hasattr(copied.config, "_experts_implementation"):
        copied.set_experts_implementation("eager")  # the only one that computes in float64
    return wrap(copied)


PARALLEL = {"cohere", "cohere2", "falcon-groups", "falcon-multi-query", "gpt_neox", "gptj", "phi", "phi-qk-norm"}
PARALLEL |= {"stablelm-parallel"}
POST_NORM = {"camembert", "distilbert", "electra", "electra-projected", "nomic_bert"}
POST_NORM |= {"albert", "albert-groups"}
POST_NORM |= {"bart", "bart-scaled", "marian", "marian-own", "plbart"}
POST_NORM |= {"deberta", "deberta-learned", "deberta-v2", "deberta-v2-buckets"}
POST_NORM |= {"bert-generation", "data2vec-text", "ernie", "gte", "jina_embeddings_v3"}
POST_NORM |= {"bert", "mpnet", "opt-post-norm", "roberta", "xlm-roberta"}


def sites_of(family: str) -> set[Site]:
    """Return the sites of the stream that all blocks of a family have."""
    if family.startswith("gemma4"):
        return set(STREAM_SITES) - {Site.RESID_MID_SUM, Site.MLP_OUT}
    if family.startswith("nemotron_h"):
        return {Site.RESID_PRE, Site.RESID_POST}
    if family in HYBRIDS | {"falcon_h1"}:
        return set(STREAM_SITES) - {Site.RESID_MID_SUM, Site.ATTN_OUT}
    if family in POST_NORM:
        return set(STREAM_SITES)
    if family in PARALLEL:
        return set(STREAM_SITES) - {Site.RESID_MID_SUM, Site.RESID_MID}
    return set(STREAM_SITES) - {Site.RESID_MID_SUM}


@torch.inference_mode()
def sites_of_a_hand_run(family, model):
    read = read_sites(model, IDS, POSITIONS)
    by_hand = run_by_hand(model.module, IDS, HAND_RUNS[family])
    assert sites_of(family) == set.intersection(*(set(streams) for streams in by_hand))
    assert {site for site in read if site in STREAM_SITES} == set.union(*(set(streams) for streams in by_hand))
    for site, (layer, streams) in product(set(read) & set(STREAM_SITES), enumerate(by_hand)):
        if site in streams:
            values = streams[site].view(len(IDS), -1)[POSITIONS].numpy()
            assert relative_errors(read[site][:, layer], values).max() <= 1e-12, site
        else:
            assert np.isnan(read[site][:, layer]).all(), site
    final = by_hand[-1][Site.RESID_POST].view(len(IDS), -1)[POSITIONS]
    assert relative_errors(read[Site.RESID_FINAL], final.numpy()).max() <= 1e-12


@torch.inference_mode()
def identities(_family, model):
    """The identities hold, and fail for swapped taps."""
    read = read_sites(model, IDS, POSITIONS)
    assert max(identity_errors(model, read).values()) <= 1e-13
    for site, other in permutations(model.anatomy.taps, 2):
        if read[site].shape != read[other].shape:  # heads wider than the stream
            continue
        misread = {**read, site: read[other]}
        assert max(identity_errors(model, misread).values()) > 1e-3, (site, other)


@torch.inference_mode()
def norms(_family, model):
    """The norms of a block, and the last one, are those of the record."""
    anatomy = model.anatomy
    layer = model.blocks[2]
    paths = {role: layer.get_submodule(path) for role, path in anatomy.norms.items()}
    if anatomy.final_norm:
        paths["final"] = model.module.get_submodule(anatomy.final_norm)
    ran: dict[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}
    for norm in paths.values():
        norm.register_forward_hook(lambda norm, args, output: ran.update({norm: (args[0], output)}))
    read = read_sites(model, IDS, POSITIONS)
    mid = Site.RESID_MID if Site.RESID_MID in read else Site.RESID_PRE
    attention, mlp = (Site.RESID_MID, Site.RESID_POST) if anatomy.post_norm else (Site.ATTN_OUT, Site.MLP_OUT)
    site_of_norm = {  # the side of the norm (0 input, 1 output) and its site
        "attention": (0, Site.RESID_PRE),
        "mlp": (0, mid),
        "attention_output": (1, attention),
        "mlp_output": (1, mlp),
        "final": (0, Site.RESID_FINAL),
    }
    for role, norm in paths.items():
        side, site = site_of_norm[role]
        seen = [value.reshape(len(IDS), -1)[POSITIONS].numpy() for value in ran[norm]]
        if site in read:
            expected = read[site] if role == "final" else read[site][:, 2]
            assert relative_errors(seen[side], expected).max() <= 1e-12, role
        assert relative_errors(norm_without_epsilon(anatomy, norm, seen[0]), seen[1]).max() < 1e-2, role


def norm_without_epsilon(anatomy: Anatomy, norm: Any, x: np.ndarray) -> np.ndarray:
    """Return the layer norm or root-mean-square norm of the record; epsilon changes it by less than 1 %."""
    if anatomy.norm_kind == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True))
    weight, bias = (getattr(norm, name, None) for name in ("weight", "bias"))
    scaled = x if weight is None else x * (weight.numpy() + anatomy.norm_offset)
    return scaled if bias is None else scaled + bias.numpy()


@torch.inference_mode()
def fused_norms(_family, model):
    """Norms of one kernel give the same stream, up to the float32 in which families compute norms."""
    plain = read_sites(model, IDS, POSITIONS)
    with applied(list(fused.fused_norms(model))):
        ours = read_sites(model, IDS, POSITIONS)
    for site, values in plain.items():
        assert np.nanmax(relative_errors(ours[site], values)) <= 1e-5, site


CHECKS = (sites_of_a_hand_run, identities, fused_norms, norms)
