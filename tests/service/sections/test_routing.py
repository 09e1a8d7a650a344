"""Sentences and maps of experts."""

import numpy as np
import pytest
from support.finished_runs import cached_run

from theodolite.groups.routing import sections as routing

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
    assert section.title == "Experts at position -1; prompts: 20 harmful, 20 harmless"
    assert section.facts[0] == (
        "harmful (n = 20): each token uses 2 of 3 experts of a layer, so with equal use each share would be 66.7 %. "
        "Largest share: expert 0 of layer 1, 100.0 % [90.0 %, 105.0 %]. 0 of 6 experts (of all layers) are used by no "
        "prompt of the set."
    )
    assert len(section.facts) == 2
    assert "layers 0, 3 have no experts, so their numbers are missing" in section.notes
    assert [figure.name for figure in section.maps] == ["routing.share.harmful", "routing.share.harmless"]


def test_active_units_are_weighted_by_the_prompts_that_use_an_expert(made):
    units = np.array([[NAN] * 3, [0.5, 0.2, NAN], [0.6, 0.5, 0.6], [NAN] * 3])
    facts = made(expert_active_units=np.stack([units, units + 0.1])[:, None])[0].facts
    # layer 1: (1.0·0.5 + 0.9·0.2)/1.9; layer 2: (0.5·0.6 + 0.75·0.5 + 0.75·0.6)/2
    assert facts[2] == (
        "harmful (n = 20): 46.3 % of the hidden units of an expert that a token uses are active (mean over layers and "
        "prompts; 35.8 % in layer 1 to 56.2 % in layer 2; 50 % if positive and negative inputs were equally frequent)."
    )
    assert facts[3].startswith("harmless (n = 20): ")


def test_a_contrast_has_its_largest_z_with_the_test(made):
    section = made()[1]
    assert section.title == "Experts in the contrast “refusal” at position -1: 20 harmful and 18 harmless prompts"
    assert section.facts == [
        "Expert with the largest z: expert 1 of layer 1, z = 4.8. It is used by a larger share of harmful than of "
        "harmless: the difference of the shares (harmful minus harmless) is 50.0 percentage points [30.0, 60.0]. "
        "Permuted labels give an absolute difference of 12.0 ± 8.0; family-wise p = 0.005 over 5 experts.",
        "Experts whose absolute difference is larger than with permuted labels (two-sided; family-wise p of at most "
        "0.05 over all layers and experts): 2 of 5; 1 of them are used by a larger share of harmful, 1 by one of "
        "harmless. If two sets differ at all, many experts can be expected to differ, since all routers read the same "
        "stream.",
    ]
    assert section.finding == (
        "2 of 5 tested experts, in 1 of 2 layers with experts, are shown to be used by a larger share of one set "
        "than of the other (family-wise p of at most 0.05; n = 20 and 18 prompts)."
    )


def test_nothing_is_claimed_if_no_expert_can_be_tested(made):
    section = made(expert_difference_null={"p_family": NAN, "z": NAN})[1]
    assert len(section.facts) == 1
    assert section.facts[0].startswith("No expert can be tested")
    assert section.finding == ""


def test_equal_shares_are_not_called_larger(made):
    section = made(expert_difference={"value": np.where(np.isnan(DIFFERENCE), NAN, 0.0)})[1]
    assert "z = 4.8. The difference of the shares (harmful minus harmless) is 0.0 percentage" in section.facts[0]


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
