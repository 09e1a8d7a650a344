"""The passes collect the same numbers for one group as for all, and never average over a number that is not finite."""

import numpy as np
import pytest
from support.analysing import analyse
from support.each import each
from support.nightly import at_night
from support.result_cases import (
    REQUESTED,
    contrast,
    draw,
    model_of,
    norms,
    silent,
)
from support.stored import read_table, store_run

from theodolite.errors import RunDamagedError
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group


def test_groups_computed_together_equal_groups_computed_alone(tmp_path):
    arrays = {"bad": draw(6, positions=1), "good": draw(7, positions=1, seed=1)}
    contrasts = {"refusal": contrast("bad", "good")}
    together, apart = (store_run(tmp_path / name, arrays, contrasts=contrasts) for name in ("together", "apart"))
    names = analyse(together, contrasts, None, silent, requested=REQUESTED, norms=norms())
    assert set(names) == {"moments", "curves", "directions", *REQUESTED}
    for name in sorted(REQUESTED):
        analyse(apart, contrasts, None, silent, requested={name}, norms=norms())
    assert finished_groups(together) == finished_groups(apart)
    for name in names:
        assert read_group(together, name).identical(read_group(apart, name))


@pytest.mark.nightly
@each("late", ["travel", "sphere"])
@each("side", ["bad", "good"])
def test_a_group_requested_later_handles_a_quarantined_prompt_of_either_side(tmp_path, side, late):
    """A pair's partner is out of the contrast and not out of its set: the two are read differently."""
    arrays = {"bad": draw(9), "good": draw(9, seed=1)}
    contrasts = {"refusal": contrast("bad", "good", paired=True)}
    run = store_run(tmp_path, arrays, contrasts=contrasts, quarantined={side: {5: "why"}})
    analyse(run, contrasts, None, silent)
    assert analyse(run, contrasts, None, silent, requested={late}, norms=norms()) == [late]


@pytest.mark.parametrize("long", ["bad", *at_night(["good"])])
def test_a_group_requested_later_handles_sets_with_different_positions(tmp_path, long):
    arrays = {name: draw(9, positions=2 if name == long else 1, seed=seed) for seed, name in enumerate(("bad", "good"))}
    contrasts = {"refusal": contrast("bad", "good")}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    analyse(run, contrasts, None, silent)
    assert analyse(run, contrasts, None, silent, requested={"travel"}) == ["travel"]


@pytest.mark.parametrize("empty", ["good", *at_night(["bad"])])
def test_a_set_with_all_prompts_quarantined_is_nan_and_does_not_affect_other_sets(tmp_path, empty):
    arrays = {"bad": draw(6), "good": draw(9, seed=1)}
    contrasts = {"refusal": contrast("bad", "good")}
    quarantined = {empty: dict.fromkeys(range(len(arrays[empty]["resid_pre"])), "why")}
    run = store_run(tmp_path, arrays, contrasts=contrasts, quarantined=quarantined)
    analyse(run, contrasts, None, silent, requested=REQUESTED, norms=norms())
    other = {"bad": "good", "good": "bad"}[empty]
    for name in ("travel", "sphere"):
        group = read_group(run, name)
        assert group["n_samples"].sel(set=empty).values.tolist() == [0, 0]
        for variable in group.data_vars.values():
            if "set" in variable.dims and variable.dtype == np.float64:
                assert np.isnan(variable.sel(set=empty)).all(), variable.name
    assert np.isfinite(read_group(run, "travel")["path_length"].sel(set=other)).all()
    separation = read_group(run, "separation")
    for name in ("auroc", "accuracy", "fisher_ratio"):
        assert np.isnan(separation[name]).all()


NOT_FINITE = {"nan": [np.nan], "inf": [np.inf], "-inf": [-np.inf], "both": [np.inf, -np.inf]}


@each("kind", list(NOT_FINITE))
def test_a_number_that_is_not_finite_is_named_by_run_shard_sample_and_layer(tmp_path, kind):
    arrays = {"bad": draw(9), "good": draw(9, seed=1)}
    values = NOT_FINITE[kind]
    arrays["good"]["resid_mid"][6, 0, 2, : len(values)] = values
    contrasts = {"refusal": contrast("bad", "good", paired=True)}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    message = r"tiny-0: shard good/00001, resid_mid: .* sample 6 at layer 2 is not finite"
    with pytest.raises(RunDamagedError, match=message):
        analyse(run, contrasts, None, silent, requested=REQUESTED, norms=norms())
    assert finished_groups(run) == {}


def test_a_number_of_a_later_layer_is_named_by_the_models_layer(tmp_path):
    arrays = {"bad": draw(9)}
    arrays["bad"]["resid_pre"][2, 1, 1, 3] = np.nan
    run = store_run(tmp_path, arrays, model=model_of(20), layers=[3, 11, 17])
    with pytest.raises(RunDamagedError, match=r"shard bad/00000, resid_pre: .* sample 2 at layer 11 is not finite"):
        analyse(run, {}, None, silent)


def test_resid_final_is_checked_to_be_finite(tmp_path):
    arrays = {"bad": draw(9)}
    final = arrays["bad"]["resid_pre"][:, :, -1].copy()
    final[7, 1, 3] = np.nan
    run = store_run(tmp_path, arrays, final={"bad": final})
    with pytest.raises(RunDamagedError, match=r"shard bad/00001, resid_final: the activation of sample 7 is not"):
        analyse(run, {}, None, silent, requested={"travel"})


def test_without_contrasts_groups_of_sets_are_whole(tmp_path):
    run = store_run(tmp_path, {"bad": draw(8, positions=1)})
    analyse(run, {}, None, silent, requested=REQUESTED, norms=norms())
    assert np.isfinite(read_group(run, "travel")["path_ratio"]).all()
    assert read_group(run, "separation")["auroc"].shape == (0, 2, 1, 3, 5)
    assert set(read_table(run.location, "tables/sphere.parquet")["set"]) == {"bad"}
