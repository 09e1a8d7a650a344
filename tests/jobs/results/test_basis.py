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
from theodolite_jobs.groups.basis.formulas import pair_grams, r_squared
from theodolite_jobs.groups.basis.formulas_spectrum import stretch

SETS = ("bad", "good", "words")


def computed(run, samples=2048):
    assert survey_basis(run, GramSpec(samples=samples)) == ["basis"]
    return read_group(run, "basis")


def affine_of(group):
    return group["r_squared"].sel(map="affine", estimate="value")


def expected_maps(x, y, samples):
    """Return the variables of one sublayer from (sample, d_model)."""
    grams = pair_grams(x, y)
    found = {name: [one.value, one.low, one.high] for name, one in r_squared(grams, np.array(samples) % 5).items()}
    maps = [found.pop(name) for name in ("affine", "orthogonal", "identity")]
    return {"r_squared": maps} | {f"r_squared_{name}": ends for name, ends in found.items()} | stretched(grams)


def stretched(grams):
    return stretch(grams, WIDTH)._asdict()


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
                at = group[statistic].sel(set=name, position=position, layer=layer, sublayer=sublayer)
                np.testing.assert_allclose(at, value, rtol=1e-9, atol=1e-11, err_msg=statistic)
                checked.add(statistic)
    assert checked == set(group.data_vars) - {"n_samples"}
    assert_same_rows(read_table(stored.run.location, "tables/basis.parquet"), group)


def test_sets_with_few_prompts_and_positions_of_other_sets_are_missing(tmp_path):
    group = computed(store(tmp_path, sets=SETS).run)
    words = group.sel(set="words")
    assert words["n_samples"].values.tolist() == [0, 8]
    for name, values in words.drop_vars("n_samples").items():
        assert (values == 0).all() if name == "dimension" else np.isnan(values).all()


def test_parallel_blocks_have_maps_of_whole_blocks_only(tmp_path):
    group = computed(store(tmp_path, PARALLEL, sets=("bad",)).run)
    branches = ["attention", "mlp"]
    assert np.isfinite(group["r_squared"].sel(sublayer="block")).all()
    assert np.isnan(group["r_squared"].sel(sublayer=branches)).all()
    assert (group["dimension"].sel(sublayer=branches) == 0).all()


def test_layers_without_a_captured_output_are_missing(tmp_path):
    arrays = {"good": draw(12)}
    run = store_run(tmp_path, arrays, model=model_of(6), layers=[1, 2, 4])
    affine = affine_of(computed(run)).sel(set="good", position=-1)
    assert np.isfinite(affine.sel(sublayer="attention")).all()
    for sublayer in ("mlp", "block"):  # the outputs of layers 2 and 4 are the inputs of 3 and 5
        assert np.isfinite(affine.sel(sublayer=sublayer)).values.tolist() == [True, False, False]


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
    expected = expected_maps(pre, mid, samples)["r_squared"]
    found = group["r_squared"].sel(position=-1, layer=0, sublayer="attention", set="bad")
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert survey_basis(run, GramSpec(samples=11)) == []


def test_a_set_without_usable_samples_has_no_maps(tmp_path):
    arrays = {"bad": draw(3), "good": draw(12, seed=1)}
    for values in arrays["bad"].values():
        values[:] = np.nan
    run = store_run(tmp_path, arrays, quarantined={"bad": dict.fromkeys(range(3), "not finite")})
    group = computed(run)
    assert (group["n_samples"].sel(set="bad") == 0).all()
    assert np.isfinite(affine_of(group).sel(set="good", sublayer="attention")).all()


def test_a_number_that_is_not_finite_stops_the_analysis(tmp_path):
    arrays = {"good": draw(12)}
    arrays["good"]["resid_mid"][4] = np.inf
    with pytest.raises(RunDamagedError, match="good"):
        computed(store_run(tmp_path, arrays))
