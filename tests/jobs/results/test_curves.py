"""Curves and moments equal NumPy on the captured arrays."""

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from support.analysed_runs import PAIRED, SITES, UNPAIRED, analysed, draw, silent
from support.analysing import analyse
from support.each import each
from support.stored import read_table, store_run

from theodolite.bands import simultaneous_quantile
from theodolite.query.runs import describe
from theodolite.store.result_reader import read_group
from theodolite_jobs.report.page import render_report


def paired_reference(p, q):
    """Plain and debiased cosine of (sample, d_model) pairs, written out."""
    p, q = p.astype(np.float64), q.astype(np.float64)
    n, a, b = len(p), p.mean(axis=0), q.mean(axis=0)
    noise = ((p - a) * (q - b)).sum() / (n - 1) / n
    big_a, big_b = (m @ m - x.var(axis=0, ddof=1).sum() / n for m, x in ((a, p), (b, q)))
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b), (a @ b - noise) / np.sqrt(big_a * big_b)


def split_half(p, q):
    """Return the mean cosine between the directions of two folds and of two other folds, written out."""
    fold, cosines = np.arange(len(p)) % 5, []
    for left_out in range(5):
        first, *others = (one for one in range(5) if one != left_out)
        for second in others:
            halves = [np.isin(fold, [first, second]), np.isin(fold, [one for one in others if one != second])]
            d, e = (p[half].mean(axis=0) - q[half].mean(axis=0) for half in halves)
            cosines.append(d @ e / np.linalg.norm(d) / np.linalg.norm(e))
    return np.mean(cosines)


def sphere(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True) * np.sqrt(x.shape[-1])


@each("shard_prompts", [1, 4, 7, 100])
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
            for space, scaled in (("raw", exact), ("sphere", sphere(exact))):
                variance, found = scaled.var(axis=0, ddof=1), curves.sel({**at, "space": space})
                np.testing.assert_allclose(found["variance_mean"], variance.mean(-1), rtol=1e-10)
                np.testing.assert_allclose(found["variance_max"], variance.max(-1), rtol=1e-10)
                np.testing.assert_array_equal(found["variance_max_feature"], variance.argmax(-1))
                share = np.sort(variance)[..., -3:].sum(-1) / variance.sum(-1)
                np.testing.assert_allclose(found["variance_top3_share"], share, rtol=1e-10)
    for index in np.ndindex(2, 2, 3):
        site, position, layer = SITES[index[0]], index[1], index[2]
        p, q = (arrays[name][site][:, position, layer].astype(np.float64) for name in ("bad", "good"))
        at = {"contrast": "refusal", "site": site, "layer": layer, "position": position - 2}
        for space, pair in (("raw", (p, q)), ("sphere", (sphere(p), sphere(q)))):
            plain, debiased = paired_reference(*pair)
            found = curves.sel({**at, "space": space})
            np.testing.assert_allclose(found["cosine_of_means"], plain, rtol=1e-12)
            np.testing.assert_allclose(found["cosine_of_means_debiased"].sel(estimate="value"), debiased, rtol=1e-10)
        difference = p.mean(axis=0) - q.mean(axis=0)
        distance = curves["difference_norm"].sel({**at, "space": "raw"})
        np.testing.assert_allclose(distance, np.linalg.norm(difference), rtol=1e-12)
        unit = difference / np.linalg.norm(difference)
        np.testing.assert_allclose(directions["direction"].sel(at | {"space": "raw"}), unit, rtol=1e-10)
        round_difference = sphere(p).mean(axis=0) - sphere(q).mean(axis=0)
        round_unit = round_difference / np.linalg.norm(round_difference)
        np.testing.assert_allclose(
            directions["direction"].sel(at | {"space": "sphere"}), round_unit, rtol=1e-9, atol=1e-12
        )
        np.testing.assert_allclose(directions["on_sphere_direction_cosine"].sel(at), unit @ round_unit, rtol=1e-9)
        noise = (p - q).var(axis=0, ddof=1).sum() / len(p)  # of pairs
        share = noise / (difference @ difference)
        np.testing.assert_allclose(directions["noise_share"].sel(at), share, rtol=1e-10)
        left = np.sqrt(difference @ difference - noise) if share < 1 else np.nan
        np.testing.assert_allclose(directions["difference_norm_debiased"].sel(at), left, rtol=1e-9)
        np.testing.assert_allclose(directions["split_half_cosine"].sel(at), split_half(p, q), rtol=1e-10, atol=1e-12)
    assert curves["n_used"].sel(position=-1).values.tolist() == [[11, 11], [11, 6]]
    np.testing.assert_allclose(np.diagonal(directions["direction_cosine"], axis1=3, axis2=4), 1.0, rtol=1e-12)


@pytest.mark.parametrize("label", ["refusal", "subject"])
def test_bands_are_the_intervals_with_the_quantile_of_all_sites_and_layers(tmp_path, label):
    arrays = {"bad": draw(11), "good": draw(11, seed=1), "words": draw(6, seed=2)}
    run = analysed(tmp_path, arrays, {**PAIRED, **UNPAIRED}, shard_prompts=4)
    cosine = read_group(run, "curves")["cosine_of_means_debiased"].sel(contrast=label, position=-1, space="raw")
    debiased, _, high, band_low, band_high = cosine.transpose("estimate", ...)
    other, paired = ("good", True) if label == "refusal" else ("words", False)
    terms = []
    for site, layer in np.ndindex(2, 3):
        p, q = (arrays[name][SITES[site]][:, 1, layer].astype(np.float64) for name in ("bad", other))
        a, b, c = p.mean(axis=0), q.mean(axis=0), debiased.values[site, layer]
        big_a, big_b = (m @ m - x.var(axis=0, ddof=1).sum() / len(x) for m, x in ((a, p), (b, q)))
        scale = np.sqrt(big_a * big_b)
        psi_p, psi_q = (p - a) @ (b / scale - c * a / big_a), (q - b) @ (a / scale - c * b / big_b)
        parts = [psi_p + psi_q] if paired else [psi_p, psi_q]
        terms.append(np.concatenate([part / np.sqrt(len(part) * (len(part) - 1)) for part in parts]))
    quantile = simultaneous_quantile(np.stack(terms, axis=1))
    half = (high - debiased) * quantile / 1.959963984540054
    assert quantile > 2.2
    np.testing.assert_allclose(band_low, debiased - half, rtol=1e-7)
    np.testing.assert_allclose(band_high, debiased + half, rtol=1e-7)


def test_the_expected_plain_cosine_has_the_noise_of_other_numbers_of_prompts(tmp_path):
    arrays = {"bad": draw(11), "good": draw(11, seed=1), "words": draw(6, seed=2)}
    curves = read_group(analysed(tmp_path, arrays, {**PAIRED, **UNPAIRED}), "curves")
    expected = curves["cosine_of_means_expected"].sel(site="resid_mid", position=-1, layer=1)
    for contrast, negative, paired in (("refusal", "good", True), ("subject", "words", False)):
        p, q = (arrays[name]["resid_mid"][:, 1, 1].astype(np.float64) for name in ("bad", negative))
        a, b = p.mean(axis=0), q.mean(axis=0)
        noise = ((p - a) * (q - b)).sum() / (len(p) - 1) / len(p) if paired else 0.0
        for size in (16, 256):
            squares = [m @ m + x.var(axis=0, ddof=1).sum() * (1 / size - 1 / len(x)) for m, x in ((a, p), (b, q))]
            found = expected.sel(contrast=contrast, n_prompts=size, estimate="value")
            np.testing.assert_allclose(found, (a @ b - noise) / np.sqrt(np.prod(squares)), rtol=1e-10)
    value, low, high = curves["cosine_of_means_expected"].transpose("estimate", ...)[:3]
    assert (low < value).all()
    assert (value < high).all()


def test_a_quarantined_prompt_and_its_partner_are_left_out(tmp_path):
    arrays = {"bad": draw(9), "good": draw(9, seed=1), "words": draw(9, seed=2)}
    for site in SITES:
        arrays["bad"][site][5] = np.nan
    contrasts = {**PAIRED, **UNPAIRED}
    run = analysed(tmp_path, arrays, contrasts, quarantined={"bad": {5: "not finite"}})
    moments, curves = read_group(run, "moments"), read_group(run, "curves")
    assert moments["count"].sel(position=-1).values.tolist() == [8, 9, 9]
    assert curves["n_used"].sel(position=-1).values.tolist() == [[8, 8], [8, 9]]
    keep = np.arange(9) != 5
    p, q = (arrays[name]["resid_mid"][keep, 1, 2] for name in ("bad", "good"))
    at = {"contrast": "refusal", "site": "resid_mid", "position": -1, "layer": 2, "space": "raw", "estimate": "value"}
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


def test_sets_with_all_positions_have_no_moments_and_no_contrasts_leave_curves_of_sets(tmp_path):
    arrays = {"bad": draw(5, positions=1), "all": draw(5, positions=3)}
    run = store_run(tmp_path, arrays)
    prompts = {**run.record.spec.prompts, "all": run.record.spec.prompts["all"].model_copy(update={"positions": "all"})}
    spec = run.record.spec.model_copy(update={"prompts": prompts})
    run = type(run)(run.store, run.record.model_copy(update={"spec": spec}))
    assert analyse(run, {}, None, silent) == ["moments", "curves", "directions"]
    assert read_group(run, "moments")["set"].values.tolist() == ["bad"]
    curves = read_group(run, "curves")
    assert curves["cosine_of_means"].shape == (0, 2, 1, 3, 2)
    assert np.isfinite(curves["variance_mean"]).all()
    assert "no contrast" in render_report(run)


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


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
def test_the_metadata_of_all_arrays_stand_in_one_object_as_zarr_writes_it(tmp_path):
    run = analysed(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, PAIRED)
    for hierarchy in ("results.zarr", "activations.zarr"):
        file = Path(run.url) / hierarchy / "zarr.json"
        ours = metadata_of(file)
        zarr.consolidate_metadata(str(file.parent))
        assert ours == metadata_of(file)
        assert ours


def metadata_of(file):
    """Return the metadata of each array and group in a consolidated object, without the empty lists of groups."""
    metadata = json.loads(file.read_bytes())["consolidated_metadata"]["metadata"]
    return {path: {**one, "consolidated_metadata": None} for path, one in metadata.items()}


def test_the_table_holds_the_same_numbers_as_the_curves(tmp_path):
    run = analysed(tmp_path, {"bad": draw(5), "good": draw(5, seed=1)}, PAIRED)
    table, curves = read_table(run.location, "tables/curves.parquet"), read_group(run, "curves")
    row = table[
        (table["statistic"] == "cosine_of_means_debiased")
        & (table["contrast"] == "refusal")
        & (table["site"] == "resid_mid")
        & (table["layer"] == 2)
        & (table["position"] == -1)
        & (table["space"] == "sphere")
        & (table["estimate"] == "band_low")
    ]
    at = {"contrast": "refusal", "site": "resid_mid", "layer": 2, "position": -1}
    at |= {"space": "sphere", "estimate": "band_low"}
    assert row["value"].item() == curves["cosine_of_means_debiased"].sel(at).item()
    assert row["depth"].item() == 5


def test_one_sample_gives_no_variances_and_no_crash(tmp_path):
    run = analysed(tmp_path, {"bad": draw(1), "good": draw(1, seed=1)}, PAIRED)
    curves = read_group(run, "curves")
    assert np.isnan(curves["variance_mean"]).all()
    assert np.isnan(curves["cosine_of_means_debiased"].sel(estimate="low")).all()
    assert np.isfinite(curves["cosine_of_means"]).all()
    assert (curves["variance_max_feature"] == -1).all()
    assert "the noise is larger than the means" in render_report(run)
