"""Statistics of norm layers and of heads as profiles along depth."""

import numpy as np
import pytest
import xarray as xr
from support.finished_runs import finished_run

from theodolite.errors import SpecError
from theodolite.query.compare import Question, comparison
from theodolite.query.curves import STATISTICS
from theodolite.query.profiles import PROFILES


def test_every_curve_is_a_profile_and_arrays_of_single_features_are_none():
    assert set(STATISTICS) < set(PROFILES)
    assert {
        "relative_spread@quantity=norm",
        "euclidean_norm@stage=before,summary=mean",
        "effective_rank@circuit=qk",
        "stable_rank@circuit=ov",
        "copying_score@centring=centred",
    } < set(PROFILES)
    assert not {"semi_axes", "mean", "n_samples", "singular_values"} & set(PROFILES)


def test_norm_layers_have_the_depth_of_the_site_that_they_read():
    labels = ["0.attention", "0.attention_output", "0.mlp", "1.attention", "1.mlp", "final"]
    stored = xr.DataArray([[1.0, 9, 2, 3, 4, 9]], {"set": ["nouns"], "norm": labels}, ("set", "norm"))
    stored = stored.expand_dims(quantity=["norm"], axis=-1)
    profile = PROFILES["relative_spread@quantity=norm"].read(stored).sel(set="nouns")
    assert profile.sel(site="resid_pre").values.tolist() == [1, 3]
    assert profile.sel(site="resid_mid").values.tolist() == [2, 4]
    assert profile["layer"].values.tolist() == [0, 1]


def test_a_block_without_an_mlp_norm_has_no_value_there():
    stored = xr.DataArray([1.0, 2, 3], {"norm": ["0.attention", "0.mlp", "1.attention"]}, ("norm",))
    profile = PROFILES["mean_component@stage=before"].read(stored.expand_dims(stage=["before"]))
    np.testing.assert_array_equal(profile.sel(site="resid_mid"), [2, np.nan])


def test_heads_have_their_median_at_offset_zero():
    values = np.arange(2 * 2 * 3 * 3, dtype=float).reshape(2, 2, 3, 3)
    dims, labels = ("circuit", "offset", "layer", "head"), {"circuit": ["qk", "ov"], "offset": [0, 8]}
    stored = xr.DataArray(values, labels, dims)
    for circuit, expected in (("qk", values[0, 0]), ("ov", values[1, 0])):
        profile = PROFILES[f"effective_rank@circuit={circuit}"].read(stored)
        assert profile.dims == ("layer",)
        np.testing.assert_array_equal(profile, np.median(expected, axis=1))


def test_a_circuit_of_zeros_does_not_count_in_the_median():
    stored = xr.DataArray([[[[-1, 4, 6]]]], {"circuit": ["qk"], "offset": [0]}, ("circuit", "offset", "layer", "head"))
    assert PROFILES["coverage_99@circuit=qk"].read(stored).values.tolist() == [5]


def test_without_a_stream_between_the_branches_the_norm_of_the_mlp_has_no_depth(tmp_path):
    run = finished_run(tmp_path, {"sphere": {"relative_spread": 7.0}}, sites=["resid_pre"])
    frame = comparison([run], Question("relative_spread@quantity=norm", prompt_set="harmful"))
    assert frame["depth"].tolist() == [0, 2, 4, 6]
    assert set(frame["site"]) == {"resid_pre"}
    with pytest.raises(SpecError, match="site: tiny-0 has no 'resid_mid'; it has: resid_pre"):
        comparison([run], Question("relative_spread@quantity=norm", prompt_set="harmful", site="resid_mid"))


def test_a_statistic_of_weights_needs_no_set_and_no_position(tmp_path):
    run = finished_run(tmp_path, {"heads": {"effective_rank": 7.0}})
    frame = comparison([run], Question("effective_rank@circuit=ov"))
    assert (frame["value"] == 7).all()
    assert frame["position"].isna().all()
    assert frame["relative_depth"].tolist() == [0, 0.25, 0.5, 0.75]
