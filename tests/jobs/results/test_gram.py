"""The group `gram` over stored runs, every variable against its definition from the arrays themselves."""

from itertools import combinations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.metrics import silhouette_score
from support.analysing import stale_gram, survey_gram
from support.each import each
from support.gram_cases import cka, debiased_cka, in_spaces
from support.nightly import at_night
from support.result_cases import assert_same_rows, contrast, draw, model_of, silent
from support.stored import read_table, store_run

from theodolite.errors import RunDamagedError
from theodolite.spec_options import GramSpec
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group
from theodolite_jobs.groups.gram.compute import similarities
from theodolite_jobs.groups.gram.formulas import (
    effective_rank_of_gaussian,
    eigenvalues,
    participation_ratio_of_gaussian,
)
from theodolite_jobs.groups.gram.formulas_rotations import intrinsic_dimension_of_rotations
from theodolite_jobs.statistics.gram_matrices import gram

WIDTH, LAYERS = 8, 3
SITES = ("resid_pre", "resid_mid")
CONTRASTS = {
    "refusal": contrast("bad", "good", paired=True),
    "subject": contrast("words", "bad"),
    "still": contrast("same", "good"),
    "itself": contrast("good", "good"),
    "lonely": contrast("one", "good"),
}
QUARANTINED = {"bad": {5: "not finite"}}
LABELS = {  # the expected numbers are in this order
    "space": ["raw", "sphere", "standardised"],
    "sublayer": ["attention", "mlp", "block"],
    "output": ["output", "branch"],
    "null": ["mean", "sd"],
    "centre": ["mean", "median"],
    "prompt_side": ["positive", "negative"],
}
ORTHANTS = {"orthant_occupancy", "orthant_overlap"}  # of other numbers, and tested with them


def arrays_of_sets():
    sizes = {"bad": 13, "good": 11, "words": 8, "one": 1, "same": 10}
    arrays = {
        name: draw(n, SITES, 1 if name == "words" else 2, LAYERS, seed, shift=0.5 + 0.1 * seed)
        for seed, (name, n) in enumerate(sizes.items())
    }
    for values in arrays["bad"].values():
        values[5] = np.nan
    for values in arrays["same"].values():
        values[:] = values[:1]
    good = arrays["good"]["resid_mid"]
    good[..., 3] = 2.7  # a feature that does not vary
    good[7, :, 1] = good[2, :, 1]  # two prompts that coincide at one layer
    return arrays


def finals(arrays):
    rng = np.random.default_rng(9)
    found = {name: of_set["resid_pre"][:, :, -1] + of_set["resid_mid"][:, :, 0] for name, of_set in arrays.items()}
    return {
        name: values if name == "same" else (values + rng.normal(size=values.shape)).astype(np.float32)
        for name, values in found.items()
    }


def shape_of(x, same):
    """Cosine, dimensions, and how many samples coincide, of (sample, feature)."""
    found = dict.fromkeys(("mean_cosine", "participation_ratio", "effective_rank", "intrinsic_dimension"), np.nan)
    if len(x) > 1 and x.shape[1]:
        cosines = [a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in combinations(x, 2)]
        found["mean_cosine"] = np.mean(cosines)
    if len(x) > 1 and not same:
        values = np.linalg.svd(x - x.mean(axis=0), compute_uv=False) ** 2
        shares = values[values > 1e-14 * values[0]] / values.sum()
        found["participation_ratio"] = values.sum() ** 2 / (values**2).sum()
        found["effective_rank"] = np.exp(-(shares * np.log(shares)).sum())
    distances = np.sort(cdist(x, x), axis=1)[:, 1:3] if len(x) > 2 else np.zeros((len(x), 2))
    apart = distances[:, 0] > 0
    if len(x) > 2 and apart.sum() > 2 and not same:
        found["intrinsic_dimension"] = apart.sum() / np.log(distances[apart, 1] / distances[apart, 0]).sum()
    return found


def with_permuted_steps(x, steps):
    """Mean over the same permutations as in the implementation, each on vectors."""
    random = np.random.default_rng(0)
    return np.mean([debiased_cka(x, x + steps[random.permutation(len(x))]) for _ in range(20)])


def median_of(x):
    """Weiszfeld's iteration on the vectors."""
    point = x.mean(axis=0)
    if (x == x[0]).all():
        return x[0]
    while True:
        pull = 1 / np.linalg.norm(x - point, axis=1)
        moved = pull @ x / pull.sum()
        if np.linalg.norm(moved - point) < 1e-13 * np.linalg.norm(point):
            return moved
        point = moved


def cosine(x, y):
    lengths = np.linalg.norm(x) * np.linalg.norm(y)
    return x @ y / lengths if lengths > 0 else np.nan


def pair_of(p, q):
    """Where two sets' means and medians lie, and silhouettes."""
    found = {"norm_of_centre": [], "cosine_with_difference": []}
    for a, b in ((p.mean(axis=0), q.mean(axis=0)), (median_of(p), median_of(q))):
        difference = np.zeros(WIDTH) if p is q else a - b
        found["norm_of_centre"].append([np.linalg.norm(a), np.linalg.norm(b)])
        found["cosine_with_difference"].append([cosine(a, difference), cosine(b, difference)])
    found |= {"cosine_of_medians": cosine(a, b), "difference_of_medians": np.linalg.norm(difference)}
    labels = [0] * len(p) + [1] * len(q)
    found["silhouette"] = [
        silhouette_score(both, labels) if min(len(p), len(q)) > 1 else np.nan
        for both in in_spaces(np.concatenate([p, q])).values()
    ]
    return found


def expected_group(arrays, final, contrasts, group, limit=2048):
    """All variables, from the arrays."""
    sets, positions = list(arrays), (-2, -1)
    lengths = dict(group.sizes)
    expected = {
        name: np.full([lengths[dim] for dim in variable.dims], -1.0 if variable.dtype == np.int64 else np.nan)
        for name, variable in group.data_vars.items()
        if name not in ORTHANTS
    }
    expected["n_samples"][:] = 0

    def usable(name):
        return [s for s in range(len(arrays[name]["resid_pre"])) if s not in QUARANTINED.get(name, {})][:limit]

    def cloud(name, site, position, layer):
        values = final[name][:, None] if site == "resid_final" else arrays[name][site]
        values = values if site != "resid_final" else np.moveaxis(values, 1, 2)
        if values.shape[1] < -position:
            return None
        return values[usable(name), position, layer].astype(np.float64)

    for row, name in enumerate(sets):
        for column, position in enumerate(positions):
            if cloud(name, "resid_pre", position, 0) is None:
                continue
            n, same = len(usable(name)), name in ("same", "one")
            expected["n_samples"][row, column] = n
            expected["participation_ratio_gaussian"][row, column] = participation_ratio_of_gaussian(n, WIDTH)
            expected["effective_rank_gaussian"][row, column] = effective_rank_of_gaussian(n, WIDTH)
            for site, layer in np.ndindex(len(SITES), LAYERS):
                x = cloud(name, SITES[site], position, layer)
                at = row, site, column, layer
                expected["n_constant_features"][at] = WIDTH if n == 1 else (np.ptp(x, axis=0) == 0).sum()
                twins = (cdist(x, x) == 0).sum(axis=1) > 1
                expected["n_coincident"][at] = twins.sum() if n > 2 else 0
                for index, (space, moved) in enumerate(in_spaces(x).items()):
                    for statistic, value in shape_of(moved, same).items():
                        expected[statistic][(*at, index)] = value
                    if space == "raw" and not same:
                        values = eigenvalues(gram(moved - moved.mean(axis=0)))
                        expected["intrinsic_dimension_null"][at] = intrinsic_dimension_of_rotations(values)
                    if same or n < 2:
                        continue
                    for other in range(LAYERS):
                        beside = in_spaces(cloud(name, SITES[site], position, other))[space]
                        expected["linear_cka"][(*at, other, index)] = cka(moved, beside)
                        expected["linear_cka_debiased"][(*at, other, index)] = debiased_cka(moved, beside)
            for layer in range(LAYERS if not same else 0):
                pre, mid = (cloud(name, site, position, layer) for site in SITES)
                is_last = layer == LAYERS - 1
                post = cloud(name, *(("resid_final", position, 0) if is_last else ("resid_pre", position, layer + 1)))
                if n < 2:
                    continue
                ends = {"attention": (pre, mid), "mlp": (mid, post), "block": (pre, post)}
                for sublayer, (start, end) in enumerate(ends.values()):
                    at = row, column, layer, sublayer
                    of_spaces = zip(*(in_spaces(x).values() for x in (start, end, end - start)), strict=True)
                    expected["sublayer_cka"][at] = np.transpose(
                        [
                            (debiased_cka(entering, leaving), debiased_cka(entering, added))
                            for entering, leaving, added in of_spaces
                        ]
                    )
                    expected["sublayer_cka_permuted"][at] = with_permuted_steps(start, end - start)
    for row, one in enumerate(contrasts.values()):
        for column, position in enumerate(positions):
            for site, layer in np.ndindex(len(SITES), LAYERS):
                p, q = (cloud(one[side], SITES[site], position, layer) for side in ("positive", "negative"))
                if p is None or q is None:
                    continue
                q = p if one["positive"] == one["negative"] else q
                for statistic, value in pair_of(p, q).items():
                    expected[statistic][row, site, column, layer] = value
    return expected


EXPECTED = {}
"""The same for any chunking: computed once."""


@pytest.fixture(scope="module", params=[2, *at_night([100])], ids=["small shards", "one shard"])
def surveyed(request, tmp_path_factory):
    """A run of shards of so many prompts."""
    arrays = arrays_of_sets()
    final = finals(arrays)
    run = store_run(
        tmp_path_factory.mktemp("gram"),
        arrays,
        request.param,
        contrasts=CONTRASTS,
        positions={name: [-1] if name == "words" else [-2, -1] for name in arrays},
        quarantined=QUARANTINED,
        final=final,
    )
    assert survey_gram(run, CONTRASTS, GramSpec(), None, silent) == ["gram"]
    group = read_group(run, "gram")
    if not EXPECTED:
        EXPECTED.update(expected_group(arrays, final, CONTRASTS, group))
    return run, group, EXPECTED


# Distances from products lose half the digits: silhouettes and TwoNN to 1e-7; medians to where the iteration ends.
LOOSE = {"rtol": 1e-6, "atol": 1e-7}
TIGHT = {"rtol": 1e-8, "atol": 1e-10}


def is_loose(name):
    return any(part in name for part in ("silhouette", "intrinsic", "median", "centre", "with_difference"))


def compare(group, expected, sets=slice(None), contrasts=slice(None)):
    for name, values in expected.items():
        found = group[name]
        rows = {"set": sets, "contrast": contrasts}.get(found.dims[0], slice(None))
        kind = LOOSE if is_loose(name) else TIGHT
        np.testing.assert_allclose(found.values[rows], values[rows], err_msg=name, **kind)
        if "centre" in found.dims:
            of_means = (one[rows][..., LABELS["centre"].index("mean"), :] for one in (found.values, values))
            np.testing.assert_allclose(*of_means, err_msg=name, **TIGHT)


def test_every_variable_equals_its_definition_for_any_chunking(surveyed):
    _, group, expected = surveyed
    assert set(group.data_vars) == set(expected) | ORTHANTS
    assert {dim: group[dim].values.tolist() for dim in LABELS} == LABELS
    compare(group, expected, sets=slice(0, 4), contrasts=[0, 1, 2, 4])
    assert group["n_samples"].sel(position=-1).values.tolist() == [12, 11, 8, 1, 10]
    assert group["n_samples"].sel(set="words", position=-2) == 0
    assert group["n_coincident"].sel(set="good", site="resid_mid", position=-1).values.tolist() == [0, 2, 0]
    assert (group["n_constant_features"].sel(set="good", site="resid_mid") == 1).all()


@each("tile_entries", [1, 7, 28, 1 << 16])
def test_inner_products_do_not_depend_on_the_size_of_tiles(tile_entries):
    rng = np.random.default_rng(0)
    packed, diagonals = rng.normal(size=(5, 3, 28)), rng.normal(size=(5, 3, 7))  # (point, space, …)
    shapes = (({"point": point}, packed[point], diagonals[point]) for point in range(5))
    found, of_spaces, values = similarities(shapes, tile_entries)
    np.testing.assert_allclose(found, np.einsum("pse,qse->spq", packed, packed), rtol=1e-12)
    np.testing.assert_array_equal(of_spaces, diagonals.transpose(1, 0, 2))
    assert values == [{"point": point} for point in range(5)]


def test_identical_samples_have_a_mean_cosine_and_nan_dimensions_in_all_spaces(surveyed):
    _, group, expected = surveyed
    of_set = {name: values for name, values in expected.items() if group[name].dims[0] == "set"}
    compare(group, of_set, sets=slice(4, 5))
    assert (group["n_coincident"].sel(set="same") == 10).all()
    np.testing.assert_allclose(group["mean_cosine"].sel(set="same", space="raw"), 1, rtol=1e-12)


def test_a_set_against_itself_has_medians_and_no_difference(surveyed):
    _, group, expected = surveyed
    of_contrast = {name: values for name, values in expected.items() if group[name].dims[0] == "contrast"}
    compare(group, of_contrast, contrasts=slice(3, 4))


def test_the_flat_table_holds_the_same_numbers(surveyed):
    run, group, _ = surveyed
    assert_same_rows(read_table(run.location, "tables/gram.parquet"), group)


def test_the_first_samples_up_to_the_limit_are_used_and_counted(tmp_path):
    arrays = arrays_of_sets()
    final = finals(arrays)
    contrasts = {"refusal": CONTRASTS["refusal"]}
    few = {name: arrays[name] for name in ("bad", "good")}
    run = store_run(tmp_path, few, 3, contrasts=contrasts, quarantined=QUARANTINED, final=final)
    survey_gram(run, contrasts, GramSpec(samples=7), None, silent)
    group = read_group(run, "gram")
    compare(group, expected_group(few, final, contrasts, group, limit=7))
    assert group["n_samples"].values.tolist() == [[7, 7], [7, 7]]
    assert group.attrs["options"] == {"samples": 7}


def test_variables_that_need_missing_layers_or_sites_are_nan(tmp_path):
    arrays = {"bad": draw(9, ("resid_pre",))}
    rng = np.random.default_rng(3)
    final = {"bad": rng.normal(size=(9, 2, WIDTH)).astype(np.float32)}
    run = store_run(tmp_path, arrays, final=final, model=model_of(5), layers=[1, 2, 4])
    survey_gram(run, {}, GramSpec(), None, silent)
    through = read_group(run, "gram")["sublayer_cka"].sel(output="output")
    assert np.isnan(through.sel(sublayer=["attention", "mlp"])).all()
    of_block = through.sel(sublayer="block")
    assert np.isnan(of_block.sel(layer=2)).all()
    stream = arrays["bad"]["resid_pre"].astype(np.float64)
    for position in (0, 1):
        found = of_block.sel(space="raw").isel(set=0, position=position)
        expected = debiased_cka(stream[:, position, 0], stream[:, position, 1])
        np.testing.assert_allclose(found.sel(layer=1), expected, rtol=1e-9)
        expected = debiased_cka(stream[:, position, 2], final["bad"][:, position].astype(np.float64))
        np.testing.assert_allclose(found.sel(layer=4), expected, rtol=1e-9)


def test_the_output_of_a_block_is_read_from_a_captured_site(tmp_path):
    arrays = {"bad": draw(9, ("resid_pre", "resid_post"))}
    run = store_run(tmp_path, arrays, model=model_of(5), layers=[0, 2, 3])
    survey_gram(run, {}, GramSpec(), None, silent)
    pre, post = (arrays["bad"][site].astype(np.float64) for site in ("resid_pre", "resid_post"))
    expected = [debiased_cka(pre[:, 1, layer], post[:, 1, layer]) for layer in range(3)]
    at = {"set": "bad", "position": -1, "sublayer": "block", "output": "output", "space": "raw"}
    np.testing.assert_allclose(read_group(run, "gram")["sublayer_cka"].sel(at), expected, rtol=1e-9)


def test_a_zero_vector_makes_only_its_own_statistics_nan(tmp_path):
    arrays = {"bad": draw(9), "good": draw(9, seed=1)}
    arrays["bad"]["resid_mid"][4, 1, 1] = 0
    contrasts = {"refusal": contrast("bad", "good")}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    survey_gram(run, contrasts, GramSpec(), None, silent)
    group = read_group(run, "gram")
    on_sphere, at = group.sel(space="sphere"), {"site": "resid_mid", "position": -1, "layer": 1}
    for name in ("mean_cosine", "participation_ratio", "effective_rank", "intrinsic_dimension"):
        assert np.isnan(on_sphere[name].sel(set="bad", **at)), name
        assert int(np.isnan(on_sphere[name]).sum()) == 1, name
    assert np.isnan(on_sphere["silhouette"].sel(contrast="refusal", **at))
    assert np.isnan(on_sphere["linear_cka"].sel(set="bad", **at)).all()
    raw = group.sel(space="raw")
    assert np.isfinite(raw["participation_ratio"]).all()
    assert np.isfinite(raw["silhouette"]).all()


@each("values", [[np.nan], [np.inf], [np.inf, -np.inf]])
def test_a_number_that_is_not_finite_is_named_by_run_set_sample_and_layer(tmp_path, values):
    arrays = {"bad": draw(9), "good": draw(9, seed=1)}
    arrays["good"]["resid_mid"][6, 0, 2, : len(values)] = values
    run = store_run(tmp_path, arrays, model=model_of(20), layers=[3, 11, 17])
    with pytest.raises(RunDamagedError, match=r"tiny-0: .*good.*, resid_mid: .* sample 6 at layer 17 is not finite"):
        survey_gram(run, {}, GramSpec(), None, silent)
    assert finished_groups(run) == {}


def test_the_right_sample_is_named_behind_quarantined_ones(tmp_path):
    arrays = {"bad": draw(9)}
    arrays["bad"]["resid_pre"][[2, 6], 1, 0, 3] = np.nan
    run = store_run(tmp_path, arrays, quarantined={"bad": {2: "why"}})
    with pytest.raises(RunDamagedError, match=r"resid_pre: .* sample 6 at layer 0 is not finite"):
        survey_gram(run, {}, GramSpec(), None, silent)


def test_resid_final_is_checked_to_be_finite(tmp_path):
    arrays = {"bad": draw(9)}
    final = arrays["bad"]["resid_pre"][:, :, -1].copy()
    final[7, 1, 3] = np.nan
    run = store_run(tmp_path, arrays, final={"bad": final})
    with pytest.raises(RunDamagedError, match=r"resid_final: the activation of sample 7 is not"):
        survey_gram(run, {}, GramSpec(), None, silent)


def test_a_flipped_byte_is_refused(tmp_path):
    run = store_run(tmp_path, {"bad": draw(9)})
    shard = tmp_path / "runs/tiny-0/activations.zarr/bad/resid_mid/c/1/0/0/0"
    content = bytearray(shard.read_bytes())
    content[20] ^= 1
    shard.write_bytes(content)
    with pytest.raises(RunDamagedError, match="shard bad/00001, resid_mid: its bytes"):
        survey_gram(run, {}, GramSpec(), None, silent)


def test_a_set_with_all_prompts_quarantined_has_no_shape(tmp_path):
    arrays = {"bad": draw(6), "good": draw(9, seed=1)}
    contrasts = {"refusal": contrast("bad", "good")}
    run = store_run(tmp_path, arrays, contrasts=contrasts, quarantined={"bad": dict.fromkeys(range(6), "why")})
    survey_gram(run, contrasts, GramSpec(), None, silent)
    group = read_group(run, "gram")
    assert group["n_samples"].values.tolist() == [[0, 0], [9, 9]]
    for variable in group.data_vars.values():
        if variable.dtype == np.float64 and variable.name not in ORTHANTS:
            gone = variable.sel(set="bad") if variable.dims[0] == "set" else variable
            assert np.isnan(gone).all(), variable.name


def test_gram_is_computed_again_only_for_other_contrasts_or_options(tmp_path):
    run = store_run(tmp_path, {"bad": draw(6, positions=1), "good": draw(6, positions=1, seed=1)})
    contrasts = {"refusal": contrast("bad", "good")}
    assert survey_gram(run, {}, GramSpec(), None, silent) == ["gram"]
    assert survey_gram(run, {}, GramSpec(), None, silent) == []
    assert survey_gram(run, contrasts, GramSpec(), None, silent) == ["gram"]
    assert np.isfinite(read_group(run, "gram")["silhouette"]).all()
    assert stale_gram(run, contrasts, GramSpec(samples=5)) is not None
