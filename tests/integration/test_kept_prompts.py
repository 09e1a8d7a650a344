"""Surveys that store the activations of the first prompts alone: the moments of all prompts stay the same."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from support.tiny_sizes import GROUPED
from support.tiny_survey import save_model, spec_of
from transformers import LlamaConfig

from theodolite import shard_bounds
from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.store.commits import read_commits
from theodolite.store.objects import keys
from theodolite.store.result_reader import read_group
from theodolite_jobs.progress import Console
from theodolite_jobs.repair.run import repair
from theodolite_jobs.survey import survey

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")

ANALYSES = ["curves", "sphere", "gram", "separation", "travel", "heads"]
N, KEPT = 78, 20


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return Settings(store=str(tmp_path_factory.mktemp("store")), replicas=1, gpus_per_replica=0)


@pytest.fixture(scope="module")
def surveyed(tmp_path_factory, settings):
    """Return a survey of all prompts, or of the first prompts alone."""
    model = save_model(
        tmp_path_factory.mktemp("tiny") / "model", config=LlamaConfig(**GROUPED | {"num_hidden_layers": 2})
    )

    def run(keep=None, limit=N, **changes):
        sets = {
            name: {"source": f"builtin:{name}", "limit": limit, "template": "none", "positions": [-2, -1]}
            for name in ("harmful", "harmless")
        }
        capture = {"shard_prompts": 5, "batch_tokens": 200, "keep": keep}
        spec = spec_of(model, prompts=sets, capture=capture, analyses=ANALYSES, **changes)
        replicas = 1 if keep is None else 2
        return survey(spec, Path(), settings.model_copy(update={"replicas": replicas}), Console())

    return run


@pytest.fixture(scope="module")
def runs(surveyed):
    """Runs that store all activations, the first ones, and the first ones without any other prompt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_bounds, "_LEAST_REDUCED_SHARDS", 5)  # shards of several parts
        kept = surveyed(KEPT)
        assert kept.record.bounds("harmful").reduced_prompts == 10
        assert list(verify(kept)) == []
        yield surveyed(), kept, surveyed(limit=KEPT)


def test_the_activations_of_the_first_prompts_are_stored(runs):
    whole, kept, _ = (xr.open_zarr(f"{run.url}/activations.zarr", group="harmless", chunks=None) for run in runs)
    for name in ("resid_pre", "resid_mid", "resid_final"):
        assert kept[name].sizes["sample"] == KEPT
        np.testing.assert_array_equal(kept[name], whole[name][:KEPT])
    counts = [run["mlp_positive"].sum("shard") for run in (whole, kept)]
    np.testing.assert_array_equal(*counts)


def test_every_prompt_is_in_one_shard(runs):
    kept = runs[1]
    commits = read_commits(kept, "harmful").values()
    assert [(commit.start, commit.stop) for commit in commits] == [
        *((0, 5), (5, 10), (10, 15), (15, 20)),
        *((20, 30), (30, 40), (40, 50), (50, 60), (60, 70), (70, 78)),
    ]
    assert sum(commit.stored_bytes for commit in commits if "reduced" in commit.checksums) > 0
    assert [sorted(commit.checksums) for commit in commits][-1] == ["mlp_positive", "reduced"]


OF_STORED = {
    *("noise_share", "difference_norm_debiased", "split_half_cosine", "reliability"),
    *("n_fitted", "relative_spread_null"),
    *("n_tested", "step_cosine_centred_null"),
}
"""Variables that need pairs, folds or the rows of prompts, which only the stored prompts have."""


@pytest.mark.parametrize("group", ["moments", "directions", "sphere", "travel"])
def test_moments_are_those_of_all_prompts(runs, group):
    whole, kept, _ = (read_group(run, group) for run in runs)
    for name in set(whole) - OF_STORED:
        np.testing.assert_allclose(kept[name], whole[name], rtol=1e-10, atol=1e-10, err_msg=name)


def test_the_standard_gaussian_is_that_of_all_prompts(runs):
    nulls = [read_group(run, "sphere")["relative_spread_null"].sel(null="standard_gaussian") for run in runs[:2]]
    np.testing.assert_allclose(*nulls, rtol=1e-10, atol=1e-10)


def test_the_reliability_with_reduced_shards_follows_from_the_noise_of_all_prompts(runs):
    whole, kept, _ = (read_group(run, "directions") for run in runs)
    share = kept["noise_share"].values
    np.testing.assert_array_equal(kept["reliability"], np.maximum(1 - share, 0))
    assert np.isfinite(share).any()
    assert not np.array_equal(whole["reliability"], np.maximum(1 - whole["noise_share"].values, 0))


@pytest.mark.parametrize("group", ["gram", "separation", "heads"])
def test_statistics_of_single_prompts_are_those_of_the_stored_ones(runs, group):
    _, kept, few = (read_group(run, group) for run in runs)
    for name in few:
        if not name.startswith("orthant") and "contrast" not in few[name].dims:  # these are of all prompts
            np.testing.assert_allclose(kept[name], few[name], rtol=1e-10, atol=1e-10, err_msg=name)


def test_the_curves_are_those_of_all_prompts_with_wider_intervals(runs):
    whole, kept, few = (read_group(run, "curves") for run in runs)
    for name in whole:
        if not name.endswith(("_debiased", "_expected")):  # the noise of pairs follows from the stored ones
            np.testing.assert_allclose(kept[name], whole[name], rtol=1e-10, atol=1e-10, err_msg=name)
    cosines = [run["cosine_of_means_debiased"].sel(space="raw") for run in (whole, kept, few)]
    widths = [cosine.sel(estimate="high") - cosine.sel(estimate="low") for cosine in cosines]
    assert 0.7 < np.nanmedian(widths[1] / widths[0]) < 1.6  # 0 / 0 where both prompts of each pair end alike
    assert np.nanmedian(widths[2] / widths[1]) > 1.2
    shift = np.abs(cosines[1].sel(estimate="value") - cosines[0].sel(estimate="value"))
    assert (shift <= 0.5 * widths[0] + 1e-12).all()


def test_a_damaged_reduced_shard_is_repaired_to_the_bit(runs, settings):
    kept = runs[1]
    file = Path(kept.url) / "reduced/harmless/00007.npz"
    before = {key: (Path(kept.url) / key).read_bytes() for key in keys(kept.location) if "shards/" not in key}
    content = bytearray(before["reduced/harmless/00007.npz"])
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert "reduced" in next(verify(kept))
    assert repair(kept.id, None, Path(), settings, Console()) == []
    after = {key: (Path(kept.url) / key).read_bytes() for key in before}
    changed = {key for key in before if before[key] != after[key]}
    assert changed <= {"COMPLETE", "report.html"}
