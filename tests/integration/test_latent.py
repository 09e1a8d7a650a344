"""Surveys of models with multi-head latent attention: their heads have the rotary part, others do not."""

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from support.latent_attention import MORE_CONFIGS, YARN
from support.nightly import at_night
from support.sentences import assert_says
from support.serving import client_of
from support.tiny_configs import CONFIGS
from support.tiny_survey import save_model
from transformers import AutoConfig

import theodolite
from theodolite.groups.heads.sections import sections
from theodolite.query.runs import run_state, spec_of_results
from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite.store.result_reader import read_group
from theodolite_jobs.analysis import analyse_run
from theodolite_jobs.groups.heads.formulas import copying_score_sd_of_gaussian_factors
from theodolite_jobs.groups.heads.layer import vocabulary_products
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.progress import Console
from theodolite_jobs.report.page import render_report
from theodolite_jobs.statistics.factors import effective_rank_of_gaussian_factors
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("without_figures")

OFFSETS = [0, 1, 40]
FAMILIES = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")


def surveyed(folder, config, **heads):
    model = save_model(folder / "model", config=config)
    spec = {"model": {"id": str(model)}, "prompts": {}, "analyses": ["heads"], "heads": {"vectors": 2, **heads}}
    return survey(parse_spec(spec), Path(), Settings(store=str(folder / "store")), Console())


@pytest.fixture(
    scope="module", params=["deepseek_v3", "yarn-v2", *at_night(["deepseek_v2", "glm4_moe_lite", "halves-glm"])]
)
def run(request, tmp_path_factory):
    return surveyed(tmp_path_factory.mktemp("latent"), MORE_CONFIGS[request.param], offsets=OFFSETS)


def dense(run, layer, head, offset):
    """Return s·W_QR R(δ) W_KRᵀ from the tensors of the model's files, with complex numbers for the rotation."""
    folder = Path(run.record.spec.model.id)
    config, files = AutoConfig.from_pretrained(folder), Weights(folder, AutoConfig.from_pretrained(folder))._files
    named = {name: files.read(name).double().numpy() for name in files.headers if f"layers.{layer}.self_attn" in name}
    tensor = {name.partition("self_attn.")[2].removesuffix(".weight"): value for name, value in named.items()}
    plain, width = config.qk_nope_head_dim, config.qk_rope_head_dim
    rows = slice(head * (plain + width) + plain, (head + 1) * (plain + width))
    if config.q_lora_rank is None:
        query = tensor["q_proj"][rows].T
    else:
        query = (tensor["q_b_proj"][rows] * tensor["q_a_layernorm"] @ tensor["q_a_proj"]).T
    key, settings = tensor["kv_a_proj_with_mqa"][config.kv_lora_rank :].T, config.rope_parameters
    frequencies, scale = settings["rope_theta"] ** (-np.arange(0, width, 2) / width), (plain + width) ** -0.5
    if settings["rope_type"] == "yarn":  # Peng et al. 2023, with the two factors of DeepSeek
        turns = [32 / (2 * np.pi * rotations) for rotations in (32.0, 1.0)]
        low, high = (width * np.log(turn) / (2 * np.log(settings["rope_theta"])) for turn in turns)
        low, high = max(np.floor(low), 0), min(np.ceil(high), width - 1)
        ramp = np.clip((np.arange(width // 2) - low) / (high - low), 0, 1)
        frequencies = frequencies / YARN["factor"] * ramp + frequencies * (1 - ramp)
        of_scores, of_turns = ((0.1 * settings[name] * np.log(4) + 1) for name in ("mscale_all_dim", "mscale"))
        scale = scale * of_scores**2 * (of_turns / of_scores) ** 2
    if getattr(config, "rope_interleave", True):
        pairs = [matrix[:, ::2] + 1j * matrix[:, 1::2] for matrix in (query, key)]
    else:
        pairs = [matrix[:, : width // 2] + 1j * matrix[:, width // 2 :] for matrix in (query, key)]
    return scale * (pairs[0] * np.exp(1j * offset * frequencies) @ pairs[1].conj().T).real


def test_the_stored_values_are_those_of_the_dense_products(run):
    rotary = read_group(run, "heads").sel(circuit="rotary")
    known = rotary["singular_values"].dropna("rank", how="all")
    assert known.sizes == {"offset": 3, "layer": 5, "head": 4, "rank": 8}
    assert np.isfinite(known).all()
    for layer, head, offset in ((0, 0, 0), (0, 3, 1), (2, 1, 40), (4, 2, 1)):
        stored = rotary["singular_values"].sel(layer=layer, head=head, offset=offset).values[:8]
        expected = np.linalg.svd(dense(run, layer, head, offset), compute_uv=False)[:8]
        # The family's own frequencies are in float32.
        assert np.abs(stored - expected).max() < (1e-9 if offset == 0 else 1e-6) * expected[0]
        share = expected / expected.sum()
        at = rotary.sel(layer=layer, head=head, offset=offset)
        assert float(at["effective_rank"]) == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-5)
        assert float(at["stable_rank"]) == pytest.approx((expected**2).sum() / expected[0] ** 2, rel=1e-5)
        assert int(at["coverage_99"]) == np.argmax(np.cumsum(share) > 0.99) + 1
    sizes = AutoConfig.from_pretrained(run.record.spec.model.id)
    query = [width for width in (sizes.q_lora_rank, 8) if width]
    assert rotary.attrs["circuits"]["rotary"] == {
        "largest_rank": 8,
        "effective_rank_random": effective_rank_of_gaussian_factors(sizes.hidden_size, query, [8]),
    }


def test_random_heads_have_the_latents_of_the_model(run):
    heads, sizes = read_group(run, "heads"), AutoConfig.from_pretrained(run.record.spec.model.id)
    assert np.isnan(heads["effective_rank_random"])
    query = [width for width in (sizes.q_lora_rank, sizes.qk_nope_head_dim) if width]
    key, value = ([sizes.kv_lora_rank, width] for width in (sizes.qk_nope_head_dim, sizes.v_head_dim))
    plain, own = sizes.qk_nope_head_dim, sizes.v_head_dim
    of_qk = effective_rank_of_gaussian_factors(sizes.hidden_size, query, key)
    of_ov = effective_rank_of_gaussian_factors(sizes.hidden_size, value, [own])
    circuits = heads.attrs["circuits"]
    assert {circuit: circuits[circuit] for circuit in ("qk", "ov")} == {
        "qk": {"largest_rank": min(plain, sizes.kv_lora_rank, *query), "effective_rank_random": of_qk},
        "ov": {"largest_rank": min(own, sizes.kv_lora_rank), "effective_rank_random": of_ov},
    }
    weights = Weights(Path(run.record.spec.model.id), sizes)
    vocabulary = vocabulary_products(weights, False, torch.device("cpu"))
    sd = copying_score_sd_of_gaussian_factors(vocabulary.centred, value, [own])
    assert float(heads["copying_score_random_sd"]) == pytest.approx(sd, rel=1e-6)
    (ranks,) = (fact for fact in sections(run)[0].facts if "effective rank" in fact)
    largest = min(plain, sizes.kv_lora_rank, *query)
    assert_says(ranks, f"at most {largest}; random weights: {of_qk:.1f} … random weights:")


def test_readers_and_the_api_return_the_part(run):
    rotary, opened = read_group(run, "heads").sel(circuit="rotary"), theodolite.open_run(run.store, run.id)
    client = client_of(run.store)
    for offset in OFFSETS:
        stored = rotary["effective_rank"].sel(offset=offset)
        xr.testing.assert_equal(opened.heads("rotary", offset)["effective_rank"], stored)
        at = {"circuit": "rotary", "offset": offset}
        head = client.get(f"/v1/runs/{run.id}/heads/2/1", params=at).json()
        spectrum = rotary["singular_values"].sel(offset=offset, layer=2, head=1).values[:8]
        assert head["singular_values"] == spectrum.tolist()
    assert list(verify(run)) == []


def test_the_report_shows_the_part_apart(run):
    _, section = sections(run)
    assert_says(section.title, "rotary part … 8 entries")
    ranks = read_group(run, "heads")["effective_rank"].sel(circuit="rotary", offset=0)
    assert_says(section.facts[0], f"at most 8: {float(ranks.median()):.1f} … 20 heads")
    assert_says(section.facts[1], "effective rank … offset 1:")
    assert_says(section.notes[0], "not folded")
    assert_says(section.notes, "cannot be compared in size")
    for figure in (*section.figures, *section.maps):
        figure.draw()
    page = render_report(run)
    assert "rotary part of the scores" in page
    assert "heads.rotary.effective_rank" in page


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
def test_other_models_have_no_such_part(family, tmp_path):
    run = surveyed(tmp_path, CONFIGS[family])
    assert read_group(run, "heads")["circuit"].values.tolist() == ["qk", "ov"]
    assert len(sections(run)) == 1
    assert "rotary part" not in render_report(run)


def test_the_norm_is_folded_into_both_sides_and_a_change_computes_the_heads_again(tmp_path):
    run = surveyed(tmp_path, CONFIGS["deepseek_v3"])
    plain = read_group(run, "heads").sel(circuit="rotary")
    spec = spec_of_results(run).model_dump(mode="json")
    spec["heads"] |= {"fold_norm": True}
    analyse_run(run, parse_spec(spec), None, Settings(store=run.store), Console())
    folded = read_group(run, "heads").sel(circuit="rotary")
    assert folded.attrs["rotary_notes"][0] == "the norm before attention is folded into the weights"
    changed = abs(folded["singular_values"] / plain["singular_values"] - 1) > 1e-3
    assert changed.isel(rank=range(8)).all("rank").mean() > 0.9
    assert run_state(run) == "complete"
