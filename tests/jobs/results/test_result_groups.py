"""The groups of two passes over stored runs, every variable against its definition from the arrays themselves."""

import numpy as np
import pytest
from scipy.stats import binomtest, chi
from sklearn.metrics import roc_auc_score
from support.analysing import analyse
from support.result_cases import (
    ASKED,
    CONTRASTS,
    FEW,
    LAYERS,
    PARALLEL,
    QUARANTINED,
    SEQUENTIAL,
    WIDTH,
    Stored,
    as_captured,
    assert_group,
    assert_same_rows,
    by_differences,
    contrast,
    draw,
    expected_travel,
    model_of,
    silent,
    store,
)
from support.stored import store_run

from theodolite.errors import RunDamagedError
from theodolite.sites import Site
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group
from theodolite.store.tables import read_table
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.statistics.norms import Norm
from theodolite_jobs.statistics.separation import Folds, fisher_ratio


@pytest.fixture(scope="module", params=[2, 5, 100])
def surveyed(request, tmp_path_factory):
    """A run of shards of so many prompts, and all of its groups."""
    stored = store(tmp_path_factory.mktemp("run"), shard_prompts=request.param, contrasts=CONTRASTS)
    analyse(stored.run, CONTRASTS, None, silent, asked=ASKED, norms=norms())
    return stored


def test_travel_equals_its_definition_for_any_chunking(surveyed):
    assert_group(surveyed.run, "travel", expected_travel(surveyed, range(LAYERS), LAYERS, by_differences))


def test_travel_of_parallel_blocks_is_what_was_captured_of_them(tmp_path):
    stored = store(tmp_path, PARALLEL, sets=FEW)
    analyse(stored.run, {}, None, silent, asked={"travel"})
    assert_group(stored.run, "travel", expected_travel(stored, range(LAYERS), LAYERS, as_captured))


def test_travel_of_parallel_blocks_without_their_branches_has_no_such_norms(tmp_path):
    stored = store(tmp_path, ("resid_pre",), sets=FEW)
    analyse(stored.run, {}, None, silent, asked={"travel"})
    nothing = expected_travel(stored, range(LAYERS), LAYERS, lambda _: (lambda _: None, lambda *_: None))
    group = assert_group(stored.run, "travel", nothing)
    assert np.isnan(group["step_norm_attn"]).all()
    assert np.isfinite(group["step_norm_block"].sel(set="words", position=-1)).all()


def test_where_norms_follow_the_sums_the_stream_between_says_nothing_of_branches(tmp_path):
    stored = store(tmp_path, sets=FEW, parity={"post_norm": True})
    analyse(stored.run, {}, None, silent, asked={"travel"})
    nothing = expected_travel(stored, range(LAYERS), LAYERS, lambda _: (lambda _: None, lambda *_: None))
    assert_group(stored.run, "travel", nothing)


@pytest.mark.parametrize(("layers", "n_layers"), [([0, 1, 3], 5), ([0, 2, 3], 4)])
def test_travel_of_some_layers_knows_their_own_blocks_and_no_whole_way(tmp_path, layers, n_layers):
    stored = store(tmp_path, sets=FEW, model=model_of(n_layers), layers=layers)
    analyse(stored.run, {}, None, silent, asked={"travel"})
    group = assert_group(stored.run, "travel", expected_travel(stored, layers, n_layers, by_differences))
    assert group["layer"].values.tolist() == layers
    assert np.isnan(group["path_length"]).all()


def folded(samples, indices):
    of_folds = np.asarray(indices) % 5
    parts = [samples[of_folds == fold] for fold in range(5)]
    means = np.stack([part.mean(axis=0) if len(part) else np.zeros(WIDTH) for part in parts])
    deviations = [np.square(part - mean).sum() for part, mean in zip(parts, means, strict=True)]
    return Folds(np.array([len(part) for part in parts]), means[:, None], np.array(deviations)[:, None])


def mean_or_nothing(samples):
    return samples.mean(axis=0) if len(samples) else np.full(WIDTH, np.nan)


def separated(p, q, of_p, of_q):
    """AUROC, accuracy and Fisher ratio with their intervals, sample by sample and pair by pair."""
    scores = []
    for samples, indices in ((p, of_p), (q, of_q)):
        for sample, index in zip(samples, indices, strict=True):
            a, b = (mean_or_nothing(x[np.asarray(of) % 5 != index % 5]) for x, of in ((p, of_p), (q, of_q)))
            difference = a - b if (a != b).any() else np.full(WIDTH, np.nan)
            scores.append((sample - (a + b) / 2) @ (difference / np.sqrt((difference**2).sum())))
    on_p, on_q = np.array(scores[: len(p)]), np.array(scores[len(p) :])
    found = {}
    if np.isfinite(scores).all():
        area = roc_auc_score([1] * len(p) + [0] * len(q), scores)
        wins = (on_p[:, None] > on_q) + 0.5 * (on_p[:, None] == on_q)
        variance = wins.mean(axis=1).var(ddof=1) / len(p) + wins.mean(axis=0).var(ddof=1) / len(q)
        half = 1.959963984540054 * np.sqrt(variance)
        found["auroc"] = area, max(area - half, 0), min(area + half, 1)
        if area in (0, 1):
            n = min(len(p), len(q))
            share = binomtest(n, n).proportion_ci(method="exact").low
            found["auroc"] = (area, share, 1) if area == 1 else (area, 0, 1 - share)
        right, n = int((on_p > 0).sum() + (on_q < 0).sum()), len(scores)
        wilson = binomtest(right, n).proportion_ci(method="wilson")
        found["accuracy"] = right / n, wilson.low, wilson.high
    ratio = fisher_ratio(folded(p, of_p), folded(q, of_q))  # held against its definition elsewhere
    found["fisher_ratio"] = ratio.value.item(), ratio.low.item(), ratio.high.item()
    return found


def expected_separation(stored, contrasts, sites=SEQUENTIAL, n_layers=LAYERS):
    shape = (len(contrasts), len(sites), 2, n_layers)
    names = [f"{name}{end}" for name in ("auroc", "accuracy", "fisher_ratio") for end in ("", "_low", "_high")]
    expected = {name: np.full(shape, np.nan) for name in names}
    expected |= {f"n_{side}": np.zeros((len(contrasts), 2)) for side in ("positive", "negative")}
    for row, one in enumerate(contrasts.values()):
        sides = [one["positive"], one["negative"]]
        excluded = [sample for side in sides for sample in QUARANTINED.get(side, {})] if one["paired"] else []
        indices = [stored.kept(side, excluded) for side in sides]
        for site, position, layer in np.ndindex(*shape[1:]):
            p, q = (stored.at(side, sites[site], position - 2, layer, excluded) for side in sides)
            if p is None or q is None:
                continue
            expected["n_positive"][row, position], expected["n_negative"][row, position] = len(p), len(q)
            for name, interval in separated(p, q, *indices).items():
                for end, value in zip(("", "_low", "_high"), interval, strict=True):
                    expected[f"{name}{end}"][row, site, position, layer] = value
    return expected


def test_separation_equals_its_definition_for_any_chunking(surveyed):
    group = assert_group(surveyed.run, "separation", expected_separation(surveyed, CONTRASTS))
    at_end = group.sel(position=-1)
    assert at_end["n_positive"].values.tolist() == [12, 12, 8, 12, 12, 1, 6]
    assert at_end["n_negative"].values.tolist() == [12, 13, 12, 12, 12, 13, 13]
    assert np.isnan(at_end["auroc"].sel(contrast=["itself", "mirrored", "lonely"])).all()
    assert np.isfinite(at_end["auroc"].sel(contrast=["refusal", "unpaired", "subject", "still"])).all()


def test_separation_leaves_unsaid_what_fewer_samples_than_folds_cannot_say(tmp_path):
    arrays = {"bad": draw(4), "good": draw(9, seed=1)}
    contrasts = {"few": contrast("bad", "good")}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    stored = Stored(run, arrays, {name: of_set["resid_pre"][:, :, -1] for name, of_set in arrays.items()})
    analyse(run, contrasts, None, silent, asked={"separation"})
    group = assert_group(run, "separation", expected_separation(stored, contrasts))
    assert np.isnan(group["fisher_ratio"]).all()
    assert np.isfinite(group["auroc"]).all()


def test_a_shared_first_token_separates_nothing(tmp_path):
    """What enters the first block is the same vector in all prompts of both sets, unlike in number."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(2, WIDTH)).astype(np.float32)
    arrays = {"bad": draw(13), "good": draw(7, seed=1)}
    for of_set in arrays.values():
        of_set["resid_pre"][:, :, 0] = shared
    contrasts = {"refusal": contrast("bad", "good")}
    run = store_run(tmp_path, arrays, shard_prompts=3, contrasts=contrasts)
    analyse(run, contrasts, None, silent, asked={"separation"})
    at = {"site": "resid_pre", "layer": 0}
    separation, curves, moments = (read_group(run, name).sel(at) for name in ("separation", "curves", "moments"))
    for name in ("auroc", "accuracy", "fisher_ratio"):
        assert np.isnan(separation[name]).all()
    assert (moments["m2"] == 0).all()
    for prefix in ("", "on_sphere_"):
        assert (curves[f"{prefix}variance_max"] == 0).all()
        np.testing.assert_allclose(curves[f"{prefix}cosine_of_means_debiased"], 1, atol=1e-12)
    assert (curves["difference_norm"] == 0).all()


def norms():
    rng = np.random.default_rng(4)
    scale, bias = rng.normal(size=(2, 5, WIDTH))
    rms, none = [Norm("rms", 1e-2, scale[index], np.zeros(WIDTH)) for index in (0, 1)]
    centred, around, last = [Norm("layer", 1e-2, scale[index], bias[index]) for index in (2, 3, 4)]
    pre, mid = Site.RESID_PRE, Site.RESID_MID
    return [
        NormLayer("attention", 0, rms, (pre,), 0),
        NormLayer("mlp_output", 0, none),  # nothing of it was captured
        NormLayer("mlp", 1, centred, (mid,), 1),
        NormLayer("attention_output", 1, around, (mid,), 1, reads=False),
        NormLayer("mlp_output", 2, around, (pre, mid), 2),  # it reads a sum
        NormLayer("final", -1, last, (Site.RESID_FINAL,)),
    ]


def measured(x, place, total_variance):
    """All variables of one norm over (sample, d_model), sample by sample; `total_variance` of what it reads."""
    norm, d = place.norm, WIDTH
    mean, std = (lambda values: np.mean(values)), (lambda values: np.std(values, ddof=1) if len(values) > 1 else np.nan)
    found = {}
    if place.reads:
        centred = [sample - sample.mean() if norm.kind == "layer" else sample for sample in x]
        outputs = np.array([c / np.sqrt((c**2).sum() / d + norm.epsilon) for c in centred])
        squares = np.array([(c**2).sum() / d for c in centred])
        lengths = np.sqrt((x**2).sum(axis=1))
        found["normalized_norm_expected"] = mean(np.sqrt(d * squares / (squares + norm.epsilon)))
        found["worst_deviation"] = 0.0  # but for rounding
        found |= {"norm_before_mean": mean(lengths), "norm_before_std": std(lengths)}
        found |= {"norm_before_min": lengths.min(), "norm_before_max": lengths.max()}
        found["mean_component_before"] = mean(np.abs(x.sum(axis=1)) / np.sqrt(d) / lengths)
        found["relative_spread"] = std(lengths) / mean(lengths)
        found["relative_spread_squared"] = std(lengths**2) / mean(lengths**2)
        found["relative_spread_gaussian"] = np.sqrt(d - chi.mean(d) ** 2) / chi.mean(d)
        found["relative_spread_squared_gaussian"] = np.sqrt(2 / d)
        if total_variance is not None and total_variance > 0:
            found["length_variance_share"] = lengths.var(ddof=1) / total_variance
    else:
        outputs = (x - norm.bias) / norm.scale
    after = np.sqrt((outputs**2).sum(axis=1))
    found |= {"normalized_norm_mean": mean(after), "normalized_norm_std": std(after)}
    found |= {"normalized_norm_min": after.min(), "normalized_norm_max": after.max()}
    found["mean_component_after"] = mean(np.abs(outputs.sum(axis=1)) / np.sqrt(d) / after)
    found["ellipsoid_residual"] = np.abs(after / np.sqrt(d) - 1).max()
    return found


def axes_of(norm):
    centring = np.eye(WIDTH) - 1 / WIDTH if norm.kind == "layer" else np.eye(WIDTH)
    values = np.linalg.eigvalsh(norm.scale[:, None] * centring * norm.scale)[::-1]
    return np.sqrt(np.maximum(values, 0) * WIDTH)


def expected_sphere(stored, places, group):
    sets = list(stored.arrays)
    of_norms = [name for name, variable in group.data_vars.items() if variable.dims == ("set", "position", "norm")]
    expected = {name: np.full((len(sets), 2, len(places)), np.nan) for name in of_norms}
    expected["n_samples"] = np.zeros((len(sets), 2))
    for row, name in enumerate(sets):
        for column, position in enumerate((-2, -1)):
            if stored.end(name, position) is None:
                continue
            expected["n_samples"][row, column] = len(stored.kept(name))
            for index, place in enumerate(places):
                parts = [
                    stored.end(name, position)
                    if site is Site.RESID_FINAL
                    else stored.at(name, str(site), position, place.layer_index)
                    for site in place.sites
                ]
                if not parts:
                    continue
                x = sum(parts[1:], parts[0])
                single = len(parts) == 1 and len(x) > 1
                variance = x.var(axis=0, ddof=1).sum() if single else None
                for variable, value in measured(x, place, variance).items():
                    expected[variable][row, column, index] = value
    expected["semi_axes"] = np.stack([axes_of(place.norm) for place in places])
    expected["scale_radii"] = np.stack([np.sort(np.abs(p.norm.scale))[::-1] * np.sqrt(WIDTH) for p in places])
    expected["centre"] = np.stack([place.norm.bias for place in places])
    return expected


def test_sphere_equals_its_definition_for_any_chunking(surveyed):
    stored, places = surveyed, norms()
    group = read_group(stored.run, "sphere")
    # the least axis of a layer norm is exactly 0; a dense eigenvalue's rounding is 1e-16, its root 1e-8
    semi_axes = group["semi_axes"].values.copy()
    expected = expected_sphere(stored, places, group)
    np.testing.assert_allclose(semi_axes**2, expected["semi_axes"] ** 2, atol=1e-12)
    expected["semi_axes"] = semi_axes
    assert_group(stored.run, "sphere", expected)
    assert group["norm"].values.tolist() == [
        "0.attention",
        "0.mlp_output",
        "1.mlp",
        "1.attention_output",
        "2.mlp_output",
        "final",
    ]
    assert group["norm_kind"].values.tolist() == [place.which for place in places]
    assert group["norm_layer"].values.tolist() == [0, 0, 1, 1, 2, -1]


def test_every_group_at_once_gives_what_each_gives_alone(tmp_path):
    arrays = {"bad": draw(6, positions=1), "good": draw(7, positions=1, seed=1)}
    contrasts = {"refusal": contrast("bad", "good")}
    together, apart = (store_run(tmp_path / name, arrays, contrasts=contrasts) for name in ("together", "apart"))
    names = analyse(together, contrasts, None, silent, asked=ASKED, norms=norms())
    assert set(names) == {"moments", "curves", "directions", *ASKED}
    for name in sorted(ASKED):
        analyse(apart, contrasts, None, silent, asked={name}, norms=norms())
    assert finished_groups(together) == finished_groups(apart)
    for name in names:
        assert read_group(together, name).identical(read_group(apart, name))


@pytest.mark.parametrize("late", ["travel", "sphere"])
@pytest.mark.parametrize("side", ["bad", "good"])
def test_a_group_asked_for_later_does_not_mind_whose_prompt_was_quarantined(tmp_path, side, late):
    """A pair's partner is out of the contrast and not out of its set: the two are read differently."""
    arrays = {"bad": draw(9), "good": draw(9, seed=1)}
    contrasts = {"refusal": contrast("bad", "good", paired=True)}
    run = store_run(tmp_path, arrays, contrasts=contrasts, quarantined={side: {5: "why"}})
    analyse(run, contrasts, None, silent)
    assert analyse(run, contrasts, None, silent, asked={late}, norms=norms()) == [late]


@pytest.mark.parametrize("long", ["bad", "good"])
def test_a_group_asked_for_later_does_not_mind_who_has_more_positions(tmp_path, long):
    arrays = {name: draw(9, positions=2 if name == long else 1, seed=seed) for seed, name in enumerate(("bad", "good"))}
    contrasts = {"refusal": contrast("bad", "good")}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    analyse(run, contrasts, None, silent)
    assert analyse(run, contrasts, None, silent, asked={"travel"}) == ["travel"]


@pytest.mark.parametrize("empty", ["bad", "good"])
def test_a_set_of_which_all_prompts_were_quarantined_has_no_numbers_and_takes_no_others(tmp_path, empty):
    arrays = {"bad": draw(6), "good": draw(9, seed=1)}
    contrasts = {"refusal": contrast("bad", "good")}
    quarantined = {empty: dict.fromkeys(range(len(arrays[empty]["resid_pre"])), "why")}
    run = store_run(tmp_path, arrays, contrasts=contrasts, quarantined=quarantined)
    analyse(run, contrasts, None, silent, asked=ASKED, norms=norms())
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


@pytest.mark.parametrize("kind", list(NOT_FINITE))
def test_a_number_that_is_not_finite_is_named_by_run_shard_sample_and_layer(tmp_path, kind):
    arrays = {"bad": draw(9), "good": draw(9, seed=1)}
    values = NOT_FINITE[kind]
    arrays["good"]["resid_mid"][6, 0, 2, : len(values)] = values
    contrasts = {"refusal": contrast("bad", "good", paired=True)}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    message = r"tiny-0: shard good/00001, resid_mid: .* sample 6 at layer 2 is not finite"
    with pytest.raises(RunDamagedError, match=message):
        analyse(run, contrasts, None, silent, asked=ASKED, norms=norms())
    assert finished_groups(run) == {}


def test_a_number_of_a_later_layer_is_named_by_the_models_layer(tmp_path):
    arrays = {"bad": draw(9)}
    arrays["bad"]["resid_pre"][2, 1, 1, 3] = np.nan
    run = store_run(tmp_path, arrays, model=model_of(20), layers=[3, 11, 17])
    with pytest.raises(RunDamagedError, match=r"shard bad/00000, resid_pre: .* sample 2 at layer 11 is not finite"):
        analyse(run, {}, None, silent)


def test_the_streams_end_is_checked_too_where_it_is_read(tmp_path):
    arrays = {"bad": draw(9)}
    final = arrays["bad"]["resid_pre"][:, :, -1].copy()
    final[7, 1, 3] = np.nan
    run = store_run(tmp_path, arrays, final={"bad": final})
    with pytest.raises(RunDamagedError, match=r"shard bad/00001, resid_final: the activation of sample 7 is not"):
        analyse(run, {}, None, silent, asked={"travel"})


def test_a_zero_vector_takes_the_sphere_from_its_place_and_nothing_else(tmp_path):
    arrays = {"bad": draw(9), "good": draw(9, seed=1)}
    arrays["bad"]["resid_mid"][4, 1, 1] = 0
    contrasts = {"refusal": contrast("bad", "good")}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    analyse(run, contrasts, None, silent, asked=ASKED, norms=norms())
    curves = read_group(run, "curves")
    at = {"site": "resid_mid", "layer": 1, "position": -1}
    assert np.isnan(curves["on_sphere_variance_mean"].sel(set="bad", **at))
    assert np.isnan(curves["on_sphere_cosine_of_means"].sel(contrast="refusal", **at))
    assert np.isfinite(curves["variance_mean"].sel(at)).all()
    assert int(np.isnan(curves["on_sphere_variance_mean"]).sum()) == 1
    assert np.isnan(read_group(run, "sphere")["mean_component_before"].sel(set="bad", position=-1, norm="1.mlp"))


def test_flat_tables_hold_the_same_numbers(tmp_path):
    arrays = {"bad": draw(6), "good": draw(7, positions=1, seed=1)}
    contrasts = {"refusal": contrast("bad", "good")}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    analyse(run, contrasts, None, silent, asked=ASKED, norms=norms())
    for name in ("curves", *sorted(ASKED)):
        assert_same_rows(read_table(run.location, f"tables/{name}.parquet"), read_group(run, name))


def test_the_table_of_growth_fits_norms_and_variances_along_depth_in_blocks(tmp_path):
    rng, layers = np.random.default_rng(0), np.arange(6)
    arrays = {"bad": draw(8, layers=6), "good": draw(5, layers=6, seed=1)}
    for of_set in arrays.values():
        for half, values in enumerate(of_set.values()):
            along = layers + half / 2
            values[:] = rng.normal(size=values.shape) * np.exp(0.3 * along)[:, None]
    contrasts = {"refusal": contrast("bad", "good")}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    analyse(run, contrasts, None, silent, asked={"travel"})
    table = read_table(run.location, "tables/growth.parquet")
    assert len(table) == 3 * 2 * 2 * 2 * 2  # quantities, sets, sites, positions, laws
    moments, curves = (read_group(run, name) for name in ("moments", "curves"))
    groups = {"norm_mean": moments, "variance_mean": curves, "variance_max": curves}
    for row in table.to_dict("records"):
        at = {dim: row[dim] for dim in ("set", "site", "position")}
        y = groups[row["quantity"]][row["quantity"]].sel(at).values
        depths = layers + (row["site"] == "resid_mid") / 2
        y, depths = (y, depths) if row["site"] == "resid_mid" else (y[1:], depths[1:])  # depth 0 has no logarithm
        x = depths if row["law"] == "log_linear" else np.log(depths)
        design = np.stack([np.ones(len(x)), x], axis=1)
        (intercept, slope), *_ = np.linalg.lstsq(design, np.log(y), rcond=None)
        left = ((np.log(y) - intercept - slope * x) ** 2).sum()
        expected = [intercept, slope, 1 - left / (len(y) * np.log(y).var()), len(y) * np.log(left / len(y)) + 6]
        found = [row[name] for name in ("intercept", "slope", "r_squared", "aic")]
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)
        assert row["n"] == len(y)


def test_growth_is_fitted_again_with_what_is_there_already(tmp_path):
    arrays = {"bad": draw(8, ("resid_pre",), positions=1, layers=6)}
    here, there = store_run(tmp_path / "a", arrays), store_run(tmp_path / "b", arrays)
    analyse(here, {}, None, silent, asked={"travel"})
    analyse(there, {}, None, silent)
    assert analyse(there, {}, None, silent, asked={"travel"}) == ["travel"]
    first, second = (read_table(run.location, "tables/growth.parquet") for run in (here, there))
    assert first.equals(second)
    assert len(first) == 3 * 2


def test_without_contrasts_groups_of_sets_are_whole(tmp_path):
    run = store_run(tmp_path, {"bad": draw(8, positions=1)})
    analyse(run, {}, None, silent, asked=ASKED, norms=norms())
    assert np.isfinite(read_group(run, "travel")["path_ratio"]).all()
    assert read_group(run, "separation")["auroc"].shape == (0, 2, 1, 3)
    assert set(read_table(run.location, "tables/sphere.parquet")["set"]) == {"bad"}
