"""The parts of the stream of whole models add up, and the group's arrays equal sums over captured activations."""

import numpy as np
import pytest
from support import tiny
from support.analysing import context_of
from support.each import each
from support.stored import record_of, store_run

from theodolite.groups.schema import NULL_AND_LIMIT
from theodolite.sites import Site
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.plan import plan_set
from theodolite_jobs.groups.contributions import compute as contributions
from theodolite_jobs.groups.contributions.formulas import head_outputs
from theodolite_jobs.models.batching import length_class_of
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import read_circuits

LAYERS, WIDTH = 5, 48
CONTRASTS = {"refusal": {"positive": "bad", "negative": "good", "paired": False}}
# With norms on attention's output, a multiplier, biases, parallel blocks, learned positions and grouped keys.
FAMILIES = ["llama", "gemma2", "olmo2", "granite", "gpt2", "gptj", "phi", "cohere", "bloom", "opt"]


def captured(family, folder, seed):
    """Return the activations of 12 prompts at the last token, by site, and the model's weights."""
    module = tiny.tiny_model(family)
    module.save_pretrained(folder)
    model = wrap(module)
    tokens = tiny.random_tokens([7, 9, 8, 12, 10, 11] * 2, seed=seed)
    plan = plan_set(
        "set",
        tokens,
        (-1,),
        shard_prompts=12,
        batch_tokens=64,
        share_prefix=False,
        length_class=length_class_of(model.config),
    )
    engine = Engine(model, (*model.anatomy.sites, Site.RESID_FINAL), range(LAYERS))
    (shard,) = [engine.capture(plan.task(shard, tokens)) for shard in plan.shards]
    return shard.activations, Weights(folder, model.config)


@each("family", FAMILIES)
def test_the_parts_of_each_vector_add_up_to_resid_final(family, tmp_path):
    activations, weights = captured(family, tmp_path / "model", 0)
    total = activations[Site.RESID_PRE][:, 0, 0].astype(np.float64)
    for layer in range(LAYERS):
        outputs = activations[Site.HEAD_OUT][:, 0, layer].astype(np.float64)
        total += head_outputs(outputs, read_circuits(weights, layer)).attention()
        total += activations[Site.MLP_OUT][:, 0, layer]
    final = activations[Site.RESID_FINAL][:, 0]
    assert (np.linalg.norm(total - final, axis=1) / np.linalg.norm(final, axis=1)).max() < 1e-5


SITES = (Site.RESID_PRE, Site.RESID_MID, Site.HEAD_OUT)


def null_of(values, label):
    return values[..., NULL_AND_LIMIT.index(label)]


def computed(family, tmp_path, sites=SITES):
    """Return the group and both sets' activations of one family."""
    bad, weights = captured(family, tmp_path / "model", 0)
    good, _ = captured(family, tmp_path / "other", 1)
    by_set = {"bad": bad, "good": good}
    arrays = {name: {site: of_set[site] for site in sites if site in of_set} for name, of_set in by_set.items()}
    final = {name: of_set[Site.RESID_FINAL] for name, of_set in by_set.items()}
    sizes = weights.dimensions
    record = record_of(arrays, 4, CONTRASTS)
    model = record.model.model_copy(update={"n_heads": sizes.n_heads, "d_head": sizes.d_head})
    run = store_run(tmp_path / "store", arrays, contrasts=CONTRASTS, final=final, model=model)
    result = contributions.compute(context_of(run, CONTRASTS, weights=weights))
    return {name: values[0, 0] for name, values in result.arrays.items()}, bad, good


@each("family", ["llama", "gemma2", "granite", "gpt2", "gptj"])
def test_shares_are_those_of_the_sums_over_prompts(family, tmp_path):
    group, bad, good = computed(family, tmp_path)

    def difference(site, layer=None):
        own = [of_set[site][:, 0] if layer is None else of_set[site][:, 0, layer] for of_set in (bad, good)]
        first, second = (one.astype(np.float64).mean(axis=0) for one in own)
        return first - second

    final = difference(Site.RESID_FINAL)
    length = np.linalg.norm(final)
    assert group["final_difference"] == pytest.approx(length, rel=1e-9)
    assert group["embedding_share"] == pytest.approx(difference(Site.RESID_PRE, 0) @ final / length**2, abs=1e-9)
    for layer in range(LAYERS):
        mlp = difference(Site.MLP_OUT, layer) @ final / length**2
        assert group["mlp_share"][layer] == pytest.approx(mlp, abs=2e-6)
        attention = difference(Site.ATTN_OUT, layer)
        assert group["head_share"][layer].sum() == pytest.approx(attention @ final / length**2, abs=2e-6)
        behind = difference(Site.RESID_MID, layer) if Site.RESID_MID in bad else difference(Site.RESID_POST, layer)
        along = attention @ behind / np.linalg.norm(behind)
        assert group["attention_difference"][layer] == pytest.approx(along, abs=1e-5)
        assert group["head_difference"][layer].sum() == pytest.approx(along, abs=1e-5)
    whole = group["head_share"].sum() + group["mlp_share"].sum() + group["embedding_share"]
    assert whole == pytest.approx(1, abs=1e-5)
    if family != "gptj":  # attention's output was captured, or follows from the stream
        assert group["decomposition_error"] < 1e-5
    p_family = null_of(group["head_share_null"], "p_family")
    assert ((p_family > 0) & (p_family <= 1)).all()
    assert group["n_used"].tolist() == [12, 12]
    for index, name in enumerate(("head_share", "mlp_share")):
        total, null = group["total"][index], group["total_null"][index]
        assert total == pytest.approx(group[name].sum(), abs=1e-12)
        assert null_of(null, "mean") == pytest.approx(null_of(group[f"{name}_null"], "mean").sum(), abs=1e-9)
        assert 0 < null_of(null, "p") <= 1


def test_post_norm_models_have_no_contributions(tmp_path):
    group, *_ = computed("bert", tmp_path)
    assert np.isnan(group["head_share"]).all()
    assert np.isnan(group["head_difference"]).all()
    assert np.isnan(group["final_difference"])
    assert group["n_used"][0] == 0


def test_a_head_that_makes_the_whole_difference_has_the_whole_share(tmp_path):
    """One head gets a constant in one set; with permuted labels other parts write along the difference too."""
    bad, weights = captured("llama", tmp_path / "model", 0)
    good, _ = captured("llama", tmp_path / "other", 0)
    circuits = read_circuits(weights, 2)
    added = np.zeros_like(bad[Site.HEAD_OUT][0, 0, 2])
    added[1] = 3
    step = (circuits.written[1].astype(np.float64) @ added[1]).astype(np.float32)
    bad[Site.HEAD_OUT][:, 0, 2] += added
    for site, layers in ((Site.RESID_MID, slice(2, None)), (Site.RESID_PRE, slice(3, None))):
        bad[site][:, 0, layers] += step
    bad[Site.RESID_FINAL][:, 0] += step
    by_set = {"bad": bad, "good": good}
    arrays = {name: {site: of_set[site] for site in SITES} for name, of_set in by_set.items()}
    heads = {"n_heads": 4, "d_head": weights.dimensions.d_head}
    model = record_of(arrays, 4).model.model_copy(update=heads)
    final = {name: of_set[Site.RESID_FINAL] for name, of_set in by_set.items()}
    run = store_run(tmp_path / "store", arrays, contrasts=CONTRASTS, final=final, model=model)
    group = {
        name: values[0, 0]
        for name, values in contributions.compute(context_of(run, CONTRASTS, weights=weights)).arrays.items()
    }
    assert group["head_share"][2, 1] == pytest.approx(1, abs=1e-5)
    assert null_of(group["head_share_null"], "mean")[2, 1] < 0.8
    assert null_of(group["head_share_null"], "z")[2, 1] > 0
    others = np.delete(group["head_share"].ravel(), 2 * 4 + 1)
    np.testing.assert_allclose(others, 0, atol=1e-5)
    np.testing.assert_allclose(group["mlp_share"], 0, atol=1e-5)
    expected = step @ step / np.linalg.norm(step)
    assert group["head_difference"][2, 1] == pytest.approx(expected, rel=1e-5)
