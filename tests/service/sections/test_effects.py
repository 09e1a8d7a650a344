"""Sentences and figures of effects: each effect is stated beside that of its controls."""

import numpy as np
import pytest
from support.finished_runs import cached_run, merged
from support.sentences import assert_says

from theodolite.groups.effects import sections as effects
from theodolite.query.exports import read_directions
from theodolite.sections.catalogue import section_items

# The dimensions are (contrast, position, prompt_side, site, layer, intervention[, control]); 8 places, resid_pre and
# resid_mid of four layers. Adding the difference moves the log-odds of both sets from layer 2 on.
MOVED = np.zeros((2, 2, 4, 3)) + np.array([0.1, 0.2, 1.5, 2.0])[:, None]
MOVED[1] += 0.25  # negative prompts move farther
SIGN = np.array([-1.0, 1.0])
P = np.full((2, 2, 4, 3, 2), 0.6)
P[:, :, 2:, 2] = 0.048
Z = np.full((2, 2, 4, 3, 2), 0.5)
Z[:, :, 2:, 2] = np.array([6.0, 7.0])[:, None]
LOG_ODDS = SIGN[:, None, None, None] * MOVED
KL = np.zeros((2, 2, 4, 3)) + np.array([0.01, 0.02, 0.03, 0.04])[:, None]
BLOCK = np.array([0.2, 0.9, 0.4, 0.3])
VALUES = {
    "n_used": 12,
    "intact_log_odds": {
        "value": np.array([1.0, -2.0]),
        "low": np.array([0.5, -2.5]),
        "high": np.array([1.5, -1.5]),
    },
    "intact_probability": np.array([0.75, 0.5]),
    "intact_difference": {"value": 3.0, "low": 2.8, "high": 3.2},
    "expected_sign": SIGN,
    "effect": {
        "kl": {"value": KL, "low": KL * 0.5, "high": KL * 2},
        "log_odds": {"value": LOG_ODDS, "low": LOG_ODDS - 0.05, "high": LOG_ODDS + 0.05},
    },
    "effect_null": {
        "kl": {"mean": 0.02, "sd": 0.005, "z": 0.5, "p": 0.6, "p_family": 0.6},
        "log_odds": {"mean": 0.01, "sd": 0.02, "z": Z, "p": P, "p_family": P},
    },
    "half_dose": {
        "value": np.array([np.nan, np.nan, 1.5, 0.75]),
        "low": np.array([np.nan, np.nan, 1.25, 0.5]),
        "high": np.array([np.nan, np.nan, np.nan, 1.0]),
    },
    "control_variance": 0.9,
    "effective_controls": 12.0,
    "dose_effect": 0.3,
    "everywhere_effect": {
        "kl": 0.7,
        "log_odds": {"value": 1.25 * SIGN, "low": 1.25 * SIGN - 0.5, "high": 1.25 * SIGN + 0.5},
    },
    "everywhere_effect_null": {"log_odds": {"p": 0.3}},
    "restored": {"value": np.array([0.1, 0.2, 0.9, 0.6]), "low": np.array([0.0, 0.1, 0.34, 0.55]), "high": 1.1},
    "score_change": {"value": 0.25, "low": 0.125, "high": 0.5},
    "head_effect": {"kl": np.array([0.001, 0.004])[:, None], "log_odds": 0.1},
    "sublayer_effect": {
        "kl": {
            "attention": {"value": np.array([0.02, 0.03, 0.07, 0.05]), "low": 0.01, "high": 0.08},
            "block": BLOCK[:, None],
        }
    },
    "head_direct": 0.1,
    "direct_correlation": 0.42,
    "forward_error": {"intact": 1e-6, "route": 2e-6},
}
ATTRIBUTES = {
    "options": {"controls": 20},
    "available": {"refusal@-1": [40, 12]},
    "full_route": {},
    "excluded_pairs": {},
    "tokens": {"refusal": ["I", " I"], "answer": ["Sure"]},
    "patch": {"refusal@-1": "mean"},
}


@pytest.fixture
def run_of(tmp_path):
    def made(**changes):
        """Return a run with changes, of some labels if they are given by label."""
        groups = {"curves": {}, "directions": {"direction": 0.35}, "moments": {}, "effects": merged(VALUES, changes)}
        return cached_run(tmp_path, groups, attributes=ATTRIBUTES)

    return made


INTACT = "harmful 1.00 [0.50, 1.50]; harmless -2.00 [-2.50, -1.50] … difference … 3.00 [2.80, 3.20]"


def test_the_finding_says_how_the_sets_differ_and_from_where_on_the_model_uses_the_direction(run_of):
    (section,) = effects.sections(run_of())
    assert_says(
        section.finding,
        f"{INTACT} … from layer 0 pre on … 0.1 to 2.2 nats … from layer 2 pre on … model uses",
        "12 of 40 and 12 prompts",
    )
    assert "not shown" not in section.finding


def test_effects_are_stated_with_their_tests(run_of):
    (section,) = effects.sections(run_of())
    assert_says(section.title, "“refusal” … position -1 … 12 of 40 and 12 prompts")
    moved = "harmful 0.1 to 2 nats … 4 of 8 … z 7.0 at layer 3 pre … p = 0.048"
    assert_says(
        section.facts,
        "refusal (“I”) … answer (“Sure”) … harmful 75 %; harmless 50 %",
        f"towards … other set … {moved} … harmless 0.35 to 2.2 nats",
        "half of their difference … harmful 0.75 [0.50, 1.00] at layer 3 pre",
        "harmful log-odds by 1.2 [0.75, 1.8] nats … p = 0.3 … KL 0.7 [0.7, 0.7] nats",
        "mean state … other set",
        "whole interval … harmful layer 3 pre, 60 [55, 110] %",
        "KL … 8 heads … harmful L0H1, 0.004 [0.004, 0.004] nats",
        "attention and MLP of one block … harmful layer 1, 0.9 [0.9, 0.9] nats; harmless layer 1, 0.9 [0.9, 0.9] nats",
        "attention in one layer … harmful layer 2, 0.07 [0.01, 0.08] nats",
        "input of block 3 … layer 0: 25 [12, 50] %",
        "forward passes of all tokens … 2.0e-06",
    )
    text = " ".join(section.facts)
    assert "of the MLP in one layer" not in text, "its numbers are not known"
    assert "nan" not in f"{text} {section.finding}"
    assert section.worth == (True, 7.0)


def test_what_is_changed_and_how_small_p_can_be_is_said(run_of):
    (section,) = effects.sections(run_of())
    assert_says(section.facts[0], "resid_pre and resid_mid … 4 captured layers … 8 of 8")
    assert_says(section.notes, "20 control directions … 0.048")


def finding_of(run):
    (section,) = effects.sections(run)
    assert "nan" not in " ".join([*section.facts, section.finding])
    return section.finding


def test_an_effect_that_one_kind_of_controls_also_has_is_not_special(run_of):
    p = P.copy()
    p[..., 2, 1] = 0.6  # added directions of permuted labels
    finding = finding_of(run_of(effect_null={"log_odds": {"p_family": p}}))
    assert_says(
        finding,
        "from layer 0 pre on … 0.1 to 2.2 nats … both sets together",
        "0 of 8 … harmful 0 of 8; harmless 0 of 8 … up to 0.02 nats … not shown",
    )


def test_a_kind_of_controls_that_cannot_be_compared_does_not_count(run_of):
    p = P.copy()
    p[..., 2, 1] = np.nan
    finding = finding_of(run_of(effect_null={"log_odds": {"p_family": p}}))
    assert_says(finding, "only one kind … 4 of these sites and layers … from layer 2 pre on … model uses")
    assert "not shown" not in finding
    untested = {"effect_null": {"log_odds": {"p_family": np.nan, "z": np.nan}}, "everywhere_effect_null": np.nan}
    assert_says(finding_of(run_of(**untested)), "cannot be compared … not shown")


def test_an_effect_on_one_set_is_not_one_on_both(run_of):
    p = P.copy()
    p[1] = 0.6
    finding = finding_of(run_of(effect_null={"log_odds": {"p_family": p}}))
    assert_says(finding, "harmful 4 of 8; harmless 0 of 8")
    low = LOG_ODDS - 0.05
    low[1] = -0.1  # of the negative set, which is expected to move upwards
    assert_says(finding_of(run_of(effect={"log_odds": {"low": low}})), "both sets … none of 8")


def test_no_onset_is_claimed_where_scattered_layers_pass(run_of):
    p, low = P.copy(), LOG_ODDS - 0.05
    p[:, :, 3] = 0.6
    low[1, :, 3] = -0.1
    finding = finding_of(run_of(effect_null={"log_odds": {"p_family": p}}, effect={"log_odds": {"low": low}}))
    assert_says(finding, "6 of 8 changed … 0.1 to 1.8 nats … other sites … at most", "2 of 8 tested … not at … last")


def test_the_range_of_an_onset_is_that_of_the_layers_from_it_on(run_of):
    low = LOG_ODDS - 0.05
    low[1, :, 1] = -0.1  # of layer 1, so that layer 0 moves alone
    finding = finding_of(run_of(effect={"log_odds": {"low": low}}))
    assert_says(finding, "from layer 2 pre on … 1.5 to 2.2 nats … other sites and layers … at most 0.45 nats")


def test_a_change_away_from_the_other_set_is_no_use_whatever_the_controls_do(run_of):
    wrong = {"value": -LOG_ODDS, "low": -LOG_ODDS - 0.05, "high": -LOG_ODDS + 0.05}
    finding = finding_of(run_of(effect={"log_odds": wrong}))
    assert_says(finding, "both sets … none of 8 … not shown")


def test_untested_layers_are_no_failures(run_of):
    p = P.copy()
    p[:, :, 3, 2] = np.nan
    (section,) = effects.sections(run_of(effect_null={"log_odds": {"p_family": p}}))
    assert_says(section.finding, "from layer 2 pre on … model uses")
    assert "not shown" not in section.finding


def test_sets_with_equal_log_odds_have_no_expected_change(run_of):
    no_test = dict.fromkeys(("z", "p", "p_family"), np.nan)
    tests = {"half_dose": np.nan, "everywhere_effect_null": np.nan}
    null = {"log_odds": no_test}
    run = run_of(expected_sign=np.nan, intact_difference={"low": -0.5}, effect_null=null, **tests)
    finding = finding_of(run)
    assert_says(finding, "[-0.50, 3.20], which may be 0 … both sets … at 0 of 8 sites and layers")
    finding = finding_of(run_of(expected_sign=np.nan, effect_null=null | {"kl": no_test}, **tests))
    assert_says(finding, "not tested … model uses")
    (section,) = effects.sections(run)
    assert "moves the log-odds towards" not in " ".join(section.facts)
    assert all(figure.draw() for figure in section.figures)


def test_sets_without_spread_have_no_conclusion(run_of, monkeypatch):
    monkeypatch.setattr(effects, "without_spread", lambda *_: "Nothing can be concluded.")
    (section,) = effects.sections(run_of())
    assert section.finding == section.facts[0] == "Nothing can be concluded."
    assert not section.worth.passed


def test_controls_that_cannot_be_compared_are_stated_with_the_reason(run_of):
    share = np.array([0.5, 0.9, 0.9, 0.9])[:, None]
    effective = np.array([[12.0, 1.0], [12.0, 12.0], [np.nan, np.nan], [12.0, 12.0]])
    (section,) = effects.sections(run_of(control_variance=share, effective_controls=effective))
    assert_says(
        section.facts,
        "2 of 8 … not compared … equal variance … less than 80 % … smallest share 50 %",
        "2 of 8 … means of both sets are equal",
        "2 of 8 … not compared … permuted labels … fewer than 5",
    )


def test_a_dose_without_an_upper_end_is_more_than_the_largest_dose(run_of):
    (section,) = effects.sections(run_of(half_dose={"value": 0.75, "low": 0.5, "high": np.nan}))
    assert_says(section.facts, "harmful 0.75 [0.50, more than 1] at layer 0 pre")
    (section,) = effects.sections(run_of(half_dose=np.nan))
    assert_says(section.facts, "harmful no dose up to 1")


def test_a_difference_that_may_be_0_has_no_restored_share(run_of):
    (section,) = effects.sections(run_of(restored=np.nan))
    assert_says(section.facts, "both signs")
    assert "nan" not in " ".join(section.facts)


def test_without_parts_there_are_no_maps_and_no_sentences_about_them(run_of):
    unknown = dict.fromkeys(("head_effect", "sublayer_effect", "direct_correlation"), np.nan)
    (section,) = effects.sections(run_of(**unknown))
    assert section.maps == []
    assert "effects.refusal.parts" not in [figure.name for figure in section.figures]
    assert not any("heads" in fact or "replaced" in fact for fact in section.facts)


def test_prompts_that_are_left_out_are_counted(run_of, monkeypatch):
    monkeypatch.setitem(ATTRIBUTES, "excluded_pairs", {"refusal@-1": [3]})
    (section,) = effects.sections(run_of())
    assert_says(section.notes, "1 prompt of each set is left out")


def test_a_full_route_is_named_with_its_reason(run_of, monkeypatch):
    monkeypatch.setitem(ATTRIBUTES, "full_route", {"refusal@-1": "its matrices are sharded over processes"})
    (section,) = effects.sections(run_of())
    assert_says(section.facts[-1], "its matrices are sharded over processes")


def test_routes_that_were_not_compared_have_no_sentence(run_of):
    (section,) = effects.sections(run_of(forward_error=np.nan))
    assert not any("one token per block" in fact for fact in section.facts)


def test_every_figure_draws_the_stored_numbers(run_of):
    run = run_of()
    (section,) = effects.sections(run)
    drawn = {figure.name: figure.draw() for figure in [*section.figures, *section.maps]}
    assert set(drawn) == {
        "effects.refusal",
        "effects.refusal.doses",
        "effects.refusal.scores",
        "effects.refusal.parts",
        "effects.refusal.heads_kl",
        "effects.refusal.heads_patched",
        "effects.refusal.heads_direct",
    }
    of_layers = {trace.name: list(trace.y) for trace in drawn["effects.refusal"].data if trace.name}
    assert of_layers["harmful, pre"] == [0.01, 0.02, 0.03, 0.04]  # of the last panel with this name: KL
    added = next(trace for trace in drawn["effects.refusal"].data if trace.name == "harmful, pre")
    np.testing.assert_allclose(added.y, [0.1, 0.2, 1.5, 2.0])
    controls = next(
        trace for trace in drawn["effects.refusal"].data if trace.name == "harmful, pre, equal-variance control"
    )
    assert list(controls.y) == [0.01] * 4
    doses = next(trace for trace in drawn["effects.refusal.doses"].data if trace.name == "harmful")
    assert list(doses.x) == [-1, 0, 1]
    assert list(doses.y) == [0.3, 0, 0.3]
    of_parts = [(trace.name, list(trace.y)) for trace in drawn["effects.refusal.parts"].data if not trace.fill]
    assert of_parts == 2 * [("attention", [0.02, 0.03, 0.07, 0.05]), ("block", [0.2, 0.9, 0.4, 0.3])]
    bands = [list(trace.y) for trace in drawn["effects.refusal.scores"].data if trace.fill]
    assert bands
    assert {0.125, 0.5} == {value for band in bands for value in band}
    assert section_items(run, "effects")[0]["figures"]


def test_an_export_names_the_layer_farthest_above_the_controls_and_its_doses(run_of):
    facts = read_directions(run_of(), "refusal", "resid_pre", [1]).facts
    assert facts["effect_layer"] == 3
    assert facts["effect_p"] == 0.048
    assert facts["doses"] == [-1, 1]
    assert facts["dose_log_odds"] == [0.3, 0.3]
    assert facts["log_odds"] == "refusal against answer"


def test_an_export_without_a_signed_test_takes_the_kl_divergence(run_of):
    z = np.full((2, 2, 4, 3, 2), 0.5)
    z[:, 0, 1, 2] = 4.0
    run = run_of(effect_null={"log_odds": {"z": np.nan}, "kl": {"z": z}})
    facts = read_directions(run, "refusal", "resid_pre", [1]).facts
    assert facts["effect_layer"] == 1


def test_a_site_without_effects_exports_none(run_of, tmp_path):
    run = cached_run(tmp_path / "other", {"curves": {}, "directions": {"direction": 0.35}, "moments": {}})
    assert "doses" not in read_directions(run, "refusal", "resid_pre", [1]).facts
