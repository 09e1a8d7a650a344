"""The headlines of all sections: one short sentence that agrees with the section's other sentences."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from support.analysed_runs import draw, silent
from support.analysing import analyse, survey_gram
from support.each import each
from support.finished_runs import cached_run, merged
from support.sentences import assert_each_says, assert_says
from support.stored import store_run

from theodolite.groups import GROUPS, SHOWN
from theodolite.groups.heads import sections_composition, sections_rotary
from theodolite.groups.logit_lens import sections as logit_lens
from theodolite.groups.weights import sections as weights
from theodolite.groups.words import sections as words
from theodolite.groups.words import sections_biases, sections_nouns
from theodolite.sections.catalogue import sections_of, shown_groups
from theodolite.spec_options import GramSpec
from theodolite.store.cache import Cache

NAN = np.nan
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]\d+)?")


def headline_of(section):
    """Return the headline of a section after the checks that hold for each."""
    text = section.headline
    assert len(text.split()) <= 25, text
    assert not re.search(r"\bnan\b", text), text
    assert text.endswith(".") or not text
    stated = set(_NUMBER.findall(" ".join([*section.facts, section.finding])))
    assert set(_NUMBER.findall(text)) <= stated, (text, stated)
    return text


def headlines(run, group):
    return [headline_of(section) for section in sections_of(run, group)]


def assert_headlines(run, group, *said):
    """Fail unless the headlines of a group say these numbers and key words; without any, the headline is empty."""
    found = headlines(run, group)
    assert [bool(text) for text in found] == [bool(one) for one in said], found
    assert_each_says(found, *said)


CONTRASTS = {"refusal": {"positive": "bad", "negative": "good", "paired": False}}


def computed(folder, bad, good, *requested):
    """Return a run with computed results of two sets."""
    run = store_run(folder, {"bad": bad, "good": good}, contrasts=CONTRASTS)
    analyse(run, CONTRASTS, None, silent, requested={"separation", "basis", *requested} - {"gram"})
    if "gram" in requested:
        survey_gram(run, CONTRASTS, GramSpec())
    return replace(run, cache=Cache(2**26))


COMPUTED = ("separation", "curves", "directions", "gram", "travel", "basis")


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """Two sets of 30 prompts that are far apart."""
    return computed(tmp_path_factory.mktemp("far"), draw(30), draw(30, seed=1, shift=1.4), "travel", "gram")


@each("group", COMPUTED)
def test_computed_results_have_headlines(far, group):
    texts = headlines(far, group)
    assert texts
    assert all(texts)


def constant(arrays):
    return {site: np.broadcast_to(values[:1], values.shape).copy() for site, values in arrays.items()}


CONSTANT = "same activations … nothing can be concluded"


@each(
    "bad, good, expected",
    [
        (
            draw(12),
            draw(12),
            {"curves": "not shown to differ", "separation": "no direction can be fitted"},
        ),
        (
            constant(draw(12)),
            constant(draw(12, seed=1)),
            {"curves": CONSTANT, "separation": CONSTANT},
        ),
        (
            draw(1),
            draw(1, seed=1),
            {"separation": "no direction can be fitted", "basis": "nothing can be concluded"},
        ),
        (
            draw(2),
            draw(2, seed=1),
            {"separation": "not shown to separate", "basis": "nothing can be concluded"},
        ),
    ],
)
def test_results_of_unfit_prompts_promise_nothing(tmp_path, bad, good, expected):
    """At one layer, so that a curve has few depths."""
    bad, good = ({site: values[:, :, :1] for site, values in one.items()} for one in (bad, good))
    run = computed(tmp_path, bad, good)
    found = {group: headlines(run, group) for group in shown_groups(run)}
    for group, said in expected.items():
        assert found[group]
        assert_each_says(found[group], *[said] * len(found[group]))


def test_sets_without_a_variance_have_no_shape(tmp_path):
    ratios = np.full((2, 2, 1, 4), NAN)
    run = cached_run(tmp_path, {"curves": {}, "gram": {}})
    assert_headlines(run, "gram", "harmful and harmless … nothing can be concluded")
    ratios[1] = 20.25
    shape = {"participation_ratio": {"raw": ratios, "standardised": 25.0}, "mean_cosine": {"raw": 0.9}}
    shape |= {"participation_ratio_gaussian": 90.0}
    (text,) = headlines(cached_run(tmp_path / "one", {"curves": {}, "gram": shape}), "gram")
    assert_says(text, "participation ratio … harmless 20.2 … Gaussian … 90")
    assert "harmful" not in text


# Depths are 0 pre, 0 mid, …: (site, position, layer).
DEPTHS = np.linspace(0.6, 0.95, 8).reshape(4, 2).T[:, None]
COSINE = 1 - DEPTHS / 10
TESTED = {
    "tested_null": {"auroc": {"mean": 0.5, "sd": 0.02, "z": 9.0, "p_family": 0.005}},
    "tokens": {"auroc": {"means": {"value": 0.566, "low": 0.52, "high": 0.61}}},
    "tokens_null": {"auroc": {"p": 0.4}},
    "tokens_is_ridge": {"auroc": 0.0},
    "n_used": [64, 63],
}


def curves_of(high=0.001, located=NAN):
    ends = {"value": COSINE, "band_low": COSINE - 0.002, "band_high": COSINE + high}
    return {
        "cosine_of_means_debiased": {end: {"raw": values} for end, values in ends.items()},
        "cosine_of_means_debiased_location": {"raw": located},
        "n_used": [64, 63],
    }


@each(
    "high, located, expected",
    [
        (0.001, DEPTHS == 0.95, "means differ most at layer 3 mid … cosine 0.9050 [0.9030, 0.9060]"),
        (0.001, 1.0, "means differ in direction … cosine 0.9050 [0.9030, 0.9060] … layer 3 mid"),
        (0.2, 1.0, "means are not shown to differ … cosine 0.9050 [0.9030, 1.1050] … layer 3 mid"),
        (NAN, 1.0, "smallest debiased cosine of the means … 0.9050 … layer 3 mid"),
    ],
)
def test_means_differ_only_below_the_simultaneous_interval(tmp_path, high, located, expected):
    assert_headlines(cached_run(tmp_path, {"curves": curves_of(high, located)}), "curves", expected)


def test_a_cosine_without_a_resolved_value_has_no_number(tmp_path):
    run = cached_run(tmp_path, {"curves": {"cosine_of_means": {"raw": 0.9}, "n_used": 2}})
    assert_headlines(run, "curves", "noise is larger than the means … nothing can be concluded")
    assert_headlines(cached_run(tmp_path / "none", {"curves": {"n_used": 2}}), "curves", "")


def separation_of(folder, tests, n=(64, 63)):
    values = {"auroc": {"value": DEPTHS, "band_low": DEPTHS - 0.1, "band_high": 0.99}, "n_used": list(n)}
    groups = {"curves": {}, "moments": {}, "directions": {}, "separation": values}
    (text,) = headlines(cached_run(folder, groups | ({"permutations": tests} if tests else {})), "separation")
    return text


FAILED = {"tested_null": {"auroc": {"z": 0.5, "p_family": 0.3}}}
LARGEST = "AUROC 0.950 [0.850, 0.990] at layer 3 mid"
SEPARATE, NOT_SHOWN = f"sets separate better than chance … {LARGEST}", f"not shown to separate … {LARGEST}"


def test_the_sets_separate_only_if_the_test_passes(tmp_path):
    words_alone = "token counts alone … 0.566"
    assert_says(separation_of(tmp_path / "yes", TESTED), f"{SEPARATE} … {words_alone}")
    failed = merged(TESTED, FAILED)
    assert_says(separation_of(tmp_path / "no", failed), f"{NOT_SHOWN} … p = 0.3 … {words_alone}")
    unknown = merged(failed, {"tested_null": {"auroc": {"p_family": NAN}}})
    assert_says(separation_of(tmp_path / "unknown", unknown), f"{NOT_SHOWN} … {words_alone}")
    assert_says(separation_of(tmp_path / "few", failed, (3, 3)), f"too few to test … {LARGEST}")
    untested = separation_of(tmp_path / "untested", None)
    assert_says(untested, SEPARATE)
    assert "token" not in untested


def test_separation_stands_beside_that_by_words(tmp_path):
    beyond = {"beyond": {"words": {"auroc": {"value": DEPTHS - 0.7, "band_low": DEPTHS - 0.8, "band_high": 0.4}}}}
    exceeded = "token counts alone … 0.566 … exceeded at 3 of 8 depths"
    assert_says(separation_of(tmp_path / "beyond", merged(TESTED, beyond)), f"{SEPARATE} … {exceeded}")
    weak = merged(TESTED, {"tokens_equal_pairs": 0.9})
    assert_says(separation_of(tmp_path / "weak", weak), f"{SEPARATE} … token counts … weak control … 0.566")


@each(
    "p, said",
    [
        (0.02, "ridge regression alone separates … 0.950 [0.850, 0.990] … difference of means is not shown"),
        (0.04, f"{NOT_SHOWN} … p = 0.3 … token counts alone … 0.566"),
    ],
)
def test_ridge_regression_alone_passes_as_one_of_two_tests(tmp_path, p, said):
    """Two tests have half the level each."""
    null = {"ridge_auroc": {"mean": 0.5, "sd": 0.02, "z": 4.0, "p_family": p}}
    of_ridge = {"value": DEPTHS, "band_low": DEPTHS - 0.1, "band_high": 0.99}
    ridge = {"score_auroc": {"ridge": of_ridge}, "tested_null": null}
    text = separation_of(tmp_path, merged(merged(TESTED, FAILED), ridge))
    assert_says(text, said)
    assert ("idge" in text) == ("ridge" in said)


@each("lowest, counts", [(0.2, "7 of 8"), (0.6, "8 of 8")])
def test_reliable_depths_of_a_direction_are_counted(tmp_path, lowest, counts):
    reliability = np.where(DEPTHS == 0.6, lowest, 0.9)
    run = cached_run(tmp_path, {"curves": {}, "directions": {"reliability": reliability, "noise_share": 0.5}})
    said = f"reliable … at least 0.5 … {counts} depths … {lowest:.2f} … layer 0 pre"
    assert_headlines(run, "directions", said)


HEADS = {"effective_rank": 1.5, "effective_rank_random": 1.8, "direction_alignment": 0.5, "singular_values": 1.0}
RANKS = "effective rank … at most 2 … QK 1.5 … OV 1.5 … random weights 1.8"


@each("p, counts", [(0.01, "8 of 8"), (0.2, "0 of 8")])
def test_heads_that_write_along_the_direction_are_counted(tmp_path, p, counts):
    null = {"mean": 0.25, "sd": 0.125, "z": 4.0, "p_family": p, "p_low_family": 1.0}
    groups = {"curves": {}, "directions": {"reliability": 0.9}, "heads": HEADS | {"direction_alignment_null": null}}
    run = cached_run(tmp_path, groups, attributes={"notes": []})
    said = f"{RANKS} … alignment with “refusal” above chance in {counts} heads"
    assert_headlines(run, "heads", said)


@each(
    "widths, circuits, random, expected",
    [
        ([], {}, NAN, "effective rank … at most 2 … QK 1.5 … OV 1.5"),
        (
            [],
            {one: {"largest_rank": 2 + index, "effective_rank_random": 1.9} for index, one in enumerate(("qk", "ov"))},
            NAN,
            "effective rank … QK 1.5 of 2 … random weights 1.9 … OV 1.5 of 3 … random weights 1.9",
        ),
        ([(1, [0]), (2, [1, 2, 3])], {}, NAN, "effective rank of OV … 1.5 of 1 … 1.5 of 2"),
        ([(1, [0]), (2, [1]), (2, [2, 3])], {}, NAN, ""),
    ],
)
def test_ranks_of_heads_that_differ_have_their_own_limits(tmp_path, widths, circuits, random, expected):
    values = HEADS | {"effective_rank_random": random, "direction_alignment": NAN}
    attributes = {
        "notes": [],
        "widths": [{"width": width, "layers": layers} for width, layers in widths],
        "circuits": circuits,
    }
    groups = {"curves": {}, "directions": {}, "heads": values}
    assert_headlines(cached_run(tmp_path, groups, attributes=attributes), "heads", expected)


def rotary(ranks):
    dims = ("circuit", "offset", "layer", "head")
    labels = {"circuit": ["qk", "ov", "rotary"], "offset": [0], "layer": range(2), "head": range(2), "rank": range(64)}
    attributes = {"circuits": {"rotary": {"effective_rank_random": 60.26}}, "rotary_notes": ["folded"]}
    spectra = np.ones((*(len(labels[dim]) for dim in dims), 64))
    variables = {
        "effective_rank": (dims, np.broadcast_to(ranks, (3, 1, 2, 2))),
        "singular_values": ((*dims, "rank"), spectra),
    }
    return xr.Dataset(variables, labels, attributes)


def test_the_rotary_part_has_its_rank_beside_that_of_random_matrices():
    (section,) = sections_rotary.rotary_sections(rotary([[50.0, 40.0], [NAN, 62.0]]))
    assert_says(headline_of(section), "rotary part … at most 64 … 50.0 … random matrices … 60.3 … 2 of 3 heads … less")
    (zero,) = sections_rotary.rotary_sections(rotary(NAN))
    assert_says(headline_of(zero), "all heads … zero")


def test_composition_has_its_largest_and_median_scores(monkeypatch):
    score = np.full((3, 2, 2, 2, 2), NAN)
    score[:2, 0, :, 1, :] = [[0.1, 0.2], [0.3, 0.1]]
    dims = GROUPS["composition"].variables[0].dims
    labels = {"layer": [4, 5], "head": [0, 1], "layer_other": [4, 5], "head_other": [0, 1]}
    group = xr.Dataset({"score": (dims, score)}, {"composition": ["q", "k", "v"], **labels})
    monkeypatch.setattr(sections_composition, "finished_groups", lambda _: {"composition": "digest"})
    monkeypatch.setattr(sections_composition, "read_group", lambda *_: group)
    (section,) = sections_composition.composition_sections(None, 100)
    said = "largest composition … Q 0.300, K 0.300 … medians Q 0.150, K 0.150 … random directions … 0.100"
    assert_says(headline_of(section), said)


SHARES = np.array([[0.1, 0.0], [0.05, 0.0], [0.0, 0.0], [0.3, 0.05]])  # (layer, head)
CONTRIBUTIONS = {
    "n_used": [20, 21],
    "head_share": SHARES,
    "head_share_null": {"mean": SHARES / 2, "z": 4.0, "p_family": np.where(SHARES == 0.3, 0.01, 0.4)},
    "mlp_share": 0.125,
    "mlp_share_null": {"mean": 0.125, "z": 0.0, "p_family": 0.9},
    "embedding_share": 0.0,
    "embedding_share_null": {"mean": 0.0},
    "total": {"head": 0.5, "mlp": 0.5},
    "total_null": {"mean": 0.5, "sd": 0.1, "z": 0.0, "p": 0.9},
    "final_difference": 12.5,
}
WRITE = "heads write 50.0 % … L3H0 30.0 % … MLPs 50.0 % … "


@each(
    "changes, expected",
    [
        ({}, f"{WRITE}above chance … 1 of 8 heads … 0 of 4 MLPs"),
        ({"head_share_null": {"p_family": 0.4}}, f"{WRITE}above chance … 0 of 8 heads … 0 of 4 MLPs"),
        (
            {"head_share_null": {"p_family": NAN}, "mlp_share_null": {"p_family": NAN}},
            f"{WRITE}no share is tested",
        ),
        (
            {"mlp_share": np.array([0.5, NAN, 0.0, 0.0])},
            "heads write 50.0 % … measured MLPs 50.0 % … above chance … 1 of 8 heads … 0 of 4 MLPs",
        ),
        ({"total": NAN}, ""),
        (
            {"final_difference": NAN, "head_difference": 1.0},
            "no shares … need all layers",
        ),
    ],
)
def test_parts_above_chance_are_counted(tmp_path, changes, expected):
    groups = {"curves": {}, "contributions": merged(CONTRIBUTIONS, changes), "directions": {"reliability": 0.9}}
    assert_headlines(cached_run(tmp_path, groups), "contributions", expected)


# Adding the difference moves the log-odds of both sets at all depths, and from layer 2 on farther than the controls.
SIGN = np.array([-1.0, 1.0])
MOVED = SIGN[:, None, None, None]
P = np.full((2, 2, 4, 3, 2), 0.6)  # (prompt_side, site, layer, intervention, control)
P[:, :, 2:, 2] = 0.048
SCATTERED, ONE_KIND = P.copy(), P.copy()
SCATTERED[:, :, 3] = 0.6
ONE_KIND[..., 1] = NAN
EFFECTS = {
    "n_used": 12,
    "intact_log_odds": {"value": SIGN, "low": SIGN, "high": SIGN},
    "intact_probability": 0.5,
    "intact_difference": {"value": 2.0, "low": 1.0, "high": 3.0},
    "expected_sign": SIGN,
    "effect": {
        "kl": {"value": 0.2, "low": 0.1, "high": 0.3},
        "log_odds": {"value": MOVED, "low": MOVED - 0.5, "high": MOVED + 0.5},
    },
    "effect_null": {
        "kl": {"mean": 0.02, "sd": 0.005, "z": 0.5, "p": 0.6, "p_family": 0.6},
        "log_odds": {"mean": 0.01, "sd": 0.02, "z": 1.0, "p": P, "p_family": P},
    },
    "control_variance": 0.9,
    "effective_controls": 12.0,
}
TEXTS = {
    "options": {"controls": 20},
    "available": {"refusal@-1": [40, 12]},
    "full_route": {},
    "excluded_pairs": {},
    "tokens": {"refusal": ["I"], "answer": ["Sure"]},
    "patch": {"refusal@-1": "mean"},
}
KL, MAY_BE_EQUAL = "KL divergence … exceeds all controls", "log-odds may be equal (12 and 12 prompts)"
MOVES = "adding the direction exceeds"
USES = "the model uses it (12 and 12 prompts)"
NO_SIGN = {"expected_sign": NAN}


@each(
    "changes, expected",
    [
        ({}, f"depths from 2 pre on … {MOVES} all controls … {USES}"),
        (
            {"effect_null": {"log_odds": {"p_family": ONE_KIND}}},
            f"depths from 2 pre on … {MOVES} one kind of controls … {USES}",
        ),
        (
            {"effect_null": {"log_odds": {"p_family": SCATTERED}}},
            f"{MOVES} all controls … at 2 of 8 depths … not at the last (12 and 12 prompts)",
        ),
        (
            {"effect_null": {"log_odds": {"p_family": 0.6}}},
            f"{MOVES} all controls … at 0 of 8 depths … not shown (12 and 12 prompts)",
        ),
        (
            {"effect_null": {"log_odds": {"p_family": NAN, "z": NAN}}},
            "controls cannot be compared … not shown that the model uses the direction",
        ),
        (NO_SIGN, f"{KL} at 0 of 8 depths … {MAY_BE_EQUAL}"),
        (NO_SIGN | {"effect_null": {"kl": {"p_family": 0.01}}}, f"{KL} at 8 of 8 depths … {MAY_BE_EQUAL}"),
        (NO_SIGN | {"effect_null": {"kl": {"p_family": NAN, "z": NAN}}}, "not tested whether the model uses"),
    ],
)
def test_the_model_uses_a_direction_only_beyond_all_controls(tmp_path, changes, expected):
    groups = {"curves": {}, "directions": {"direction": 0.35}, "moments": {}, "effects": merged(EFFECTS, changes)}
    assert_headlines(cached_run(tmp_path, groups, attributes=TEXTS), "effects", expected)


def experts(changes):
    used = np.array([[NAN] * 3, [1.0, 0.9, 0.1], [0.5, 0.75, 0.75], [NAN] * 3])  # (layer, expert)
    p = np.array([[NAN] * 3, [NAN, 0.005, 0.005], [0.7, 1.0, 1.0], [NAN] * 3])
    values = {
        "n_samples": 20,
        "expert_share": {"value": used, "low": used, "high": used},
        "n_used": 20,
        "expert_difference": {"value": used / 2, "low": 0.0, "high": 1.0},
        "expert_difference_null": {"mean": 0.12, "sd": 0.08, "z": np.where(np.isnan(p), NAN, 2.0), "p_family": p},
    }
    return merged(values, changes)


@each(
    "changes, expected",
    [
        ({}, "2 of 5 experts … 1 of 2 layers … used more in one set"),
        ({"expert_difference_null": {"p_family": NAN}}, "nothing can be concluded"),
    ],
)
def test_experts_that_differ_are_counted(tmp_path, changes, expected):
    run = cached_run(tmp_path, {"curves": {}, "routing": experts(changes)})
    shares = "largest share … harmful 100.0 % … harmless 100.0 % … equal use … 66.7 %"
    assert_headlines(run, "routing", shares, expected)


@each("n_layers, is_known", [(3, True), (1, False)])
def test_overlaps_of_neighbouring_layers_stand_beside_random_matrices(monkeypatch, n_layers, is_known):
    labels = {"writing_matrix": ["o", "down"], "layer": range(n_layers), "layer_other": range(n_layers)}
    readers = {"writing_matrix": ["o", "down"], "reading_matrix": ["q", "up"], "layer": range(n_layers)}
    readers["layer_other"] = range(n_layers)

    def overlaps(dims):
        shape = [len(of_dim) for of_dim in dims.values()]
        of_matrices = np.array([0.25, 0.125]).reshape(2, *[1] * (1 + len(shape)))
        later = np.triu(np.ones((n_layers, n_layers)), 1)
        return ("matrices", "form", *dims), np.broadcast_to(of_matrices, (2, 2, *shape)) * np.where(later, 1.0, NAN)

    variables = {"writing_overlap": overlaps(labels), "writer_reader_overlap": overlaps(readers)}
    own = {dim: list(of_dim) for dim, of_dim in GROUPS["weights"].labels.items()} | {"expert_or_shared": []}
    group = xr.Dataset({**variables, "random_overlap": ("null", [0.05, 0.01])}, {**readers, **own}, {"rank": 2})
    monkeypatch.setattr(weights, "read_group", lambda *_: group)
    (section,) = weights.sections(None)
    text = headline_of(section)
    assert bool(text) == is_known
    if is_known:
        overlap = "25.0 % … random matrices 12.5 %"
        assert_says(text, f"overlap … neighbouring layers … W_O {overlap} … W_down {overlap} … not tested")


AXES = np.array([[4.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0]])
SPHERE = {"euclidean_norm": 1.0, "ellipsoid_residual": 1e-5, "semi_axes": AXES, "scale_radii": AXES, "n_samples": 64}
FITTED = {"relative_spread": {"norm": 0.084}, "relative_spread_null": {"norm": {"fitted_gaussian": 0.076}}}


@each(
    "changes, expected",
    [
        (FITTED, "norm … varies by at most 8.40 % over harmful prompts … Gaussian … 7.60 %"),
        ({"relative_spread": FITTED["relative_spread"]}, "norm … varies by at most 8.40 % over harmful prompts"),
        ({}, "95 % quantile … at most 2.4 times the 5 % quantile … median … 2.4"),
        ({"semi_axes": NAN}, ""),
    ],
)
def test_the_spread_of_norms_stands_beside_a_gaussian(tmp_path, changes, expected):
    assert_headlines(cached_run(tmp_path, {"curves": {}, "sphere": SPHERE | changes}), "sphere", expected)


def path(index, last):
    stream = {"site": ["resid_pre", "resid_final"], "depth": [0, 4], "next_is_special": False, "index": index}
    ranks = {"rank_of_next": [2140, last], "token": "one", "next_token": "stone", "sentence": 0}
    angles = {"angle_to_final": [80.0, 0.0], "angle_to_next": [93.0, 83.0], "angle_to_next_z": NAN}
    return pd.DataFrame(stream | ranks | angles)


def word_tables(distance):
    lists = [(noun, place) for noun in range(2) for place in range(2)]
    rows = pd.DataFrame(lists, columns=["noun_id", "place"]).assign(
        layer=0, head=0, noun="cat", token="dog", token_id=1
    )
    scores = pd.DataFrame([(q, k) for q in range(2) for k in range(2)], columns=["noun_id", "key_id"])
    biases = [("query", end, place, " a", 1.0 + place) for end in ("top", "bottom") for place in range(2)]
    return {
        "trajectories": pd.concat([path(0, 5), path(1, 1)]),
        "noun_scores": scores.assign(layer=0, head=0, noun="cat", key="dog", similarity=1.0, score=1.0),
        "noun_keys": rows,
        "noun_values": rows.assign(head=-1),
        "noun_alignment": pd.DataFrame(
            {"noun_id": range(2), "noun": "cat", "nearest_before": "a", "nearest_after": "b"}
        ),
        "bias_tokens": pd.DataFrame(biases, columns=["side", "end", "place", "token", "score"]).assign(layer=0, head=0),
        "embedding_sphere": pd.DataFrame(
            {
                "setting": ["original"],
                "n": 9,
                "cosine_distance_mean": distance,
                "cosine_distance_std": 0.0,
                "l2_mean": 20.8,
                "l2_std": 1.0,
            }
        ),
        "norm_tokens": pd.DataFrame(columns=["place", "measure", "end"]),
    }


def words_group(p):
    labels = {"layer": [0], "head": [0, 1], "control": ["permuted", "random"], "null": ["mean", "sd", "z", "p_family"]}
    of_heads = ("layer", "head")
    null = np.array([[[0.1, 0.02, 6.0, p], [0.2, 0.05, 3.0, p]], [[0.1, 0.02, 1.0, 0.9], [0.2, 0.05, 1.0, 0.9]]])
    variables = {
        "relatedness": (of_heads, [[0.25, 0.12]]),
        "relatedness_null": ((*of_heads, "control", "null"), null[None]),
        **{name: (of_heads, [[0.5, 0.25]]) for name in ("own_first", "own_keys")},
        "own_first_null": ((*of_heads, "null"), null[None, :, 0]),
    }
    attributes = {"nouns": 2, "tokens": 2, "nouns_dropped": [], "own_keys_chance": 0.01, "decoded_against": "W_U"}
    tables = ["trajectories", "noun_keys", "noun_values", "noun_alignment", "noun_scores", "bias_tokens"]
    return xr.Dataset(variables, labels, attributes | {"tables": tables})


@each(
    "p, distance, counts, vocabulary",
    [
        (0.01, 0.0, "1 of 2", "by construction … only an embedding's length … 20.8"),
        (0.3, 0.25, "0 of 2", "1 - cosine … 0.2500 … equal directions give 0"),
    ],
)
def test_words_have_headlines(tmp_path, monkeypatch, p, distance, counts, vocabulary):
    tables = word_tables(distance)
    for module in (words, sections_biases, sections_nouns):
        monkeypatch.setattr(module, "read_words", lambda _, name, filters=(): tables[name])
    monkeypatch.setattr(words, "read_group", lambda *_: words_group(p))
    run = cached_run(tmp_path, {"curves": {}})
    options = run.record.spec.words_options.model_copy(update={"sentences": ["To kill two birds with one stone"]})
    spec = run.record.spec.model_copy(update={"words": options})
    run = replace(run, record=run.record.model_copy(update={"spec": spec}))
    assert_each_says(
        [headline_of(section) for section in words.sections(run)],
        "rank 2140 at the first depth … 1 at the last … 1 of 2 paths",
        f"in {counts} heads … shown to exceed permuted nouns and random matrices … L0H0 … 0.25 … 0.10 … 0.20",
        "largest scores that biases add … 1 to queries … median head 1",
        vocabulary,
    )


@each(
    "z, said",
    [
        (9.0, "At layer 2 pre … raises “sorry” … lowers “sure”"),
        (4.9, "At layer 2 pre … no listed token … beyond chance … 5.0"),
        (NAN, "At layer 2 pre … no listed token … beyond chance … 5.0"),
    ],
)
def test_tokens_of_a_direction_are_named_only_beyond_chance(tmp_path, monkeypatch, z, said):
    rows = [
        {"site": "resid_pre", "layer": 2, "depth": 4, "end": end, "place": 0}
        | {"token": token, "change": sign, "z": sign * z}
        for end, token, sign in (("raised", " sorry", 1.0), ("lowered", "sure", -1.0))
    ]
    monkeypatch.setattr(logit_lens, "read_direction_tokens", lambda *_: pd.DataFrame(rows))
    attributes = {"limit": 5.0, "soft_cap": False}
    run = cached_run(tmp_path, {"curves": {}, "logit_lens": {}}, attributes=attributes)
    assert_headlines(run, "logit_lens", said)


def test_every_shown_analysis_has_a_headline_here():
    planted = {"heads", "contributions", "effects", "routing", "weights", "sphere", "logit_lens", "words"}
    in_their_own_file = {"probes"}
    assert {*COMPUTED, *planted, *in_their_own_file} == set(SHOWN)
