"""The groups' arrays and fits of `travel` equal their definitions, written out on the captured arrays."""

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from support.analysing import analyse
from support.nightly import at_night
from support.result_cases import (
    FEW,
    LAYERS,
    PARALLEL,
    assert_group,
    contrast,
    draw,
    model_of,
    silent,
    store,
)
from support.stored import read_table, store_run
from support.travel_cases import expected_travel, without_middle

from theodolite.store.result_reader import read_group
from theodolite_jobs.groups.travel.formulas_growth import growth_fits
from theodolite_jobs.groups.travel.formulas_verdict import comparison, verdict


def test_travel_equals_its_definition_for_any_chunking(surveyed):
    assert_group(surveyed.run, "travel", expected_travel(surveyed, range(LAYERS), LAYERS))


def test_travel_of_parallel_blocks_uses_their_branches(tmp_path):
    stored = store(tmp_path, PARALLEL, sets=FEW)
    analyse(stored.run, {}, None, silent, requested={"travel"})
    assert_group(stored.run, "travel", expected_travel(stored, range(LAYERS), LAYERS, without_middle, PARALLEL[1:]))


def test_travel_of_parallel_blocks_without_branch_sites_has_no_branch_norms(tmp_path):
    stored = store(tmp_path, ("resid_pre",), sets=FEW)
    analyse(stored.run, {}, None, silent, requested={"travel"})
    nothing = expected_travel(stored, range(LAYERS), LAYERS, without_middle)
    group = assert_group(stored.run, "travel", nothing)
    norms = group["step_norm"]
    assert np.isnan(norms.sel(sublayer="attention")).all()
    assert np.isfinite(norms.sel(sublayer="block", set="words", position=-1)).all()


def test_where_the_branches_do_not_add_up_resid_mid_gives_no_branch_norms(tmp_path):
    stored = store(tmp_path, sets=FEW, parity={"branches_add": False})
    analyse(stored.run, {}, None, silent, requested={"travel"})
    nothing = expected_travel(stored, range(LAYERS), LAYERS, without_middle)
    assert_group(stored.run, "travel", nothing)


@pytest.mark.parametrize(("layers", "n_layers"), [([0, 1, 3], 5), *at_night([([0, 2, 3], 4)])])
def test_travel_of_some_layers_has_their_steps_and_no_path(tmp_path, layers, n_layers):
    stored = store(tmp_path, sets=FEW, model=model_of(n_layers), layers=layers)
    analyse(stored.run, {}, None, silent, requested={"travel"})
    group = assert_group(stored.run, "travel", expected_travel(stored, layers, n_layers))
    assert group["layer"].values.tolist() == layers
    assert np.isnan(group["path_length"]).all()


def test_the_table_of_growth_fits_norms_and_variances_along_depth_in_blocks(tmp_path):
    rng, layers = np.random.default_rng(0), np.arange(13)
    arrays = {"bad": draw(8, layers=13), "good": draw(5, layers=13, seed=1)}
    for of_set in arrays.values():
        for half, values in enumerate(of_set.values()):
            along = layers + half / 2
            values[:] = rng.normal(size=values.shape) * np.exp(0.3 * along)[:, None]
    contrasts = {"refusal": contrast("bad", "good")}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    analyse(run, contrasts, None, silent, requested={"travel"})
    table = read_table(run.location, "tables/growth.parquet")
    assert len(table) == 3 * 2 * 2 * 2 * 2  # quantities, sets, sites, positions, laws
    moments, curves = read_group(run, "moments"), read_group(run, "curves").sel(space="raw")
    groups = {"norm_mean": moments, "variance_mean": curves, "variance_max": curves}
    for (quantity, of_set, position), rows in table.groupby(["quantity", "set", "position"]):
        comparisons = []
        for site in ("resid_pre", "resid_mid"):
            depths = layers + (site == "resid_mid") / 2
            y = groups[quantity][quantity].sel(set=of_set, position=position, site=site).values
            comparisons.append(comparison(depths, y))
            expected = [{**asdict(fit), **asdict(comparisons[-1])} for fit in growth_fits(depths, y)]
            found = rows[rows["site"] == site].drop(columns=["quantity", "set", "position", "site", "verdict"])
            pd.testing.assert_frame_equal(found.reset_index(drop=True), pd.DataFrame(expected), check_dtype=False)
            assert (found["n"] == 13).all()
        assert set(rows["verdict"]) == {verdict(comparisons)}
    norms = table[(table["quantity"] == "norm_mean") & (table["law"] == "log_linear")]
    np.testing.assert_allclose(norms["slope"], 0.3, atol=0.05)
    assert (norms["slope_low"] < norms["slope"]).all()
    assert (norms["slope"] < norms["slope_high"]).all()


def test_growth_is_fitted_again_with_existing_results(tmp_path):
    arrays = {"bad": draw(8, ("resid_pre",), positions=1, layers=6)}
    here, there = store_run(tmp_path / "a", arrays), store_run(tmp_path / "b", arrays)
    analyse(here, {}, None, silent, requested={"travel"})
    analyse(there, {}, None, silent)
    assert analyse(there, {}, None, silent, requested={"travel"}) == ["travel"]
    first, second = (read_table(run.location, "tables/growth.parquet") for run in (here, there))
    assert first.equals(second)
    assert len(first) == 3 * 2
