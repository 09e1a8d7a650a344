"""Sentences and figures of effects: each effect is stated beside that of its controls."""

import numpy as np
import pytest
from support.finished_runs import finished_run

from theodolite.query.exports import read_directions
from theodolite.sections import effects
from theodolite.sections.catalogue import section_items

# The dimensions are (contrast, position, prompt_side, site, layer, intervention[, control]).
KL = np.zeros((2, 2, 4, 3)) + np.array([0.01, 0.02, 0.03, 0.04])[:, None]
KL[0, 0, 2, 1] = 0.5  # the direction removed from positive prompts at resid_pre of layer 2
P = np.full((2, 2, 4, 3, 3), 0.6)
P[0, 0, 2, 1] = 0.048
Z = np.full((2, 2, 4, 3, 3), 0.5)
Z[0, 0, 2, 1] = 6.0
VALUES = {
    "n_prompts": 12,
    "intact_log_odds": np.array([-1.0, -2.0]),
    "intact_difference": 1.0,
    "intact_difference_low": 0.8,
    "intact_difference_high": 1.2,
    **{f"{name}{end}": KL * by for name in ("kl",) for end, by in (("", 1), ("_low", 0.5), ("_high", 2))},
    "kl_control": 0.02,
    "kl_z": Z,
    "kl_p": P,
    "kl_p_family": P,
    "log_odds": 0.1,
    "log_odds_low": 0.0,
    "log_odds_high": 0.2,
    **{f"dose_{name}{end}": 0.3 for name in ("kl", "log_odds") for end in ("", "_low", "_high")},
    **{f"everywhere_kl{end}": 0.7 for end in ("", "_low", "_high")},
    "everywhere_kl_control": 0.6,
    "everywhere_kl_p": 0.3,
    "restored": np.array([0.1, 0.2, 0.9, 0.4]),
    "restored_low": 0.05,
    "restored_high": 1.1,
    "score_change": 0.25,
    "score_change_low": 0.125,
    "score_change_high": 0.5,
    **{f"head_kl{end}": np.array([0.001, 0.004]) for end in ("", "_low", "_high")},
    "attention_kl": np.array([0.02, 0.03, 0.07, 0.05]),
    "attention_kl_low": 0.01,
    "attention_kl_high": 0.08,
    **{f"block_kl{end}": np.array([0.2, 0.9, 0.4, 0.3]) for end in ("", "_low", "_high")},
    "head_log_odds": 0.1,
    "head_direct": 0.1,
    "direct_correlation": 0.42,
    "intact_error": 1e-6,
    "route_error": 2e-6,
}
ATTRIBUTES = {
    "options": {"controls": 20},
    "available": {"refusal@-1": [40, 12]},
    "tokens": {"refusal": ["I", " I"], "answer": ["Sure"]},
    "patch": {"refusal@-1": "mean"},
}


@pytest.fixture
def run_of(tmp_path):
    def made(**changes):
        groups = {"curves": {}, "directions": {"direction": 0.35}, "moments": {}, "effects": {**VALUES, **changes}}
        return finished_run(tmp_path, groups, attributes=ATTRIBUTES)

    return made


def test_effects_are_stated_beside_those_of_their_controls(run_of):
    (section,) = effects.sections(run_of())
    assert section.title == "Effects along the contrast “refusal” at position -1: 12 of 40 and 12 prompts"
    text = " ".join(section.facts)
    assert "without a change: harmful -1.00; harmless -2.00; difference 1.00 [0.80, 1.20]." in text
    assert "group refusal (“I”) against the group answer (“Sure”)" in text
    assert "each prompt gets the mean state of the other set" in text
    assert (
        "harmful 1 of 8 (against directions of equal variance alone 1; against directions of permuted labels alone 1; "
        "largest z 6.0, p = 0.048, at layer 2 pre: 0.5 [0.25, 1] nats, controls 0.02 and 0.02); harmless 0 of 8" in text
    )
    assert (
        "at least 50 % of the difference of the log-odds to the other set: harmful layer 2 pre, 90 [5, 110] %" in text
    )
    assert "of harmful 0.7 [0.7, 0.7] nats (controls 0.6 and 0.6, p = 0.3)" in text
    assert "the largest KL divergence of these 8 heads is harmful L0H1, 0.004 [0.004, 0.004] nats" in text
    assert (
        "The outputs of attention and MLP of one block are replaced by those of the other prompt: the largest KL "
        "divergence over layers is harmful layer 1, 0.9 [0.9, 0.9] nats; harmless layer 1, 0.9 [0.9, 0.9] nats." in text
    )
    assert "of attention in one layer is replaced by that of the other prompt: the largest" in text
    assert "harmful layer 2, 0.07 [0.01, 0.08] nats" in text
    assert "of the MLP in one layer" not in text, "its numbers are not known"
    assert "moves the stream at the input of block 3 along the contrast's direction there by this share" in text
    assert "layer 0: 25 [12, 50] %" in text
    assert "differ from those of forward passes of all tokens by at most 2.0e-06" in text
    assert section.finding.startswith(
        "Does the model use the direction at the last token? Removing it changes the next token more than removing "
        "directions of equal variance and directions of permuted labels at this many sites and layers: harmful 1 of 8; "
        "harmless 0 of 8. Adding"
    )


def test_what_is_changed_and_how_small_p_can_be_is_said(run_of):
    (section,) = effects.sections(run_of())
    assert section.facts[0] == (
        "Interventions change the states at resid_pre and resid_mid of all 4 captured layers, and the outputs of the "
        "heads in these layers (8 of 8)."
    )
    assert any(
        "There are 20 control directions of each kind, so the smallest possible p is about 0.048" in note
        for note in section.notes
    )
    assert "20 directions of each kind; 12 of 40 and 12 prompts" in section.finding


def test_small_effects_keep_two_digits(run_of):
    (section,) = effects.sections(run_of(kl=3.04e-5, kl_low=1.3e-5, kl_high=5.1e-5, kl_control=0.00654))
    assert "3e-05 [1.3e-05, 5.1e-05] nats, controls 0.0065 and 0.0065" in " ".join(section.facts)


def test_an_effect_that_one_kind_of_controls_also_has_is_not_counted(run_of):
    p = P.copy()
    p[..., 1, 2] = 0.6  # removed directions of permuted labels
    (section,) = effects.sections(run_of(kl_p_family=p))
    assert "at this many sites and layers: harmful 0 of 8; harmless 0 of 8. Adding" in section.finding


def test_the_first_place_that_restores_half_is_the_first_along_depth(run_of):
    shares = np.array([[0.1, 0.2, 0.45, 0.9], [0.1, 0.2, 0.6, 0.9]])  # resid_pre, resid_mid
    (section,) = effects.sections(run_of(restored=shares))
    assert "to the other set: harmful layer 2 mid, 60 [5, 110] %" in " ".join(section.facts)


def test_a_difference_that_may_be_0_has_no_restored_share(run_of):
    (section,) = effects.sections(run_of(restored=np.nan))
    assert any("it has both signs in the bootstrap" in fact for fact in section.facts)
    assert "nan" not in " ".join(section.facts)


def test_without_parts_there_are_no_maps_and_no_sentences_about_them(run_of):
    unknown = dict.fromkeys(("head_kl", "attention_kl", "block_kl", "direct_correlation"), np.nan)
    (section,) = effects.sections(run_of(**unknown))
    assert section.maps == []
    assert "effects.refusal.parts" not in [figure.name for figure in section.figures]
    assert not any("heads" in fact or "replaced" in fact for fact in section.facts)


def test_prompts_that_are_left_out_are_counted(run_of, monkeypatch):
    monkeypatch.setitem(ATTRIBUTES, "excluded_pairs", {"refusal@-1": [3]})
    (section,) = effects.sections(run_of())
    assert any(note.startswith("1 prompt of each set is left out") for note in section.notes)


def test_a_full_route_is_named_with_its_reason(run_of, monkeypatch):
    monkeypatch.setitem(ATTRIBUTES, "full_route", {"refusal@-1": "its matrices are sharded over processes"})
    (section,) = effects.sections(run_of())
    assert section.facts[-1].endswith(
        "the model does not allow a shorter way, since its matrices are sharded over processes."
    )


def test_routes_that_were_not_compared_have_no_sentence(run_of):
    (section,) = effects.sections(run_of(route_error=np.nan))
    assert not any("one token per block" in fact for fact in section.facts)


def test_without_a_test_no_layer_is_counted(run_of):
    (section,) = effects.sections(run_of(kl_z=np.nan, kl_p_family=np.nan))
    assert "harmful no test is possible; harmless no test is possible" in " ".join(section.facts)


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
    assert of_layers["harmful, pre, directions of equal variance"] == [0.02] * 4
    doses = next(trace for trace in drawn["effects.refusal.doses"].data if trace.name == "harmful")
    assert list(doses.x) == [-1, 0, 1]
    assert list(doses.y) == [0.3, 0, 0.3]
    of_parts = [(trace.name, list(trace.y)) for trace in drawn["effects.refusal.parts"].data if trace.name]
    assert of_parts == 2 * [("attention", [0.02, 0.03, 0.07, 0.05]), ("block", [0.2, 0.9, 0.4, 0.3])]
    bands = [list(trace.y) for trace in drawn["effects.refusal.scores"].data if trace.fill]
    assert bands
    assert {0.125, 0.5} == {value for band in bands for value in band}
    assert section_items(run, "effects")[0]["figures"]


def test_an_export_names_the_layer_farthest_above_the_controls_and_its_doses(run_of):
    z = Z.copy()
    z[:, 0, 2, 2] = 4.0  # the difference added at resid_pre of layer 2
    facts = read_directions(run_of(kl_z=z), "refusal", "resid_pre", [1]).facts
    assert facts["effect_layer"] == 2
    assert facts["doses"] == [-1, 1]
    assert facts["dose_log_odds"] == [0.3, 0.3]
    assert facts["log_odds"] == "refusal against answer"


def test_a_site_without_effects_exports_none(run_of, tmp_path):
    run = finished_run(tmp_path / "other", {"curves": {}, "directions": {"direction": 0.35}, "moments": {}})
    assert "doses" not in read_directions(run, "refusal", "resid_pre", [1]).facts
