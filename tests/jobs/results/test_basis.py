"""The arrays of `basis`: each sublayer's input and output, samples and folds, and what was not captured."""

from itertools import product

import numpy as np
import pytest
from support.analysing import survey_basis
from support.result_cases import (
    LAYERS,
    PARALLEL,
    QUARANTINED,
    SEQUENTIAL,
    WIDTH,
    assert_same_rows,
    draw,
    model_of,
    store,
)
from support.stored import read_table, store_run

from theodolite.errors import RunDamagedError
from theodolite.spec_options import GramSpec
from theodolite.store.result_reader import read_group
from theodolite_jobs.statistics.basis import pair_grams, r_squared
from theodolite_jobs.statistics.basis_spectrum import stretch

SETS = ("bad", "good", "words")


def computed(run, samples=2048):
    assert survey_basis(run, GramSpec(samples=samples)) == ["basis"]
    return read_group(run, "basis")


def expected_maps(x, y, samples):
    """Return the variables of one sublayer, without its name, from (sample, d_model)."""
    grams = pair_grams(x, y)
    values = {}
    for name, estimate in r_squared(grams, np.array(samples) % 5).items():
        values |= {f"r_squared_{name}": estimate.value}
        values |= {f"r_squared_{name}_low": estimate.low, f"r_squared_{name}_high": estimate.high}
    return values | stretch(grams, WIDTH)._asdict()


def variable_of(name, sublayer):
    """Return the name of a variable; an end of an interval follows the sublayer."""
    for end in ("_low", "_high"):
        if name.startswith("r_squared") and name.endswith(end):
            return f"{name.removesuffix(end)}_{sublayer}{end}"
    return f"{name}_{sublayer}"


@pytest.mark.parametrize("shard_prompts", [2, 100])
def test_every_variable_comes_from_the_ends_of_its_sublayer(tmp_path, shard_prompts):
    stored = store(tmp_path, shard_prompts=shard_prompts, sets=SETS)
    group = computed(stored.run)
    assert group["n_samples"].sel(position=-1).values.tolist() == [12, 13, 8]
    checked = set()
    for name, position, layer in product(("bad", "good"), (-2, -1), range(LAYERS)):
        pre, mid = (stored.at(name, site, position, layer) for site in SEQUENTIAL)
        is_last = layer == LAYERS - 1
        post = stored.final_at(name, position) if is_last else stored.at(name, "resid_pre", position, layer + 1)
        for sublayer, x, y in (("attention", pre, mid), ("mlp", mid, post), ("block", pre, post)):
            for statistic, value in expected_maps(x, y, stored.usable(name)).items():
                variable = variable_of(statistic, sublayer)
                at = group[variable].sel(set=name, position=position, layer=layer)
                np.testing.assert_allclose(at, value, rtol=1e-9, atol=1e-11, err_msg=variable)
                checked.add(variable)
    assert checked == set(group.data_vars) - {"n_samples"}
    assert_same_rows(read_table(stored.run.location, "tables/basis.parquet"), group)


def test_sets_with_few_prompts_and_positions_of_other_sets_are_missing(tmp_path):
    group = computed(store(tmp_path, sets=SETS).run)
    words = group.sel(set="words")
    assert words["n_samples"].values.tolist() == [0, 8]
    for name, values in words.drop_vars("n_samples").items():
        assert (values == 0).all() if str(name).startswith("dimension") else np.isnan(values).all()


def test_parallel_blocks_have_maps_of_whole_blocks_only(tmp_path):
    group = computed(store(tmp_path, PARALLEL, sets=("bad",)).run)
    assert np.isfinite(group["r_squared_affine_block"]).all()
    for sublayer in ("attention", "mlp"):
        assert np.isnan(group[f"r_squared_affine_{sublayer}"]).all()
        assert (group[f"dimension_{sublayer}"] == 0).all()


def test_layers_without_a_captured_output_are_missing(tmp_path):
    arrays = {"good": draw(12)}
    run = store_run(tmp_path, arrays, model=model_of(6), layers=[1, 2, 4])
    group = computed(run).sel(set="good", position=-1)
    assert np.isfinite(group["r_squared_affine_attention"]).all()
    for sublayer in ("mlp", "block"):  # the outputs of layers 2 and 4 are the inputs of 3 and 5
        assert np.isfinite(group[f"r_squared_affine_{sublayer}"]).values.tolist() == [True, False, False]


def test_the_first_samples_up_to_the_limit_are_used_and_the_digest_has_the_limit(tmp_path):
    arrays = {"bad": draw(30)}
    for values in arrays["bad"].values():
        values[5] = np.nan
    run = store_run(tmp_path, arrays, 7, quarantined=QUARANTINED)
    whole = computed(run)
    assert whole.attrs["options"] == {"samples": 2048}
    group = computed(run, samples=11)
    assert whole["n_samples"].values.ravel().tolist() == [29, 29]
    assert group["n_samples"].values.ravel().tolist() == [11, 11]
    samples = [sample for sample in range(12) if sample != 5]
    pre, mid = (arrays["bad"][site][samples, -1, 0].astype(np.float64) for site in SEQUENTIAL)
    expected = expected_maps(pre, mid, samples)["r_squared_affine"]
    np.testing.assert_allclose(group["r_squared_affine_attention"].sel(position=-1, layer=0), expected, rtol=1e-9)
    assert survey_basis(run, GramSpec(samples=11)) == []


def test_a_set_without_usable_samples_has_no_maps(tmp_path):
    arrays = {"bad": draw(3), "good": draw(12, seed=1)}
    for values in arrays["bad"].values():
        values[:] = np.nan
    run = store_run(tmp_path, arrays, quarantined={"bad": dict.fromkeys(range(3), "not finite")})
    group = computed(run)
    assert (group["n_samples"].sel(set="bad") == 0).all()
    assert np.isfinite(group["r_squared_affine_attention"].sel(set="good")).all()


def test_a_number_that_is_not_finite_stops_the_analysis(tmp_path):
    arrays = {"good": draw(12)}
    arrays["good"]["resid_mid"][4] = np.inf
    with pytest.raises(RunDamagedError, match="good"):
        computed(store_run(tmp_path, arrays))
