"""Sentences and figures about the rotary part of latent attention, from given effective ranks."""

import numpy as np
import xarray as xr
from support.sentences import assert_says

from theodolite.groups.heads.figures_rotary import rotary_figure
from theodolite.groups.heads.sections_rotary import _facts, rotary_sections

AT_0 = [[50.0, 40.04], [np.nan, 62.0]]
"""(layer, head); a part of zeros has no rank."""


def group(offsets, ranks):
    dims = ("offset", "layer", "head")
    labels = {"offset": offsets, "layer": [3, 4], "head": [0, 1], "rank": range(64)}
    attributes = {"circuits": {"rotary": {"effective_rank_random": 60.26}}, "rotary_notes": ["folded"]}
    return xr.Dataset({"effective_rank": (dims, np.array(ranks))}, labels, attributes)


FIRST = "offset 0 … 64: 50.0 … 3 heads (smallest 40.0, of L3H1; largest 62.0, of L4H1)"


def test_ranks_at_offset_0_stand_beside_those_of_random_matrices():
    (fact,) = _facts(group([0], [AT_0]))
    assert_says(fact, f"{FIRST} … random … 60.3 … 2 of 3 heads have less")


def test_a_few_other_offsets_are_listed_and_many_are_a_range():
    ranks = np.stack([np.array(AT_0) - offset for offset in range(10)])
    first, few = _facts(group([0, 2, 7], ranks[[0, 2, 7]]))
    assert_says(first, FIRST)
    assert_says(few, "offset 2: 48.0; offset 7: 43.0")
    first, many = _facts(group(list(range(10)), ranks))
    assert_says(first, FIRST)
    assert_says(many, "9 other offsets, 1 to 9: 41.0 to 49.0")


def test_parts_of_zeros_alone_have_a_sentence():
    (fact,) = _facts(group([0], [np.full((2, 2), np.nan)]))
    assert_says(fact, "all heads … zero")


def curves(figure):
    return {one.name: np.round(one.y, 2).tolist() for one in figure.data if one.mode == "lines+markers"}


def test_the_figure_has_a_curve_of_other_offsets_only_if_there_are_some():
    alone = rotary_figure(group([0], [AT_0]))
    both = rotary_figure(group([0, 5, 9], [AT_0, np.array(AT_0) / 2, np.array(AT_0) / 4]))
    at_0, others = "offset 0: median over heads", "other offsets: median of the medians over heads"
    assert curves(alone) == {at_0: [45.02, 62.0]}
    assert curves(both) == {at_0: [45.02, 62.0], others: [16.88, 23.25]}
    assert any("random matrices: 60.3" in str(one.name) for one in alone.data)


def test_heads_without_the_part_have_no_section():
    values = np.ones((2, 1, 2, 2, 64))
    values[1, ..., 2:] = np.nan  # as many as rotate
    heads = group([0], [AT_0]).expand_dims(circuit=["qk", "rotary"])
    heads = heads.assign(singular_values=(("circuit", "offset", "layer", "head", "rank"), values))
    assert rotary_sections(heads.sel(circuit=["qk"])) == []
    (section,) = rotary_sections(heads)
    assert_says(section.title, "rotary part … 2 entries")
    assert section.notes[0] == "folded"
    assert {figure.name for figure in (*section.figures, *section.maps)} == {
        "heads.rotary.effective_rank",
        "heads.rotary.map",
    }
