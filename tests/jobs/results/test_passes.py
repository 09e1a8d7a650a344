import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from support.analysing import analyse
from support.stored import store_run

from theodolite.errors import ResultsNotFoundError, RunDamagedError, StoreError
from theodolite.groups import GROUPS
from theodolite.query.runs import describe, summaries, verify
from theodolite.store.manifest import finished_groups
from theodolite.store.objects import delete, open_location
from theodolite.store.result_reader import damaged_groups, read_contrasts, read_finished_table, read_group
from theodolite.store.result_writer import drop_groups
from theodolite.store.tables import read_table
from theodolite_jobs.report.page import render_report

SITES = ("resid_pre", "resid_mid")
PAIRED = {"refusal": {"positive": "bad", "negative": "good", "paired": True}}
UNPAIRED = {"subject": {"positive": "bad", "negative": "words", "paired": False}}


def draw(n, positions=2, seed=0, shift=1.0):
    rng = np.random.default_rng(seed)
    return {site: (rng.normal(size=(n, positions, 3, 16)) + shift).astype(np.float32) for site in SITES}


def silent(*_):
    pass


def crash(*_, **__):
    raise KeyboardInterrupt


def analysed(folder, arrays, contrasts, **record):
    run = store_run(folder, arrays, contrasts=contrasts, **record)
    analyse(run, run.record.spec.resolved_contrasts(), None, silent)
    return run


def paired_reference(p, q):
    """Plain and debiased cosine of (sample, d_model) pairs, written out."""
    p, q = p.astype(np.float64), q.astype(np.float64)
    n, a, b = len(p), p.mean(axis=0), q.mean(axis=0)
    noise = ((p - a) * (q - b)).sum() / (n - 1) / n
    big_a, big_b = (m @ m - x.var(axis=0, ddof=1).sum() / n for m, x in ((a, p), (b, q)))
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b), (a @ b - noise) / np.sqrt(big_a * big_b)


def sphere(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True) * np.sqrt(x.shape[-1])


@pytest.mark.parametrize("shard_prompts", [1, 4, 7, 100])
def test_results_equal_numpy_for_any_chunking(tmp_path, shard_prompts):
    arrays = {"bad": draw(11), "good": draw(11, seed=1), "words": draw(6, seed=2)}
    run = analysed(tmp_path, arrays, {**PAIRED, **UNPAIRED}, shard_prompts=shard_prompts)
    moments, curves, directions = (read_group(run, name) for name in ("moments", "curves", "directions"))
    for name, of_set in arrays.items():
        for site, values in of_set.items():
            exact = values.astype(np.float64)
            at = {"set": name, "site": site}
            np.testing.assert_allclose(moments["mean"].sel(at), exact.mean(axis=0), rtol=1e-12)
            variance = exact.var(axis=0, ddof=1)
            np.testing.assert_allclose(moments["m2"].sel(at) / (len(exact) - 1), variance, rtol=1e-10)
            np.testing.assert_array_equal(moments["minimum"].sel(at), exact.min(axis=0))
            np.testing.assert_array_equal(moments["maximum"].sel(at), exact.max(axis=0))
            norms = np.linalg.norm(exact, axis=-1)
            np.testing.assert_allclose(moments["norm_mean"].sel(at), norms.mean(axis=0), rtol=1e-12)
            np.testing.assert_allclose(moments["norm_std"].sel(at), norms.std(axis=0, ddof=1), rtol=1e-10)
            length = np.linalg.norm((exact / norms[..., None]).mean(axis=0), axis=-1)
            np.testing.assert_allclose(moments["unit_mean_length"].sel(at), length, rtol=1e-12)
            for prefix, scaled in (("", exact), ("on_sphere_", sphere(exact))):
                variance = scaled.var(axis=0, ddof=1)
                np.testing.assert_allclose(curves[f"{prefix}variance_mean"].sel(at), variance.mean(-1), rtol=1e-10)
                np.testing.assert_allclose(curves[f"{prefix}variance_max"].sel(at), variance.max(-1), rtol=1e-10)
                np.testing.assert_array_equal(curves[f"{prefix}variance_max_feature"].sel(at), variance.argmax(-1))
    for index in np.ndindex(2, 2, 3):
        site, position, layer = SITES[index[0]], index[1], index[2]
        p, q = (arrays[name][site][:, position, layer].astype(np.float64) for name in ("bad", "good"))
        at = {"contrast": "refusal", "site": site, "layer": layer, "position": position - 2}
        for prefix, pair in (("", (p, q)), ("on_sphere_", (sphere(p), sphere(q)))):
            plain, debiased = paired_reference(*pair)
            np.testing.assert_allclose(curves[f"{prefix}cosine_of_means"].sel(at), plain, rtol=1e-12)
            np.testing.assert_allclose(curves[f"{prefix}cosine_of_means_debiased"].sel(at), debiased, rtol=1e-10)
        difference = p.mean(axis=0) - q.mean(axis=0)
        np.testing.assert_allclose(curves["difference_norm"].sel(at), np.linalg.norm(difference), rtol=1e-12)
        unit = difference / np.linalg.norm(difference)
        np.testing.assert_allclose(directions["direction"].sel(at), unit, rtol=1e-10)
    assert curves["n_positive"].sel(position=-1).values.tolist() == [11, 11]
    assert curves["n_negative"].sel(position=-1).values.tolist() == [11, 6]
    np.testing.assert_allclose(np.diagonal(directions["direction_cosine"], axis1=3, axis2=4), 1.0, rtol=1e-12)


def test_a_quarantined_prompt_is_left_out_and_takes_its_partner_with_it(tmp_path):
    arrays = {"bad": draw(9), "good": draw(9, seed=1), "words": draw(9, seed=2)}
    for site in SITES:
        arrays["bad"][site][5] = np.nan
    contrasts = {**PAIRED, **UNPAIRED}
    run = analysed(tmp_path, arrays, contrasts, quarantined={"bad": {5: "not finite"}})
    moments, curves = read_group(run, "moments"), read_group(run, "curves")
    assert moments["count"].sel(position=-1).values.tolist() == [8, 9, 9]
    assert curves["n_positive"].sel(position=-1).values.tolist() == [8, 8]
    assert curves["n_negative"].sel(position=-1).values.tolist() == [8, 9]
    keep = np.arange(9) != 5
    p, q = (arrays[name]["resid_mid"][keep, 1, 2] for name in ("bad", "good"))
    at = {"contrast": "refusal", "site": "resid_mid", "position": -1, "layer": 2}
    np.testing.assert_allclose(curves["cosine_of_means_debiased"].sel(at), paired_reference(p, q)[1], rtol=1e-10)
    good = arrays["good"]["resid_mid"].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(moments["mean"].sel(set="good", site="resid_mid"), good, rtol=1e-12)
    assert describe(run)["sets"]["bad"]["quarantined"] == 1


def test_a_position_that_one_set_lacks_is_nan_there_and_absent_from_the_contrast(tmp_path):
    arrays = {"bad": draw(5, positions=2), "good": draw(5, positions=1, seed=1)}
    run = analysed(tmp_path, arrays, PAIRED)
    moments, curves = read_group(run, "moments"), read_group(run, "curves")
    assert moments["position"].values.tolist() == [-2, -1]
    assert moments["count"].sel(set="good").values.tolist() == [0, 5]
    assert np.isnan(moments["mean"].sel(set="good", position=-2)).all()
    assert np.isnan(curves["cosine_of_means"].sel(position=-2)).all()
    assert np.isfinite(curves["cosine_of_means"].sel(position=-1)).all()


def test_sets_that_keep_every_token_have_no_moments_and_without_contrasts_curves_are_of_sets(tmp_path):
    arrays = {"bad": draw(5, positions=1), "all": draw(5, positions=3)}
    run = store_run(tmp_path, arrays)
    prompts = {**run.record.spec.prompts, "all": run.record.spec.prompts["all"].model_copy(update={"positions": "all"})}
    spec = run.record.spec.model_copy(update={"prompts": prompts})
    run = type(run)(run.store, run.record.model_copy(update={"spec": spec}))
    assert analyse(run, {}, None, silent) == ["moments", "curves", "directions"]
    assert read_group(run, "moments")["set"].values.tolist() == ["bad"]
    curves = read_group(run, "curves")
    assert curves["cosine_of_means"].shape == (0, 2, 1, 3)
    assert np.isfinite(curves["variance_mean"]).all()
    assert "no contrast" in render_report(run)


def test_only_missing_or_outdated_groups_are_computed(tmp_path, monkeypatch):
    run = analysed(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, PAIRED)
    assert analyse(run, PAIRED, None, silent) == []
    other = {"other": {**PAIRED["refusal"], "paired": False}}
    assert analyse(run, other, None, silent) == ["curves", "directions"]
    newer = replace(GROUPS["moments"], version=GROUPS["moments"].version + 1)
    monkeypatch.setitem(GROUPS, "moments", newer)
    assert analyse(run, other, None, silent) == ["moments"]
    assert set(finished_groups(run)) == {"moments", "curves", "directions"}


def test_asking_for_one_more_contrast_loses_none(tmp_path):
    run = analysed(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, PAIRED)
    analyse(run, {"other": {**PAIRED["refusal"], "paired": False}}, None, silent)
    assert read_group(run, "curves")["contrast"].values.tolist() == ["refusal", "other"]
    assert list(read_contrasts(run, finished_groups(run))) == ["refusal", "other"]
    assert analyse(run, PAIRED, None, silent) == []
    assert summaries(str(tmp_path))[0]["contrasts"] == ["refusal", "other"]
    assert set(read_table(run.location, "tables/curves.parquet")["contrast"]) == {"", "refusal", "other"}


def test_a_shard_that_was_captured_again_outdates_the_results(tmp_path):
    run = analysed(tmp_path, {"bad": draw(9), "good": draw(9, seed=1)}, PAIRED)
    record = tmp_path / "runs/tiny-0/shards/bad/00001.json"
    record.write_text(record.read_text().replace('"quarantined":{}', '"quarantined":{"5":"why"}'))
    assert analyse(run, PAIRED, None, silent) == ["moments", "curves", "directions"]
    assert read_group(run, "moments")["count"].sel(set="bad", position=-1).item() == 8


def test_a_crash_while_results_are_written_leaves_no_group_that_looks_whole(tmp_path, monkeypatch):
    run = store_run(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, contrasts=PAIRED)
    with monkeypatch.context() as patch:
        patch.setattr("theodolite.store.result_writer.consolidate", crash)
        with pytest.raises(KeyboardInterrupt):
            analyse(run, run.record.spec.resolved_contrasts(), None, silent)
    assert finished_groups(run) == {}
    with pytest.raises(ResultsNotFoundError, match="no finished results 'curves'"):
        read_group(run, "curves")
    assert analyse(run, run.record.spec.resolved_contrasts(), None, silent) == ["moments", "curves", "directions"]
    assert list(verify(run)) == []


def test_a_group_counts_only_once_everything_of_it_is_written(tmp_path, monkeypatch):
    run = store_run(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, contrasts=PAIRED)
    with monkeypatch.context() as patch:
        patch.setattr("theodolite.store.result_writer.consolidate", crash)
        with pytest.raises(KeyboardInterrupt):
            analyse(run, PAIRED, None, silent)
    assert finished_groups(run) == {}


def test_a_number_that_is_not_finite_is_named_and_never_averaged(tmp_path):
    arrays = {"bad": draw(9), "good": draw(9, seed=1)}
    arrays["good"]["resid_mid"][6, 0, 1, 3] = np.inf
    run = store_run(tmp_path, arrays, contrasts=PAIRED)
    with pytest.raises(RunDamagedError, match=r"tiny-0: shard good/00001, resid_mid: .* layer 1 is not finite"):
        analyse(run, run.record.spec.resolved_contrasts(), None, silent)
    assert finished_groups(run) == {}


def test_a_missing_shard_is_named(tmp_path):
    run = store_run(tmp_path, {"bad": draw(9), "good": draw(9, seed=1)}, contrasts=PAIRED)
    delete(run.location, ["shards/good/00002.json"])
    with pytest.raises(StoreError, match=r"1 of 3 shards of good .* good/00002"):
        analyse(run, run.record.spec.resolved_contrasts(), None, silent)


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same_bits_as_threads(tmp_path):
    from distributed import LocalCluster

    arrays = {"bad": draw(11), "good": draw(11, seed=1)}
    here = analysed(tmp_path / "threads", arrays, PAIRED)
    there = store_run(tmp_path / "cluster", arrays, contrasts=PAIRED)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        analyse(there, PAIRED, cluster.scheduler_address, silent)
    for name in ("moments", "curves", "directions"):
        xr.testing.assert_identical(read_group(here, name), read_group(there, name))


def test_results_open_as_one_tree_with_units_and_sentences(tmp_path):
    run = analysed(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, PAIRED)
    with xr.open_datatree(f"{run.url}/results.zarr", engine="zarr") as tree:
        assert set(tree.children) == {"moments", "curves", "directions"}
        for group in tree.children.values():
            assert {"digest", "version"} <= set(group.attrs)
            for variable in group.to_dataset().data_vars.values():
                assert variable.attrs["units"]
                assert variable.attrs["description"]
        assert tree["curves"]["variance_max_feature"].dtype == np.int64


def test_the_table_holds_the_same_numbers_as_the_curves(tmp_path):
    run = analysed(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, PAIRED)
    table, curves = read_table(run.location, "tables/curves.parquet"), read_group(run, "curves")
    row = table[
        (table["statistic"] == "cosine_of_means_debiased")
        & (table["contrast"] == "refusal")
        & (table["site"] == "resid_mid")
        & (table["layer"] == 2)
        & (table["position"] == -1)
    ]
    at = {"contrast": "refusal", "site": "resid_mid", "layer": 2, "position": -1}
    assert row["value"].item() == curves["cosine_of_means_debiased"].sel(at).item()
    assert row["depth"].item() == 5


def test_one_sample_gives_no_variances_and_no_crash(tmp_path):
    run = analysed(tmp_path, {"bad": draw(1), "good": draw(1, seed=1)}, PAIRED)
    curves = read_group(run, "curves")
    assert np.isnan(curves["variance_mean"]).all()
    assert np.isnan(curves["cosine_of_means_low"]).all()
    assert np.isfinite(curves["cosine_of_means"]).all()
    assert (curves["variance_max_feature"] == -1).all()
    assert "not resolved at this n" in render_report(run)


@pytest.mark.parametrize(
    "key",
    [
        "activations.zarr/bad/resid_mid/c/1/0/0/0",
        "activations.zarr/bad/resid_final/c/1/0/0",
        "activations.zarr/bad/position/c/0",
        "activations.zarr/good/resid_pre/zarr.json",
        "results.zarr/curves/cosine_of_means_debiased/c/0/0/0/0",
        "results.zarr/moments/mean/zarr.json",
        "tables/curves.parquet",
        "prompts/good.parquet",
        "shards/good/00001.json",
        "COMPLETE",
    ],
)
def test_verify_names_what_was_flipped_or_lost(tmp_path, key):
    run = analysed(tmp_path, {"bad": draw(9), "good": draw(9, seed=1)}, PAIRED)
    assert list(verify(run)) == []
    file = tmp_path / "runs/tiny-0" / key
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x80
    file.write_bytes(content)
    flipped = list(verify(run))
    file.unlink()
    lost = list(verify(run))
    shard = "bad/00001" if "/c/1/" in key else "good/00001"
    name = "results: none are finished" if key == "COMPLETE" else shard if "shards" in key or "/c/1/" in key else key
    assert len(flipped) == len(lost) == 1
    assert name in lost[0]
    assert (name if key != "COMPLETE" else "COMPLETE") in flipped[0]


def test_a_flipped_byte_is_refused_and_never_averaged(tmp_path):
    run = store_run(tmp_path, {"bad": draw(9), "good": draw(9, seed=1)}, contrasts=PAIRED)
    shard = tmp_path / "runs/tiny-0/activations.zarr/good/resid_mid/c/1/0/0/0"
    content = bytearray(shard.read_bytes())
    content[20] ^= 1
    shard.write_bytes(content)
    with pytest.raises(RunDamagedError, match="shard good/00001, resid_mid: its bytes"):
        analyse(run, PAIRED, None, silent)


def test_a_truncated_result_is_refused_in_one_sentence(tmp_path):
    run = analysed(tmp_path, {"bad": draw(9), "good": draw(9, seed=1)}, PAIRED)
    chunk = tmp_path / "runs/tiny-0/results.zarr/curves/variance_mean/c/0/0/0/0"
    chunk.write_bytes(chunk.read_bytes()[:9])
    with pytest.raises(RunDamagedError, match="its bytes are not those that were written; `theodolite analyse tiny-0`"):
        read_group(run, "curves")


def test_the_list_of_runs_hides_none_for_another_that_is_broken(tmp_path):
    run = analysed(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, PAIRED)
    (tmp_path / "runs/only-begun/prompts").mkdir(parents=True)
    (tmp_path / "runs/only-begun/prompts/x").write_text("")
    for name, content in (("newer", '{"format": 99}'), ("broken", "{")):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "run.json").write_text(content)
    states = {item["run_id"]: item["state"] for item in summaries(str(tmp_path))}
    assert states == {"tiny-0": "complete", "newer": "newer", "broken": "damaged"}
    delete(open_location(run.url), ["COMPLETE"])
    assert next(item["state"] for item in summaries(str(tmp_path))) == "captured"


def test_results_that_are_gone_do_not_hide_the_run(tmp_path):
    run = analysed(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, PAIRED)
    shutil.rmtree(tmp_path / "runs/tiny-0/results.zarr")
    with pytest.raises(RunDamagedError, match="is missing; `theodolite analyse tiny-0`"):
        describe(run)
    assert summaries(str(tmp_path))[0]["state"] == "damaged"
    drop_groups(run, damaged_groups(run))
    assert analyse(run, PAIRED, None, silent) == ["moments", "curves", "directions"]


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [flip, Path.unlink])
@pytest.mark.parametrize(
    ("place", "group"),
    [
        ("results.zarr/separation/auroc/c/0/0/0/0", "separation"),
        ("results.zarr/moments/zarr.json", "moments"),
        ("tables/growth.parquet", "travel"),
        ("tables/curves.parquet", "curves"),
    ],
)
def test_what_changed_or_went_is_refused_and_computed_again(tmp_path, harm, place, group):
    run = store_run(tmp_path, {"bad": draw(9), "good": draw(9, seed=1)}, contrasts=PAIRED)
    asked = frozenset({"separation", "travel"})
    analyse(run, PAIRED, None, silent, asked)
    before = {name: read_group(run, name) for name in finished_groups(run)}
    assert damaged_groups(run) == []
    harm(tmp_path / "runs/tiny-0" / place)
    assert damaged_groups(run) == [group]
    with pytest.raises(RunDamagedError, match="`theodolite analyse tiny-0` computes it again"):
        read_finished_table(run, Path(place).stem) if "tables" in place else read_group(run, group)
    drop_groups(run, damaged_groups(run))
    assert group in analyse(run, PAIRED, None, silent, asked)
    for name, values in before.items():
        xr.testing.assert_identical(read_group(run, name), values)
    assert list(verify(run)) == []


def test_missing_results_would_read_as_nan_or_minus_one(tmp_path):
    run = analysed(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, PAIRED)
    stored = zarr.open_group(f"{run.url}/results.zarr", mode="r")
    for group in ("moments", "curves", "directions"):
        for name, variable in read_group(run, group).data_vars.items():
            fill = stored[f"{group}/{name}"].fill_value
            assert np.isnan(fill) if variable.dtype == np.float64 else fill == -1
    assert read_group(run, "moments")["count"].dtype == np.int64


def test_a_report_without_results_is_refused(tmp_path):
    run = store_run(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, contrasts=PAIRED)
    with pytest.raises(ResultsNotFoundError, match="no finished results"):
        render_report(run)


def test_the_report_escapes_what_users_wrote(tmp_path):
    arrays = {"bad": draw(5), "good": draw(5, seed=1)}
    run = store_run(tmp_path, arrays, contrasts=PAIRED)
    spec = run.record.spec.model_copy(update={"name": "</script><script>alert(1)</script>"})
    run = type(run)(run.store, run.record.model_copy(update={"spec": spec}))
    analyse(run, run.record.spec.resolved_contrasts(), None, silent)
    assert "<script>alert(1)" not in render_report(run)


def test_the_report_doubts_an_interval_above_one(tmp_path):
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(8, 1, 3, 16)) * 2
    arrays = {
        name: {site: (shared + 0.05 * rng.normal(size=shared.shape) + 1).astype(np.float32) for site in SITES}
        for name in ("bad", "good")
    }
    unpaired = {"refusal": {**PAIRED["refusal"], "paired": False}}
    assert "set paired: true" in render_report(analysed(tmp_path / "unpaired", arrays, unpaired))
    assert "set paired: true" not in render_report(analysed(tmp_path / "paired", arrays, PAIRED))
