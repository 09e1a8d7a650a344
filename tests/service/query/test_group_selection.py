"""Check selections of analyses and directions."""

import numpy as np
import pytest
from support.each import each
from support.finished_runs import finished_run

from theodolite.errors import ResultsNotFoundError, SpecError
from theodolite.query.group_selection import label_list, select_direction, select_group
from theodolite.store.result_reader import read_group

UNIT = np.eye(8)[3]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return finished_run(
        tmp_path_factory.mktemp("store"),
        {
            "curves": {},
            "directions": {"direction": {"raw": UNIT}},
            "separation": {"auroc": {"value": [[0.1], [0.2]]}},
            "moments": {},
        },
        positions=[-2, -1],
    )


def test_a_whole_group_equals_the_stored_group(run):
    assert select_group(run, "separation").identical(read_group(run, "separation"))


def test_statistics_and_labels_select_a_part_of_a_group(run):
    selected = select_group(run, "separation", ["auroc"], {"site": ["resid_mid"], "layer": [3, 0], "position": []})
    assert list(selected.data_vars) == ["auroc"]
    assert dict(selected.sizes) == {"contrast": 1, "site": 1, "position": 2, "layer": 2, "estimate": 5}
    assert selected["layer"].values.tolist() == [3, 0]
    auroc = selected["auroc"].sel(estimate="value")
    assert set(auroc.values.ravel()) == {0.1, 0.2} or auroc.notnull().all()


def test_a_selection_does_not_change_the_stored_group(run):
    before = read_group(run, "separation").copy(deep=True)
    select_group(run, "separation", ["auroc"], {"layer": [0]})
    assert read_group(run, "separation").identical(before)


@each(
    "name, statistics, only, message",
    [
        ("separation", ["nobody"], {}, "statistic: separation has no 'nobody'; it has: .*auroc"),
        (
            "separation",
            [],
            {"set": ["harmful"]},
            "set: separation has no such dimension; leave it out. It has: ",
        ),
        ("separation", [], {"nobody": ["x"]}, "nobody: separation has no such dimension"),
        ("separation", ["n_used"], {"layer": [0]}, "layer: separation has no such dimension"),
        ("separation", [], {"layer": [0, 4]}, "layer: tiny-0 has no 4; it has 0 to 3"),
        ("separation", [], {"layer": ["0"]}, "layer: tiny-0 has no '0'; it has 0 to 3"),
        ("separation", [], {"position": [0]}, "position: tiny-0 has no 0; it has -2, -1"),
        ("separation", [], {"contrast": ["x"]}, "contrast: tiny-0 has no 'x'; it has refusal"),
    ],
)
def test_the_error_for_an_unknown_label_lists_the_existing_labels(run, name, statistics, only, message):
    with pytest.raises(SpecError, match=message):
        select_group(run, name, statistics, only)


def test_the_error_for_an_unfinished_group_names_it(run):
    with pytest.raises(ResultsNotFoundError, match=r"no finished results 'gram'; it has .*moments"):
        select_group(run, "gram")


def test_of_the_arrays_along_d_model_only_the_named_ones_are_read(run):
    whole, some = read_group(run, "moments"), read_group(run, "moments", vectors=["mean"])
    along = {name for name, values in whole.data_vars.items() if "d_model" in values.dims}
    assert {"mean", "m2"} < along
    assert set(whole.data_vars) - set(some.data_vars) == along - {"mean"}
    assert some.identical(whole[list(some.data_vars)].assign_coords(whole.coords))
    assert set(select_group(run, "moments", ["norm_mean"]).data_vars) == {"norm_mean"}


def test_a_direction_is_by_default_that_of_the_last_position(run):
    assert select_direction(run, "refusal", "resid_pre", 0).values.tolist() == UNIT.tolist()
    assert int(select_direction(run, "refusal", "resid_pre", 0)["position"]) == -1
    assert int(select_direction(run, "refusal", "resid_pre", 0, -2)["position"]) == -2


@each(
    "labels, message",
    [
        (("x", "resid_pre", 0, None), "contrast: tiny-0 has no 'x'; it has refusal"),
        (("refusal", "resid_final", 0, None), "site: tiny-0 has no 'resid_final'; it has resid_pre, resid_mid"),
        (("refusal", "resid_pre", 4, None), "layer: tiny-0 has no 4; it has 0 to 3"),
        (("refusal", "resid_pre", -1, None), "layer: tiny-0 has no -1; it has 0 to 3"),
        (("refusal", "resid_pre", 0, -3), "position: tiny-0 has no -3; it has -2, -1"),
    ],
)
def test_the_error_for_an_unknown_direction_lists_the_existing_labels(run, labels, message):
    with pytest.raises(SpecError, match=message):
        select_direction(run, *labels)


def test_equal_means_have_no_direction(tmp_path):
    run = finished_run(tmp_path, {"curves": {}, "directions": {}})
    with pytest.raises(SpecError, match="refusal has no direction at resid_mid of layer 2, position -1: the means"):
        select_direction(run, "refusal", "resid_mid", 2)


@each(
    "labels, words",
    [
        ([], "none"),
        ([3], "3"),
        ([3, 4], "3, 4"),
        ([3, 4, 5], "3 to 5"),
        ([3, 5, 6], "3, 5, 6"),
        ([-3, -2, -1], "-3 to -1"),
        (["a", "b", "c"], "a, b, c"),
    ],
)
def test_label_list_shortens_consecutive_integers(labels, words):
    assert label_list(labels) == words
