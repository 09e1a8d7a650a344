"""Sentences and maps about the directions that weight matrices share."""

import numpy as np
import xarray as xr
from support.each import each
from support.sentences import assert_says

from theodolite.groups.weights import sections as weights
from theodolite.groups.weights.record import GROUP

READERS = "reading matrices … random subspaces give 5.0 %"
OWN = {"matrices": "model", "form": "stored"}
RANDOM = {"matrices": "random", "form": "stored"}
NO_OVERLAP = "same row lengths give 0.0 % and 0.0 %"
ZERO = "(0.0 % to 0.0 %)"
LARGEST = "largest mean overlap"


def weights_group(between, folded, written=0.2, folded_written=0.2, sd=0.01, null=0.0, folded_null=0.0):
    """A group of three layers; `between` and `folded` are overlaps of (writing_matrix, reading_matrix).

    `null` and `folded_null` are all overlaps of random matrices.
    """
    labels = {
        "writing_matrix": ["o", "down"],
        "reading_matrix": ["q", "k", "v", "gate", "up"],
        "layer": range(3),
        "layer_other": range(3),
    }
    later = np.where(np.triu(np.ones((3, 3)), 1) > 0, 1.0, np.nan)

    def stacked(shape, *matrices):
        return np.array([[np.broadcast_to(form, shape) for form in forms] for forms in matrices])

    nulls = (null, folded_null)
    overlap = stacked((2, 5), (between, folded), nulls)[..., None, None] * later
    own = stacked((2, 3, 3), (written, folded_written), nulls)
    variables = {
        "writer_reader_overlap": (("matrices", "form", *labels), overlap),
        "writing_overlap": (("matrices", "form", "writing_matrix", "layer", "layer_other"), own),
        "random_overlap": ("null", [0.05, sd]),
    }
    labels |= {name: list(GROUP.labels[name]) for name in ("matrices", "form", "null")}
    return xr.Dataset(variables, {**labels, "expert_or_shared": []}, {"rank": 2})


def weights_section(monkeypatch, *arguments, **nulls):
    monkeypatch.setattr(weights, "read_group", lambda *_: weights_group(*arguments, **nulls))
    (section,) = weights.sections(None)
    return section


def test_overlaps_are_quoted_as_stored_and_with_norms_folded(monkeypatch):
    stored, folded = np.full((2, 5), 0.10), np.full((2, 5), 0.07)
    stored[1, 4], folded[1, 4] = 0.25, 0.15
    section = weights_section(monkeypatch, stored, folded)
    assert_says(
        section.facts,
        f"10 combinations … W_down with W_up … {LARGEST} … both … 25.0 % as stored and 15.0 % with norms folded … "
        f"{NO_OVERLAP} … 5.0 %",
    )
    written = f"10.0 % to 10.0 % {ZERO} as stored and 7.0 % to 7.0 % {ZERO} with norms folded"
    down = f"10.0 % to 25.0 % {ZERO} as stored and 7.0 % to 15.0 % {ZERO} with norms folded"
    assert_says(section.facts[-1], f"{READERS} … W_O {written} … W_down {down}")
    captions = [one.caption for one in section.maps]
    caption = "overlap of W_down with W_up of later layers"
    assert {caption, f"{caption}, norms folded"} <= set(captions)
    assert "overlap of the W_O of two layers, norms folded" not in captions
    assert len({one.name for one in section.maps}) == len(section.maps)
    assert all(one.draw().data for one in section.maps)


def test_another_pair_can_be_the_largest_when_norms_are_folded(monkeypatch):
    stored, folded = np.full((2, 5), 0.10), np.full((2, 5), 0.07)
    stored[1, 4], folded[0, 1] = 0.25, 0.3
    facts = weights_section(monkeypatch, stored, folded).facts
    assert_says(facts, f"W_down with W_up … {LARGEST} … chance, as stored … 25.0 %")
    assert_says(facts, f"W_O with W_K … {LARGEST} … chance, with norms folded … 10.0 %")


def test_a_writing_matrix_that_no_layer_has_is_left_out(monkeypatch):
    stored, folded = np.full((2, 5), 0.10), np.full((2, 5), 0.07)
    stored[0] = [0.10, 0.045, 0.04, 0.10, 0.01]  # an overlap below that of random subspaces also counts
    folded[0, 3] = 0.12
    stored[:, 2] = folded[:, 2] = np.nan
    down = f"W_down 10.0 % to 10.0 % {ZERO} as stored and 7.0 % to 7.0 % {ZERO} with norms folded"
    output = f"W_O 1.0 % to 10.0 % {ZERO} as stored and 7.0 % to 12.0 % {ZERO} with norms folded"
    assert_says(weights_section(monkeypatch, stored, folded).facts[-1], f"{READERS} … {output} … {down}")
    stored[0] = folded[0] = np.nan
    last = weights_section(monkeypatch, stored, folded).facts[-1]
    assert_says(last, f"{READERS} … {down}")
    assert "W_O" not in last


def test_the_overlap_of_written_directions_stands_beside_random_subspaces_with_their_spread(monkeypatch):
    written = np.zeros((2, 3, 3))
    written[:, 0, 1], written[:, 1, 2], written[:, 0, 2] = 0.4, [0.2, 0.3], 0.1
    facts = weights_section(monkeypatch, 0.1, 0.07, written, written, 0.0494).facts[:2]
    random = f"10.0 % between other layers … {NO_OVERLAP} … 5.0 %, ± 4.9 %"
    for fact, text in zip(facts, ("W_O writes: 30.0 %", "W_down writes: 35.0 %"), strict=True):
        assert_says(fact, f"{text} between neighbouring layers … {random}")


def test_norms_behind_writers_change_what_they_write(monkeypatch):
    section = weights_section(monkeypatch, 0.1, 0.07, 0.4, 0.3, 0.01)
    names = [f"{name}{form}" for name in ("W_O", "W_down") for form in ("", " (norms folded)")]
    for fact, name in zip(section.facts[:4], names, strict=True):
        number = "30.0 %" if "folded" in name else "40.0 %"
        assert_says(fact, f"{name} writes: {number} … neighbouring … {number} … other … {NO_OVERLAP} … 5.0 %, ± 1.0 %")
    assert "overlap of the W_O of two layers, norms folded" in [one.caption for one in section.maps]


def test_overlaps_stand_beside_those_of_random_matrices_with_the_same_row_lengths(monkeypatch):
    stored, folded = np.full((2, 5), 0.10), np.full((2, 5), 0.07)
    stored[0, 0] = 0.05
    facts = weights_section(monkeypatch, stored, folded, 0.4, 0.3, 0.01, null=0.08, folded_null=0.06).facts
    assert_says(facts[0], "40.0 % between other layers … give 8.0 % and 8.0 % … 5.0 %, ± 1.0 %")
    assert_says(facts[1], "give 6.0 % and 6.0 % … 5.0 %, ± 1.0 %")
    assert_says(facts, "10 combinations … as stored and 7.0 % with norms folded … give 8.0 % and 6.0 % … 5.0 %")
    folded_text = "7.0 % to 7.0 % (6.0 % to 6.0 %) with norms folded"
    assert_says(
        facts[-1],
        f"{READERS} … W_O 5.0 % to 10.0 % (8.0 % to 8.0 %) as stored and {folded_text}",
        f"W_down 10.0 % to 10.0 % (8.0 % to 8.0 %) as stored and {folded_text}",
        "9 of 10 combinations as stored … 10 of 10 with norms folded … not tested",
        "as stored … W_O with W_K: 2.0 percentage points … norms folded … W_O with W_Q: 1.0 percentage points",
    )


def test_the_pair_with_the_largest_excess_can_have_a_smaller_overlap_than_others(monkeypatch):
    stored, folded = np.full((2, 5), 0.10), np.full((2, 5), 0.07)
    stored[1, 4], folded[1, 1] = 0.25, 0.3
    group = weights_group(stored, folded, null=0.08, folded_null=0.06)
    group["writer_reader_overlap"].loc[{**RANDOM, "writing_matrix": "down", "reading_matrix": "up"}] += 0.16  # 0.24
    group["writer_reader_overlap"].loc[{**RANDOM, "writing_matrix": "o", "reading_matrix": "v"}] -= 0.05  # 0.03
    monkeypatch.setattr(weights, "read_group", lambda *_: group)
    (section,) = weights.sections(None)
    assert_says(
        section.facts[-1],
        "10 of 10 combinations as stored … 10 of 10 with norms folded … not tested",
        "as stored … W_O with W_V: 7.0 percentage points … norms folded … W_down with W_K: 24.0 percentage points",
    )


def test_a_largest_overlap_below_chance_is_no_finding(monkeypatch):
    stored, folded = np.full((2, 5), 0.10), np.full((2, 5), 0.07)
    stored[0, 0], folded[0, 0] = 0.3, 0.2
    group = weights_group(stored, folded, null=0.08, folded_null=0.08)
    group["writer_reader_overlap"].loc[{"matrices": "random", "writing_matrix": "o", "reading_matrix": "q"}] += 0.24
    group["writer_reader_overlap"].loc[{**OWN, "writing_matrix": "down", "reading_matrix": "up"}] += 0.05
    monkeypatch.setattr(weights, "read_group", lambda *_: group)
    (section,) = weights.sections(None)
    assert_says(section.facts, f"10 combinations … W_down with W_up … {LARGEST} … chance, as stored")


def test_a_writer_that_is_compared_in_its_own_block_is_named(monkeypatch):
    group = weights_group(np.full((2, 5), 0.1), 0.1)
    group["writer_reader_overlap"].loc[
        {**OWN, "writing_matrix": "o", "reading_matrix": "up", "layer": 1, "layer_other": 1}
    ] = 1
    monkeypatch.setattr(weights, "read_group", lambda *_: group)
    (section,) = weights.sections(None)
    assert_says(section.facts, "W_O also with … MLP … own block … W_O with W_up")


def test_overlaps_that_norms_do_not_change_are_shown_once(monkeypatch):
    section = weights_section(monkeypatch, 0.1, 0.1)
    assert not any("(norms folded)" in text for text in section.facts)
    assert not any("folded" in one.caption for one in section.maps)


def test_notes_of_the_group_are_shown(monkeypatch):
    assert weights_section(monkeypatch, np.zeros((2, 5)), np.zeros((2, 5))).notes == []
    noted = weights_group(np.zeros((2, 5)), np.zeros((2, 5))).assign_attrs(notes=["layers share a block"])
    monkeypatch.setattr(weights, "read_group", lambda *_: noted)
    assert weights.sections(None)[0].notes == ["layers share a block"]


@each("most", [("o", "k"), ("down", "up"), ("o", "q")])
def test_the_pair_of_matrices_that_shares_most_has_a_map(monkeypatch, most):
    between = xr.DataArray(np.full((2, 5), 0.1), {"w": ["o", "down"], "r": ["q", "k", "v", "gate", "up"]}, ["w", "r"])
    between.loc[most] = 0.4
    section = weights_section(monkeypatch, between.values, between.values)
    (fact,) = (fact for fact in section.facts if LARGEST in fact)
    assert "40.0 %" in fact
    writer, reader = fact.split(", ")[1].split(" has ")[0].split(" with ")
    assert f"overlap of {writer} with {reader} of later layers" in [one.caption for one in section.maps]
    assert len({one.name for one in section.maps}) == len(section.maps)
