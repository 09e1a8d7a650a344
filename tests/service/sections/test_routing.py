"""Sentences and maps of experts."""

import numpy as np
import pytest
import xarray as xr
from support.finished_runs import cached_run
from support.sentences import assert_says

from theodolite.groups.routing import sections as routing
from theodolite.sections.parts import last_position

NAN = np.nan
# (layer, expert): layers 0 and 3 have no experts.
HARMFUL = np.array([[NAN] * 3, [1.0, 0.9, 0.1], [0.5, 0.75, 0.75], [NAN] * 3])
HARMLESS = np.array([[NAN] * 3, [1.0, 0.4, 0.6], [0.5, 0.75, 0.75], [NAN] * 3])
P = np.array([[NAN] * 3, [NAN, 0.005, 0.005], [0.7, 1.0, 1.0], [NAN] * 3])
SHARES, DIFFERENCE = np.stack([HARMFUL, HARMLESS])[:, None], HARMFUL - HARMLESS
VALUES = {
    "n_samples": 20,
    "expert_share": {"value": SHARES, "low": SHARES - 0.1, "high": SHARES + 0.05},
    "n_used": [20, 18],
    "expert_difference": {"value": DIFFERENCE, "low": DIFFERENCE - 0.2, "high": DIFFERENCE + 0.1},
    "expert_difference_null": {
        "mean": 0.12,
        "sd": 0.08,
        "z": np.array([[NAN] * 3, [NAN, 4.75, 4.7], [-1.0, -1.1, -1.2], [NAN] * 3]),
        "p_family": P,
    },
}


@pytest.fixture
def made(tmp_path):
    def made(**changes):
        """Return the sections with changes, of some labels of the last dimension if they are given by label."""
        changed = {name: VALUES[name] | of if isinstance(of, dict) else of for name, of in changes.items()}
        return routing.sections(cached_run(tmp_path, {"curves": {}, "routing": VALUES | changed}))

    return made


def test_a_set_has_its_largest_share_beside_that_of_equal_use(made):
    section = made()[0]
    assert_says(section.title, "position -1 … 20 harmful, 20 harmless")
    assert_says(
        section.facts[0],
        "harmful (n = 20) … 2 of 3 experts … 66.7 % … expert 0 of layer 1, 100.0 % [90.0 %, 105.0 %] … 0 of 6 experts",
    )
    assert len(section.facts) == 2
    assert_says(section.notes, "layers 0, 3 have no experts")
    assert [figure.name for figure in section.maps] == ["routing.share.harmful", "routing.share.harmless"]


def test_active_units_are_weighted_by_the_prompts_that_use_an_expert(made):
    units = np.array([[NAN] * 3, [0.5, 0.2, NAN], [0.6, 0.5, 0.6], [NAN] * 3])
    facts = made(expert_active_units=np.stack([units, units + 0.1])[:, None])[0].facts
    # layer 1: (1.0·0.5 + 0.9·0.2)/1.9; layer 2: (0.5·0.6 + 0.75·0.5 + 0.75·0.6)/2
    assert_says(facts[2], "harmful (n = 20) … 46.3 % … 35.8 % in layer 1 to 56.2 % in layer 2 … 50 %")
    assert_says(facts[3], "harmless (n = 20)")


def test_a_contrast_has_its_largest_z_with_the_test(made):
    section = made()[1]
    assert_says(section.title, "“refusal” at position -1 … 20 harmful and 18 harmless prompts")
    assert_says(
        section.facts,
        "expert 1 of layer 1, z = 4.8 … larger share of harmful … 50.0 percentage points [30.0, 60.0]",
        "permuted labels … 12.0 ± 8.0 … p = 0.005 over 5 experts",
        "2 of 5; 1 of them … larger share of harmful, 1 … harmless",
    )
    assert_says(section.finding, "2 of 5 tested experts, in 1 of 2 layers … larger share … n = 20 and 18 prompts")


def test_nothing_is_claimed_if_no_expert_can_be_tested(made):
    section = made(expert_difference_null={"p_family": NAN, "z": NAN})[1]
    assert len(section.facts) == 1
    assert_says(section.facts[0], "No expert can be tested")
    assert section.finding == ""


def test_equal_shares_are_not_called_larger(made):
    section = made(expert_difference={"value": np.where(np.isnan(DIFFERENCE), NAN, 0.0)})[1]
    assert_says(section.facts[0], "z = 4.8. … difference … 0.0 percentage")


def test_maps_have_layers_from_left_to_right_and_say_what_lies_beyond_the_scale(made):
    of_sets, of_contrast = made(
        expert_share={"value": np.stack([HARMFUL, HARMLESS / 2])[:, None]}
    )  # one share is the largest
    shares, difference = [one.draw().data[0] for one in of_sets.maps], of_contrast.figures[0].draw().data[0]
    share = shares[0]
    np.testing.assert_array_equal(np.array(share.z, dtype=float), 100 * HARMFUL.T)
    np.testing.assert_array_equal(np.array(difference.z, dtype=float), 100 * DIFFERENCE.T)
    assert [(one.zmin, one.zmax) for one in shares] == [(0, share.zmax)] * 2  # of one scale
    assert difference.zmin == -difference.zmax
    assert [one.colorbar.ticktext[-1].startswith("≥") for one in shares] == [True, False]
    assert share.customdata[1][1] == "90.0 [80.0, 95.0] %, n = 20"
    assert difference.customdata[1][1] == "50.0 [30.0, 60.0] percentage points, n = 20 and 18, family-wise p 0.005"
    assert difference.customdata[0][1].endswith("not tested")


def test_a_contrast_without_prompts_of_a_set_has_no_section(made):
    assert len(made(n_used=[20, 0])) == 1


def test_the_position_is_the_last_one_of_a_single_token(tmp_path):
    values = {"n_samples": [[20, 0], [18, 0]], "expert_share": 0.5, "n_used": [[20, 18], [0, 0]]}
    values["expert_difference"] = 0.0
    run = cached_run(tmp_path, {"curves": {}, "routing": values}, positions=(-2, -1))
    assert_says(
        [section.title for section in routing.sections(run)], "position -2; … 20 harmful, 18", "position -2: 20"
    )


def test_a_contrast_is_described_at_the_last_position_that_both_sets_have():
    counts = (("contrast", "position", "prompt_side"), [[[4, 4], [4, 0]], [[0, 4], [4, 0]]])
    group = xr.Dataset({"n_used": counts}, {"contrast": ["both", "neither"], "position": ["answer", "-1"]})
    assert [last_position(group), last_position(group, "both"), last_position(group, "neither")] == [
        "-1",
        "answer",
        "-1",
    ]
