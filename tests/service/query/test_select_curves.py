"""Check the selection of curves by statistic and labels: values, order, and numbers of prompts."""

import numpy as np
import pytest
from support.each import each
from support.finished_runs import REFUSAL, finished_run

from theodolite.errors import ResultsNotFoundError, SpecError
from theodolite.groups import GROUPS
from theodolite.query.curves import STATISTICS, along_depth, curve_frame, name_at, select_curves
from theodolite.sites import Site, depth
from theodolite.store.result_reader import read_group

COSINES = np.array([[[[1.0, 0.9, 0.7, 0.8]], [[0.95, 0.6, np.nan, 0.85]]]])

STEP_NORM = "step_norm@sublayer=block,summary=mean"


def curves(**values):
    return {"curves": {"cosine_of_means_debiased": {"value": {"raw": COSINES}}, **values}}


def test_every_statistic_along_depth_has_one_group_with_its_interval():
    for name, one in STATISTICS.items():
        assert name == name_at(one.variable.name, one.at)
        assert one.variable in GROUPS[one.group].variables
        assert set(one.variable.dims) - {*one.at, "estimate"} <= {"set", "contrast", "site", "position", "layer"}
        if "estimate" in one.variable.dims:
            assert one.variable.dims[-1] == "estimate"
            assert GROUPS[one.group].labels["estimate"][:3] == ("value", "low", "high")


def test_a_statistic_with_axes_is_a_curve_at_each_of_their_labels(tmp_path):
    of_maps = {"affine": 0.9, "orthogonal": 0.8, "identity": 0.5}
    values = np.array(list(of_maps.values()))
    run = finished_run(tmp_path, {"basis": {"r_squared": {"value": values, "low": values - 0.1, "high": values + 0.1}}})
    for kind, value in of_maps.items():
        name = f"r_squared@map={kind},sublayer=mlp"
        (curve,) = select_curves(run, [name], {"set": ["harmful"]})
        assert (curve.statistic, curve.of) == (name, {"set": "harmful", "position": -1})
        assert (curve.value, curve.low, curve.high) == ([value] * 4, [value - 0.1] * 4, [value + 0.1] * 4)
    (same,) = select_curves(run, ["r_squared@sublayer=mlp,map=affine,space=raw"], {"set": ["harmful"]})
    assert same.statistic == "r_squared@map=affine,sublayer=mlp"
    with pytest.raises(SpecError, match=r"given 'r_squared', .*choose one of: r_squared@map=affine,sublayer=att"):
        select_curves(run, ["r_squared"])


def test_a_curve_is_one_row_of_the_stored_array(tmp_path):
    debiased = {"value": {"raw": COSINES}, "low": {"raw": 0.1}, "high": {"raw": 0.9}}
    run = finished_run(tmp_path, curves(cosine_of_means_debiased=debiased))
    pre, mid = select_curves(run, ["cosine_of_means_debiased"])
    assert (pre.of, mid.of) == tuple(
        {"contrast": "refusal", "site": site, "position": -1} for site in ("resid_pre", "resid_mid")
    )
    assert pre.value == [1.0, 0.9, 0.7, 0.8]
    assert np.isnan(mid.value[2])
    assert (pre.depth, mid.depth) == ([0, 2, 4, 6], [1, 3, 5, 7])
    assert pre.low == [0.1] * 4
    assert pre.high == [0.9] * 4
    assert pre.n == {"n_positive": 4, "n_negative": 4}
    assert pre.layer == [0, 1, 2, 3]
    assert (pre.units, "without the bias" in pre.description) == ("1", True)


def test_a_statistic_without_an_interval_has_none(tmp_path):
    run = finished_run(tmp_path, curves(cosine_of_means={"raw": 0.5}))
    assert all(curve.low is curve.high is None for curve in select_curves(run, ["cosine_of_means"]))


def test_a_statistic_of_whole_blocks_has_the_depth_of_the_input_and_no_site(tmp_path):
    run = finished_run(tmp_path, {"travel": {"step_norm": {"mean": np.arange(1, 5)[:, None]}}})
    for curve, name in zip(select_curves(run, [STEP_NORM]), ("harmful", "harmless"), strict=True):
        assert curve.of == {"set": name, "position": -1}
        assert curve.depth == [0, 2, 4, 6]
        assert curve.value == [1, 2, 3, 4]
        assert curve.n == {"n_samples": 4}


def test_captured_layers_keep_their_indices(tmp_path):
    run = finished_run(tmp_path, {"curves": {"difference_norm": {"raw": [7.0, 8.0]}}}, layers=[1, 3])
    (pre, mid) = select_curves(run, ["difference_norm"])
    assert (pre.layer, pre.depth, mid.depth) == ([1, 3], [2, 6], [3, 7])


def test_statistics_are_returned_in_the_requested_order(tmp_path):
    run = finished_run(tmp_path, {**curves(), "separation": {"auroc": {"value": 0.5}}, "moments": {"norm_mean": 1}})
    requested = ["norm_mean", "auroc", "cosine_of_means_debiased"]
    selected = select_curves(run, requested, {"site": ["resid_pre"]})
    assert list(dict.fromkeys(curve.statistic for curve in selected)) == requested
    assert [curve.of.get("set", curve.of.get("contrast")) for curve in selected] == [
        "harmful",
        "harmless",
        "refusal",
        "refusal",
    ]


def test_a_label_of_only_one_of_several_groups_is_valid(tmp_path):
    run = finished_run(tmp_path, curves(), positions=[-1])
    selected = select_curves(run, ["cosine_of_means_debiased", "variance_mean"], {"set": ["harmless"]})
    assert {(curve.statistic, curve.of["set"]) for curve in selected} == {("variance_mean", "harmless")}


@each(
    "statistics, only, message",
    [
        (["nobody"], {}, r"statistic: given 'nobody'.*allowed: norm_mean, .*cosine_of_means, "),
        (["mean"], {}, r"given 'mean', which is not a curve"),
        (["path_length"], {}, r"given 'path_length', which is not a curve"),
        ([], {"set": ["nobody"]}, r"set: tiny-0 has no 'nobody'; it has: harmful, harmless"),
        ([], {"contrast": ["refusal", "nobody"]}, r"contrast: tiny-0 has no 'nobody'; it has: refusal"),
        ([], {"site": ["attn_out"]}, r"site: tiny-0 has no 'attn_out'; it has: resid_pre, resid_mid"),
        ([], {"position": [-2]}, r"position: tiny-0 has no -2; it has: -1"),
        ([], {"position": [True]}, r"position"),
        ([], {"set": ["harmful"], "contrast": ["refusal"]}, r"none of the requested statistics has set and contrast"),
    ],
)
def test_the_error_for_an_unknown_label_lists_the_existing_labels(tmp_path, statistics, only, message):
    run = finished_run(tmp_path, curves())
    with pytest.raises(SpecError, match=message):
        select_curves(run, statistics, only)


def test_the_error_for_an_unfinished_group_names_it(tmp_path):
    with pytest.raises(ResultsNotFoundError, match="tiny-0 has no finished results 'gram'; it has curves"):
        select_curves(finished_run(tmp_path, curves()), ["mean_cosine"])


def test_a_run_without_contrasts_has_only_curves_of_sets(tmp_path):
    run = finished_run(tmp_path, {"curves": {"variance_mean": {"raw": 1}}}, contrasts={})
    assert {curve.statistic for curve in select_curves(run)} == {
        name for name, one in STATISTICS.items() if one.group == "curves" and one.variable.dims[0] == "set"
    }
    assert select_curves(run, ["cosine_of_means"]) == []


def test_the_table_of_curves_has_a_row_for_each_point_and_nan_for_missing_values(tmp_path):
    run = finished_run(tmp_path, {**curves(), "travel": {"step_norm": 2}})
    frame = curve_frame(select_curves(run, ["cosine_of_means_debiased", STEP_NORM]))
    assert len(frame) == 2 * 4 + 2 * 4
    assert list(frame.columns) == [
        *("statistic", "set", "contrast", "site", "position", "layer", "depth"),
        *("value", "low", "high", "band_low", "band_high"),
    ]
    of_blocks = frame[frame["statistic"] == STEP_NORM]
    assert set(of_blocks["site"]) == {""}
    assert of_blocks["low"].isna().all()
    assert frame["value"].isna().sum() == 1


def test_depth_ascends_for_any_order_of_sites(tmp_path):
    run = finished_run(tmp_path, curves(), sites=["resid_mid", "resid_pre"])
    stored_group = read_group(run, "curves").sel(space="raw", estimate="value")
    at = stored_group["cosine_of_means_debiased"].isel(contrast=0, position=0)
    curve = along_depth(at)
    assert curve["depth"].values.tolist() == list(range(8))
    stored = {
        depth(Site(site), layer): float(at.sel(site=site, layer=layer))
        for site in at["site"].values
        for layer in range(4)
    }
    np.testing.assert_array_equal(curve.values, [stored[half_blocks] for half_blocks in range(8)])


def test_changing_a_curve_does_not_change_the_stored_group(tmp_path):
    run = finished_run(tmp_path, curves(), contrasts=REFUSAL)
    first = select_curves(run)
    first[0].value[:] = [0.0] * 4
    first[0].layer.append(99)
    assert select_curves(run)[0].layer == [0, 1, 2, 3]
