"""Directions that few prompts cannot repeat are drawn grey, and no sentence or table interprets them."""

import numpy as np
import pytest
import xarray as xr
from support.finished_runs import cached_run
from support.sentences import assert_says

from theodolite.groups.directions import sections as directions_sections
from theodolite.groups.heads import sections as heads
from theodolite.query.directions import unreliable_layers
from theodolite.store.result_reader import read_group

RELIABILITY = np.array([[np.nan, 0.3, 0.6, 0.9], [0.2, 0.4, 0.7, 0.95]])[:, None]  # (site, position, layer)
NOISE = np.array([[np.nan, 0.8, 0.35, 0.1], [0.85, 0.55, 0.3, 0.05]])[:, None]


@pytest.fixture
def run(tmp_path):
    directions = {"reliability": RELIABILITY, "noise_share": NOISE, "direction_cosine": 0.5}
    return cached_run(tmp_path, {"curves": {}, "directions": directions})


SMALLEST = "Smallest reliability"


def test_the_section_names_the_least_reliable_direction(run):
    (section,) = directions_sections.sections(run)
    assert_says(section.facts, f"{SMALLEST} … 0.20 at layer 0 mid … 85 % … noise … 4 of 7 depths … at least 0.5")


def test_the_share_of_noise_is_that_at_the_least_reliable_direction(tmp_path):
    noise = np.where(RELIABILITY == 0.2, 0.6, 0.85)
    directions = {"reliability": RELIABILITY, "noise_share": noise, "direction_cosine": 0.5}
    run = cached_run(tmp_path, {"curves": {}, "directions": directions})
    (section,) = directions_sections.sections(run)
    assert_says(section.facts, f"{SMALLEST} … 0.20 at layer 0 mid … 60 % … noise")


def test_a_map_of_cosines_is_pale_at_unreliable_layers(run):
    (section,) = directions_sections.sections(run)
    pre, mid = (figure.draw() for figure in section.maps)
    for figure, layers in ((pre, [1]), (mid, [0, 1])):
        covered = np.array(figure.data[1].z, dtype=object) == 1
        expected = np.isin(range(4), layers)
        np.testing.assert_array_equal(covered, expected[:, None] | expected)


def test_reliable_directions_have_no_pale_cells(tmp_path):
    directions = {"reliability": 0.9, "noise_share": 0.1, "direction_cosine": 0.5}
    run = cached_run(tmp_path, {"curves": {}, "directions": directions})
    (section,) = directions_sections.sections(run)
    assert [len(figure.draw().data) for figure in section.maps] == [1, 1]
    (fact,) = (fact for fact in section.facts if "reliability" in fact)
    assert_says(fact, f"{SMALLEST} … 0.90 at layer 0 pre … 10 % … noise … 8 of 8 depths … at least 0.5")


def test_the_figure_of_reliability_has_both_measures_along_the_stream(run):
    (section,) = directions_sections.sections(run)
    figure = next(one for one in section.figures if one.name == "directions.refusal").draw()
    names = [trace.name for trace in figure.data]
    assert names[:2] == ["reliability", "noise share"]
    np.testing.assert_array_equal(np.array(figure.data[0].y, dtype=float), RELIABILITY[:, 0].T.ravel())


def heads_group(alignment, z=np.nan):
    values, z = (np.broadcast_to(array, (1, 4, 4, 2)) for array in (alignment, z))
    dims = ("contrast", "side", "layer", "head")
    tests = {"mean": 0.25, "sd": 0.125, "z": z, "p_family": np.where(z > 3, 0.05, 0.3), "p_low_family": 0.9}
    null = np.stack([np.broadcast_to(array, values.shape) for array in tests.values()], axis=-1)
    return xr.Dataset(
        {
            "direction_alignment": (dims, values),
            "direction_alignment_null": ((*dims, "null"), null),
        },
        {
            "contrast": ["refusal"],
            "side": ["qk_query", "qk_key", "ov_read", "ov_write"],
            "layer": range(4),
            "head": range(2),
            "null": list(tests),
        },
        {"direction_prompts": {"refusal": [64, 63]}, "direction_position": -2},
    )


ALIGNED = "“refusal” … position -2, at offset 0 … 64 and 63 prompts"
NULL = "0.25 ± 0.12"
UNRELIABLE = "(unreliable direction)"
READING = ("QK query", "QK key", "OV read")
SIDES = (*READING, "OV write")
NONE = "0 with Bonferroni's correction), 0 smaller"


def said(text, *of_sides):
    """Check what a sentence says about each side, in this order."""
    assert_says(text, " … ".join(of_sides))


def test_heads_at_unreliable_layers_are_not_the_largest(run):
    directions = read_group(run, "directions")
    assert unreliable_layers(directions, "refusal", "qk_query") == [1]
    assert unreliable_layers(directions, "refusal", "ov_write") == [0, 1]
    by_layer = np.array([0.9, 0.8, 0.2, 0.3])[:, None] + np.array([0.0, 0.01])
    fact, left_out = heads._alignment_facts(heads_group(by_layer), directions)
    assert_says(fact, ALIGNED)
    said(fact, *(f"{side} is not tested … 6 heads L0H1: 0.91" for side in READING), "OV write … 4 heads L3H1: 0.31")
    said(left_out, *(f"{n} heads of {side} {UNRELIABLE}" for side, n in zip(SIDES, (2, 2, 2, 4), strict=True)))
    assert list(heads._alignment_tables(heads_group(by_layer), directions)) == []


def test_heads_are_chosen_by_their_z_against_permuted_labels(run):
    alignment = np.array([[0.9, 0.9], [0.8, 0.8], [0.5, 0.75], [0.4, 0.6]])
    z = np.array([[9.0, 8.0], [9.5, 9.5], [4.0, 2.0], [5.0, 1.0]])
    directions = read_group(run, "directions")
    group = heads_group(alignment, z)
    fact, _ = heads._alignment_facts(group, directions)
    said(fact, *(f"{side} 4 larger (layers 0, 2, 3; {NONE}, of 6" for side in READING))
    assert_says(fact, ALIGNED, f"OV write 2 larger (layers 2, 3; {NONE}, of 4")
    rows = []
    for side in READING:
        rows += [
            [side, "largest 9.0", "L0H0", "0.90", NULL, "0.05"],
            [side, "smallest 1.0", "L3H1", "0.60", NULL, "0.9"],
        ]
    rows += [
        ["OV write", "largest 5.0", "L3H0", "0.40", NULL, "0.05"],
        ["OV write", "smallest 1.0", "L3H1", "0.60", NULL, "0.9"],
    ]
    (table,) = heads._alignment_tables(group, directions)
    assert table.rows == rows
    assert len(table.columns) == len(rows[0])
    few = heads_group(alignment, z / 4)
    fact, _ = heads._alignment_facts(few, directions)
    assert_says(fact, "OV write 0 larger, 0 smaller, of 4")
    (table,) = heads._alignment_tables(few, directions)
    assert table.rows[-2:] == [
        ["OV write", "largest 1.2", "L3H0", "0.40", NULL, "0.3"],
        ["OV write", "smallest 0.2", "L3H1", "0.60", NULL, "0.9"],
    ]


def test_heads_below_chance_are_counted_too(run):
    z = np.array([[9.0, -9.0], [9.0, 9.0], [4.0, 2.0], [-5.0, 1.0]])
    group = heads_group(0.5, z)
    group["direction_alignment_null"].loc[{"null": "p_low_family"}] = np.where(z < -4, 0.05, 0.06)
    directions = read_group(run, "directions")
    fact, _ = heads._alignment_facts(group, directions)
    texts = [f"(layer{layers}; 0 with Bonferroni's correction)" for layers in ("s 0, 2", "s 0, 3", " 2", " 3")]
    said(fact, *(f"{side} 2 larger {texts[0]}, 2 smaller {texts[1]}, of 6" for side in READING))
    # Only reliable layers are counted.
    assert_says(fact, ALIGNED, f"OV write 1 larger {texts[2]}, 1 smaller {texts[3]}, of 4")
    (table,) = heads._alignment_tables(group, directions)
    assert table.rows[:2] == [
        ["QK query", "largest 9.0", "L0H0", "0.50", NULL, "0.05"],
        ["QK query", "smallest -9.0", "L0H1", "0.50", NULL, "0.05"],
    ]
    assert table.rows[-2:] == [
        ["OV write", "largest 4.0", "L2H0", "0.50", NULL, "0.05"],
        ["OV write", "smallest -5.0", "L3H0", "0.50", NULL, "0.05"],
    ]
    group["direction_alignment_null"].loc[{"null": "p_low_family"}] += 0.02
    (table,) = heads._alignment_tables(group, directions)
    assert [row[-1] for row in table.rows[-2:]] == ["0.05", "0.07"]


def test_no_head_is_named_if_no_direction_is_reliable(tmp_path):
    run = cached_run(tmp_path, {"directions": {"reliability": 0.1}})
    fact, left_out = heads._alignment_facts(heads_group(0.5), read_group(run, "directions"))
    said(fact, *(f"{side} has no reliable direction" for side in SIDES))
    said(left_out, *(f"8 heads of {side} {UNRELIABLE}" for side in SIDES))
    assert list(heads._alignment_tables(heads_group(0.5, 4.0), read_group(run, "directions"))) == []


def test_heads_whose_input_has_equal_means_are_counted(tmp_path):
    run = cached_run(tmp_path, {"directions": {"reliability": 0.9}})
    alignment = np.full((1, 4, 4, 2), 0.5)
    alignment[0, 0, 0, 1], alignment[0, 2, :2] = np.nan, np.nan
    fact, left_out = heads._alignment_facts(heads_group(alignment), read_group(run, "directions"))
    largest = zip(SIDES, (7, 8, 4, 8), ("L0H0", "L0H0", "L2H0", "L0H0"), strict=True)
    said(fact, *(f"{side} is not tested … {n} heads {head}: 0.50" for side, n, head in largest))
    said(left_out, "1 head of QK query (no direction)", "4 heads of OV read (no direction)")


def test_heads_that_all_have_a_reliable_direction_need_no_second_sentence(tmp_path):
    run = cached_run(tmp_path, {"directions": {"reliability": 0.9}})
    directions = read_group(run, "directions")
    assert len(list(heads._alignment_facts(heads_group(0.5), directions))) == 1
    alignment = np.full((1, 4, 4, 2), 0.5)
    alignment[0, 3] = np.nan
    fact, *left_out = heads._alignment_facts(heads_group(alignment), directions)
    assert "OV write" not in fact
    assert left_out == []
    assert list(heads._alignment_facts(heads_group(np.nan), directions)) == []


def test_heads_that_pass_bonferronis_correction_for_eight_tests_are_counted(run):
    group = heads_group(0.5, np.full((4, 2), 9.0))
    p_family = np.array([[0.006, 0.007], [0.05, 0.06], [1, 1], [1, 1]])
    group["direction_alignment_null"].loc[{"null": "p_family"}] = p_family
    fact, _ = heads._alignment_facts(group, read_group(run, "directions"))
    assert_says(fact, "QK query 2 larger (layer 0; 1 with Bonferroni's correction), 0 smaller, of 6")
