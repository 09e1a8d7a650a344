"""Surveys of mixtures of experts: which experts the prompts use, from the capture to the report."""

import functools
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.damages import assert_same_bits, flip, opened, repair_again, settings, store_of, truncate
from support.nightly import at_night
from support.sentences import assert_says
from support.serving import client_of
from support.tiny_configs import CONFIGS
from support.tiny_survey import save_model, spec_of
from transformers import AutoModelForCausalLM

from theodolite import run_reader
from theodolite.errors import SpecError
from theodolite.groups.routing.sections import sections
from theodolite.query.verification import verify
from theodolite.store.activations import read_experts
from theodolite.store.commits import read_commit
from theodolite.store.manifest import finished_groups
from theodolite.store.prompts import read_tokens
from theodolite.store.result_reader import read_group
from theodolite_jobs.models.routers import experts_of
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")

SETS = ("harmful", "harmless")


def surveyed(folder, family, **changes):
    """Return the folder of a run with curves and the experts that prompts use."""
    model = save_model(folder / "model", config=CONFIGS[family])
    spec = spec_of(model, analyses=changes.pop("analyses", ["curves", "routing"]), **changes)
    return Path(survey(spec, Path(), settings(folder / "store"), Console()).url)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """Survey a family at its first use, and return the folder of its run."""
    return functools.cache(lambda family: surveyed(tmp_path_factory.mktemp(family), family))


@pytest.fixture
def whole(run_of):
    return run_of("deepseek_v3")


@pytest.fixture
def damaged(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "store/runs" / whole.name))


@torch.inference_mode()
def shares_by_hand(folder, tokens, layers):
    """Return the share of the prompts whose last token uses each expert, (layer, expert), from plain unpadded runs.

    The experts are the last one of the outputs of the model's own routers.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    chosen = {layer: [] for layer in layers}
    for layer in layers:
        (router,) = [module for module in model.model.layers[layer].mlp.modules() if "Router" in type(module).__name__]
        router.register_forward_hook(lambda _, __, output, layer=layer: chosen[layer].append(output[-1][-1]))
    for ids in tokens:
        model(torch.tensor([ids]))
    n_experts = experts_of(model.config).n_experts
    return np.stack(
        [np.mean([np.isin(np.arange(n_experts), one) for one in chosen[layer]], axis=0) for layer in layers]
    )


@pytest.mark.parametrize("family", ["deepseek_v3", *at_night(["mixtral", "qwen3_moe", "gpt_oss"])])
def test_shares_are_those_of_plain_unpadded_runs(family, run_of):
    whole = run_of(family)
    run, layers = opened(whole), experts_of(CONFIGS[family]).layers
    routing = read_group(run, "routing").sel(position=-1, estimate="value")
    model = whole.parents[2] / "model"
    for name in SETS:
        expected = shares_by_hand(model, read_tokens(run, name), layers)
        np.testing.assert_allclose(routing["expert_share"].sel(set=name, layer=list(layers)), expected)
        assert int(routing["n_samples"].sel(set=name)) == 10
    without = [layer for layer in range(5) if layer not in layers]
    assert np.isnan(routing["expert_share"].sel(layer=without)).all()
    difference = routing["expert_share"].sel(set="harmful") - routing["expert_share"].sel(set="harmless")
    np.testing.assert_allclose(routing["expert_difference"].sel(contrast="refusal"), difference, atol=1e-12)


def test_report_page_and_service_show_the_experts(whole):
    assert "routing" in (whole / "report.html").read_text(encoding="utf-8")  # a report without figures names the groups
    run, store = opened(whole), store_of(whole)
    stored = read_group(run, "routing")["expert_difference"].sel(contrast="refusal", layer=3).values
    read = run_reader.open_run(str(store), run.id).group("routing", "expert_difference", contrast="refusal", layer=3)
    np.testing.assert_array_equal(read["expert_difference"].values.ravel(), stored.ravel())
    assert "routing" in client_of(store).get(f"/v1/runs/{run.id}/sections").json()["items"]
    section = sections(run)[1]
    assert "10 harmful and 10 harmless prompts" in section.title
    assert_says(section.notes, "layers 0, 1 have no experts")
    for one in sections(run):
        for figure in [*one.figures, *one.maps]:
            figure.draw()
        assert not any("nan" in fact for fact in one.facts)


@pytest.mark.parametrize(
    ("key", "damage"),
    [
        ("activations.zarr/harmful/experts/c/1/0/0/0", flip),
        ("activations.zarr/harmful/choice/c/0", flip),
        *at_night(
            [
                ("activations.zarr/harmless/experts/c/3/0/0/0", truncate),
                ("activations.zarr/harmful/experts/zarr.json", Path.unlink),
                ("shards/harmful/00001.json", Path.unlink),
                ("results.zarr/routing/expert_share/c/0/0/0/0/0", flip),
            ]
        ),
    ],
)
def test_damage_is_named_and_repaired_to_the_bit(whole, damaged, key, damage):
    damage(damaged / key)
    assert list(verify(opened(damaged))) != []
    assert repair_again(damaged) == []
    assert_same_bits(damaged, whole)


@pytest.mark.nightly
def test_only_stored_prompts_have_experts(tmp_path):
    run = opened(surveyed(tmp_path, "mixtral", capture={"shard_prompts": 3, "batch_tokens": 200, "keep": 6}))
    assert (read_group(run, "routing")["n_samples"] == 6).all()
    assert read_experts(run, read_commit(run, "harmful", 1)).shape == (3, 1, 5, 2)
    assert set(read_commit(run, "harmful", 2).checksums) == {"reduced"}
    assert list(verify(run)) == []


@pytest.mark.nightly
def test_experts_of_layers_that_are_not_captured_are_not_recorded(tmp_path):
    capture = {"layers": [0, 1], "final": False, "shard_prompts": 3, "batch_tokens": 200}
    run = opened(
        surveyed(tmp_path, "deepseek_v3", analyses=None, capture=capture)
    )  # its first two layers have no experts
    assert "routing" not in finished_groups(run)
    assert run.record.sets["harmful"].n_choices == 0


@pytest.mark.nightly
def test_a_model_without_experts_has_no_routing(tiny_folder, tmp_path):
    run = opened(Path(survey(spec_of(tiny_folder, analyses=None), Path(), settings(tmp_path), Console()).url))
    assert "routing" not in finished_groups(run)
    assert not (Path(run.url) / "activations.zarr/harmful/experts").exists()
    assert {facts.n_experts for facts in run.record.sets.values()} == {0}


def test_routing_of_a_model_without_experts_is_refused(tiny_folder, tmp_path):
    with pytest.raises(SpecError, match=r"^analyses: 'routing' needs the experts that tokens use, and none are record"):
        survey(spec_of(tiny_folder, analyses=["routing"]), Path(), settings(tmp_path), Console())
