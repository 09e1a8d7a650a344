"""Surveys of hybrids with sites that only some blocks have: statistics there, NaN and a reason elsewhere."""

import json
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from support.damages import REWRITTEN, assert_same_bits, flip, repair_again
from support.each import each
from support.nightly import at_night
from support.sentences import assert_says
from support.serving import client_of, numbers
from support.tiny_configs import CONFIGS
from support.tiny_survey import save_model, spec_of
from transformers import AutoModelForCausalLM

from theodolite import shard_bounds
from theodolite.errors import SiteNotFoundError, SpecError
from theodolite.groups import GROUPS, SHOWN
from theodolite.groups.schema import INTERVAL
from theodolite.groups.separation.record import SCALES, SCORES
from theodolite.query.curves import name_at
from theodolite.query.group_selection import select_directions
from theodolite.query.prompts import read_scored_prompts
from theodolite.query.runs import describe
from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.store.manifest import finished_groups
from theodolite.store.objects import keys
from theodolite.store.prompts import read_tokens
from theodolite.store.result_reader import read_finished_table, read_group
from theodolite_jobs.models.reference import relative_errors
from theodolite_jobs.progress import Console
from theodolite_jobs.report.page import render_report
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")

ALONE = "nemotron_h"  # its blocks are attention, a state space or an MLP
ANALYSES = ["curves", "separation", "permutations", "gram", "sphere", "travel", "basis", "heads", "contributions"]
ATTENTION, WITH_MLP = [0, 4], [2, 3]  # the layers of the tiny configurations
POSITIONS = [-2, -1]


def layers_with(family, site):
    if site in ("attn_out", "head_out"):
        return ATTENTION
    return WITH_MLP if (family, site) == (ALONE, "mlp_out") else [0, 1, 2, 3, 4]


def surveyed(model, store, sites, replicas=1, **changes):
    capture = {"sites": sites, "shard_prompts": 3, "batch_tokens": 200, "positions": POSITIONS}
    capture |= changes.pop("capture", {})
    spec = spec_of(model, **{"capture": capture, "analyses": ANALYSES, **changes})
    return survey(spec, Path(), Settings(store=str(store), replicas=replicas, gpus_per_replica=0), Console())


@pytest.fixture(scope="module", params=[ALONE, *at_night(["qwen3_next", "jamba"])])
def family(request):
    return request.param


@pytest.fixture(scope="module")
def model(family, tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("hybrid") / "model", config=CONFIGS[family])


@pytest.fixture(scope="module")
def shared_sites(family):
    """The sites that all blocks have, without resid_post."""
    return ["resid_pre"] if family == ALONE else ["resid_pre", "resid_mid", "mlp_out"]


@pytest.fixture(scope="module")
def run(model, family, shared_sites, tmp_path_factory):
    partial = ["attn_out", "head_out", *(["mlp_out"] if family == ALONE else [])]
    return surveyed(model, tmp_path_factory.mktemp("store"), [*shared_sites, *partial], replicas=2)


@torch.inference_mode()
def run_alone(model, tokens):
    """Return the input of W_O and the output of attention, (sample, position, feature), of the layers with attention.

    Each prompt runs alone, without padding, in the ordinary model with its head.
    """
    module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    found = {(site, layer): [] for site in ("head_out", "attn_out") for layer in ATTENTION}
    for layer in ATTENTION:
        block = module.model.layers[layer]
        attention = block.mixer if hasattr(block, "mixer") else block.self_attn

        def keep(_, args, output, layer=layer):
            found["head_out", layer].append(args[0][0, POSITIONS])
            found["attn_out", layer].append(output[0, POSITIONS])

        attention.o_proj.register_forward_hook(keep)
    for ids in tokens:
        module(torch.tensor([ids]), use_cache=False)
    return {place: torch.stack(rows).numpy() for place, rows in found.items()}


def test_stored_vectors_are_those_of_plain_runs_and_missing_elsewhere(run, model):
    for name in ("harmful", "harmless"):
        arrays = xr.open_zarr(f"{run.url}/activations.zarr", group=name, chunks=None)
        for (site, layer), expected in run_alone(model, read_tokens(run, name)).items():
            stored = arrays[site].sel(layer=layer).values.reshape(expected.shape)
            assert relative_errors(stored, expected).max() <= 5e-5, (site, layer)
        for site in ("attn_out", "head_out"):
            assert np.isnan(arrays[site].sel(layer=[1, 2, 3])).all()
        if "mlp_out" in run.record.partial_sites:
            added = arrays["resid_pre"].sel(layer=[3, 4]).values - arrays["resid_pre"].sel(layer=[2, 3]).values
            assert relative_errors(arrays["mlp_out"].sel(layer=[2, 3]).values, added).max() <= 5e-5
            assert np.isnan(arrays["mlp_out"].sel(layer=[0, 1, 4])).all()


def test_no_prompt_is_quarantined_and_nothing_is_damaged(run):
    assert [facts["quarantined"] for facts in describe(run)["sets"].values()] == [0, 0]
    assert list(verify(run)) == []


CORE = {
    "moments": ["mean", "m2", "minimum", "norm_mean"],
    "curves": [
        *("cosine_of_means", "difference_norm", "variance_mean"),
        "cosine_of_means_expected@estimate=value,n_prompts=16",
    ],
    "directions": ["direction", "reliability", "direction_cosine"],
    "separation": [
        *("auroc@estimate=value", "auroc@estimate=band_low", "accuracy@estimate=value", "fisher_ratio@estimate=value"),
    ],
    "permutations": [
        *("tested_null@null=p_family,tested=auroc", "tested_null@null=z,tested=difference_norm"),
        "direction_cosine_null@null=mean",
        "score_auroc@estimate=value,scored_by=norm",
    ],
    "gram": ["participation_ratio", "linear_cka_debiased", "silhouette"],
}
"""Variables, at labels of their axes, that are known wherever there are vectors that differ."""


def parts_of(group, variable, values):
    """Yield the name and the values of a variable at each label of its axes."""
    axes = {axis: labels for axis, labels in GROUPS[group].labels.items() if axis in variable.dims}
    for chosen in product(*axes.values()):
        at = dict(zip(axes, chosen, strict=True))
        yield name_at(variable.name, at), values.sel(at)


@each("group", CORE)
def test_statistics_are_missing_only_at_layers_without_the_site(run, family, group):
    values = read_group(run, group)
    sites = values["site"].values.tolist()
    for variable in GROUPS[group].variables:
        if not {"site", "layer"} <= set(variable.dims):
            continue
        for name, numbers_of in parts_of(group, variable, values[variable.name]):
            is_known = numbers_of.notnull() if numbers_of.dtype.kind == "f" else numbers_of >= 0
            known = is_known.any([dim for dim in numbers_of.dims if dim not in ("site", "layer")])
            for site in sites:
                found = known["layer"].values[known.sel(site=site).values].tolist()
                assert set(found) <= set(layers_with(family, site)), (name, site)
                if name in CORE[group] and site in run.record.partial_sites:
                    assert found == layers_with(family, site), (name, site)


def test_statistics_equal_those_of_the_stored_vectors(run):
    arrays = {
        name: xr.open_zarr(f"{run.url}/activations.zarr", group=name, chunks=None) for name in ("harmful", "harmless")
    }
    curves, separation = (
        read_group(run, group).isel(contrast=0).sel(estimate="value") for group in ("curves", "separation")
    )
    curves = curves.sel(space="raw")
    for layer in ATTENTION:
        at = {"site": "attn_out", "position": -1, "layer": layer}
        p, q = (one["attn_out"].sel(position=-1, layer=layer).values.astype(float) for one in arrays.values())
        a, b = p.mean(axis=0), q.mean(axis=0)
        cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        assert float(curves["cosine_of_means"].sel(at)) == pytest.approx(cosine, rel=1e-10)
        variances = curves["variance_mean"].sel(at)
        assert variances.sel(set="harmful") == pytest.approx(p.var(axis=0, ddof=1).mean(), rel=1e-10)
        scores = []
        for side in (p, q):
            own = np.empty(len(side))
            for sample in range(len(side)):
                rest = np.arange(len(p)) % 5 != sample % 5
                direction = p[rest].mean(axis=0) - q[rest].mean(axis=0)
                middle = (p[rest].mean(axis=0) + q[rest].mean(axis=0)) / 2
                own[sample] = (side[sample] - middle) @ direction / np.linalg.norm(direction)
            scores.append(own)
        wins = np.mean(scores[0][:, None] > scores[1])
        assert float(separation["auroc"].sel(at)) == pytest.approx(wins, abs=1e-12)


@pytest.mark.nightly
def test_the_statistics_of_other_sites_do_not_change(run, model, shared_sites, tmp_path):
    plain = surveyed(model, tmp_path, shared_sites, analyses=["curves", "separation", "gram"])
    assert plain.id != run.id
    assert plain.record.partial_sites == {}
    for group in ("moments", "curves", "directions", "separation", "gram"):
        ours, theirs = read_group(run, group), read_group(plain, group)
        if "estimate" in ours.dims:  # a band is over all sites
            ours, theirs = (values.sel(estimate=[*INTERVAL]) for values in (ours, theirs))
        for variable in GROUPS[group].variables:
            # Attention's step is known more exactly from its output.
            if "site" in variable.dims:
                np.testing.assert_allclose(
                    ours[variable.name].sel(site=shared_sites),
                    theirs[variable.name].sel(site=shared_sites),
                    rtol=1e-9,
                    atol=1e-12,
                    err_msg=variable.name,
                )


def test_tables_and_queries_leave_missing_places_out(run):
    for name in (SCORES.name, SCALES.name):
        table = read_finished_table(run, name)
        places = table.loc[table["site"] == "attn_out", "layer"]
        assert set(places) == set(ATTENTION)
        assert table[table["site"] == "attn_out"].notnull().all(axis=None)
    assert select_directions(run, "refusal", "attn_out")["layer"].values.tolist() == ATTENTION
    with pytest.raises(SpecError, match=r"no direction at attn_out of layer 2, .*2 of 5 blocks have attn_out \(layers"):
        select_directions(run, "refusal", "attn_out", [2])
    assert read_scored_prompts(run, "harmful", site="attn_out", layer=4).rows["score"].notnull().all()
    with pytest.raises(SpecError, match=r"layer: .* has no 2 with scores; it has 0, 4"):
        read_scored_prompts(run, "harmful", site="attn_out", layer=2)


def test_the_reason_is_in_the_record_the_notes_and_the_report(run, family):
    reason = "each block is attention, a state space or an MLP alone" if family == ALONE else "in place of attention"
    stored = json.loads((Path(run.url) / "run.json").read_text())["partial_sites"]
    assert {site: one["layers"] for site, one in stored.items()} == {
        site: layers_with(family, site) for site in run.record.partial_sites
    }
    assert all(reason in one["reason"] for one in stored.values())
    note = f"2 of 5 blocks have head_out and attn_out (layers 0, 4) … missing … {reason}"
    assert_says(describe(run)["notes"], note)
    assert "2 of 5 blocks have attn_out (layers 0, 4)" in render_report(run)


@pytest.mark.nightly
def test_the_service_returns_null_and_the_reason(run):
    client = client_of(run.store)
    curves = client.get(f"/v1/runs/{run.id}/curves", params={"statistic": "auroc", "site": "attn_out"}).json()["items"]
    for curve in curves:
        assert np.isfinite(numbers(curve["value"])).tolist() == [True, False, False, False, True]
        assert [curve["value"][layer] for layer in (1, 2, 3)] == [None] * 3
    for group in finished_groups(run):
        if group in SHOWN:
            sections = client.get(f"/v1/runs/{run.id}/sections/{group}")
            assert sections.status_code == 200, group
            for figure in (one for section in sections.json()["items"] for one in section["figures"]):
                assert client.get(f"/v1/runs/{run.id}/figures/{figure['name']}").status_code == 200, figure
    for group in ("curves", "separation", "gram"):
        notes = client.get(f"/v1/runs/{run.id}/sections/{group}").json()["items"][0]["notes"]
        assert any("2 of 5 blocks have attn_out" in note for note in notes), group


def test_contributions_are_those_of_the_heads_that_exist(run, family):
    values = read_group(run, "contributions").isel(contrast=0, position=-1)
    assert float(values["decomposition_error"]) < 1e-5
    for name in ("head_share", "head_share_null", "head_difference", "head_standardised"):
        assert np.isfinite(values[name].sel(layer=ATTENTION)).all(), name
        assert np.isnan(values[name].sel(layer=[1, 2, 3])).all(), name
    shares = values["mlp_share"]
    mlps = layers_with(family, "mlp_out")
    assert shares["layer"].values[np.isfinite(shares)].tolist() == mlps
    arrays = [
        xr.open_zarr(f"{run.url}/activations.zarr", group=name, chunks=None).sel(position=-1)
        for name in ("harmful", "harmless")
    ]
    final = np.subtract(*(one["resid_final"].mean("sample", dtype=float).values for one in arrays))
    expected = np.subtract(*(one["mlp_out"].mean("sample", dtype=float).sel(layer=mlps).values for one in arrays))
    np.testing.assert_allclose(shares.sel(layer=mlps), expected @ final / (final @ final), rtol=1e-3, atol=1e-4)
    notes = client_of(run.store).get(f"/v1/runs/{run.id}/sections/contributions").json()["items"][0]["notes"]
    assert any("mixers other than attention" in note for note in notes)
    assert any("2 of 5 blocks have head_out" in note for note in notes)


@pytest.mark.nightly
def test_one_replica_gives_the_bits_of_two(run, model, tmp_path):
    again = surveyed(model, tmp_path, [str(site) for site in run.record.spec.capture.sites])
    assert again.id == run.id
    ours, theirs = (
        {key: (Path(one.url) / key).read_bytes() for key in keys(one.location) if not key.startswith(REWRITTEN)}
        for one in (again, run)
    )
    assert {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)} == {"run.json"}  # its date


@pytest.mark.parametrize(
    ("key", "damage"),
    [
        ("activations.zarr/harmful/attn_out/c/1/0/0/0", flip),
        *at_night(
            [
                ("activations.zarr/harmless/head_out/c/0/0/0/0/0", Path.unlink),
                ("results.zarr/curves/difference_norm/c/0/0/0/0/0", flip),
                ("run.json", Path.unlink),
            ]
        ),
    ],
    ids=["attn_out", "head_out", "curves", "run.json"],
)
def test_a_damage_is_restored_to_the_bit(run, tmp_path, key, damage):
    damaged = Path(shutil.copytree(run.url, tmp_path / "store/runs" / run.id))
    damage(damaged / key)
    assert repair_again(damaged) == []
    assert_same_bits(damaged, Path(run.url))


@pytest.mark.nightly
def test_reduced_shards_have_the_moments_of_the_layers_with_the_site(run, model, tmp_path, monkeypatch):
    monkeypatch.setattr(shard_bounds, "_LEAST_REDUCED_SHARDS", 1)
    sites = [str(site) for site in run.record.spec.capture.sites]
    kept = surveyed(model, tmp_path, sites, capture={"keep": 6}, analyses=["curves", "travel"])
    assert list(verify(kept)) == []
    for group, names in {"moments": ["mean", "m2", "norm_mean"], "curves": ["cosine_of_means", "norm_of_mean"]}.items():
        ours, theirs = read_group(kept, group), read_group(run, group)
        for name in names:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9, atol=1e-12, err_msg=name)
    assert np.isfinite(read_group(kept, "curves")["cosine_of_means"].sel(site="attn_out", layer=ATTENTION)).all()


def test_a_site_of_other_layers_alone_is_refused(model, tmp_path):
    with pytest.raises(SiteNotFoundError, match=r"none of capture.layers has attn_out.*with attn_out are 0, 4"):
        surveyed(model, tmp_path, ["resid_pre", "attn_out"], capture={"layers": [1, 2, 3]})
    with pytest.raises(SiteNotFoundError, match="this model has no resid_mid_sum"):
        surveyed(model, tmp_path, ["resid_mid_sum"])
