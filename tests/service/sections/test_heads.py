"""Sentences about ranks and copying scores of heads, beside those of random weights, and the section's tables."""

import numpy as np
import xarray as xr
from support.each import each
from support.finished_runs import cached_run
from support.sentences import assert_says

from theodolite.groups.heads import sections as heads
from theodolite.sections.parts import CHANCE
from theodolite.store.result_reader import read_group

RANKS = np.array([[[[8.0, 7.5], [3.04, 9.0]], [[60.0, 50.0], [12.25, 70.0]]]]).swapaxes(0, 1)
"""(circuit, offset, layer, head)"""

MEDIAN = "64: QK 7.8 (smallest 3.0, of L1H0); OV 55.0 (smallest 12.2, of L1H0)"


def group(random, ranks=RANKS):
    dims = ("circuit", "offset", "layer", "head")
    return xr.Dataset(
        {"effective_rank": (dims, ranks), "effective_rank_random": random},
        {"circuit": ["qk", "ov"], "offset": [0], "layer": range(2), "head": range(2), "rank": range(64)},
    )


def test_the_effective_ranks_of_both_circuits_stand_beside_that_of_random_weights():
    (fact,) = heads._rank_facts(group(52.04))
    assert_says(fact, f"{MEDIAN} … random weights … 52.0")


def test_effective_ranks_of_heads_without_a_common_null_stand_alone():
    (fact,) = heads._rank_facts(group(np.nan))
    assert_says(fact, MEDIAN)
    assert "random" not in fact


def test_a_circuit_of_zeros_has_no_rank_and_is_not_the_smallest():
    ranks = RANKS.copy()
    ranks[0, 0, 1, 0] = np.nan
    (fact,) = heads._rank_facts(group(52.04, ranks))
    assert_says(fact, "QK 8.0 (smallest 7.5, of L0H1); OV 55.0")


def test_the_rank_is_that_at_offset_0():
    rotated = group(52.04, RANKS / 2).assign_coords(offset=[4])
    both = xr.concat([rotated, group(52.04)], "offset", data_vars="minimal", coords="minimal", compat="override")
    assert list(heads._rank_facts(both)) == list(heads._rank_facts(group(52.04)))


def both(scores):
    """Return scores that are the same with and without centring."""
    return scores.expand_dims(centring=["centred", "uncentred"])


def test_heads_are_counted_by_the_sign_of_a_high_copying_score():
    scores = xr.DataArray([[0.95, 0.9], [0.91, -0.95]], dims=("layer", "head"))
    scores = scores.assign_coords(layer=range(2), head=range(2))
    data = {"copying_score": both(scores), "copying_score_random_sd": 0.2}
    assert_says(next(heads._copying_facts(xr.Dataset(data))), "above 0.9 in 2 of 4 heads … below -0.9 in 1 head")


@each("sd, distinct", [(0.2, "2 heads"), (0.23, "1 head"), (0.24, "0 heads")])
def test_copying_scores_are_compared_with_those_of_random_circuits(sd, distinct):
    scores = xr.DataArray([[0.5, 0.85], [0.1, -0.95]], dims=("layer", "head"))
    scores = scores.assign_coords(layer=range(2), head=range(2))
    data = {"copying_score": both(scores), "copying_score_random_sd": sd}
    fact, _ = heads._copying_facts(xr.Dataset(data))
    assert_says(fact, f"random … 0 ± {sd:.2f} … more than four … {distinct}")


def test_the_heads_with_the_largest_and_smallest_copying_scores_are_listed():
    scores = xr.DataArray(np.linspace(-1, 0.7, 18).reshape(9, 2), dims=("layer", "head"))
    scores = scores.assign_coords(layer=range(9), head=range(2))
    (table,) = heads._copying_tables(xr.Dataset({"copying_score": both(scores)}))
    assert [row[0] for row in table.rows[:2] + table.rows[-2:]] == ["L8H1", "L8H0", "L0H1", "L0H0"]
    assert [row[0] for row in table.rows[7:9]] == ["L5H0", "L3H1"]
    few = xr.Dataset({"copying_score": both(scores[:2].where(scores[:2] < -0.75))})
    (table,) = heads._copying_tables(few)
    assert [row[0] for row in table.rows] == ["L1H0", "L0H1", "L0H0"]
    assert list(heads._copying_tables(few * np.nan)) == []


SECTION = {
    "effective_rank": 1.5,
    "singular_values": 1.0,
    "null_dimension": 3,
    "null_variance": 0.25,
    "direction_alignment": 0.5,
    "direction_alignment_null": {"mean": 0.25, "sd": 0.125, "z": 4.0, "p_family": 0.01, "p_low_family": 1.0},
}


@each("z", [4.0, np.nan])
def test_the_section_has_a_table_of_tested_alignments(tmp_path, monkeypatch, z):
    null = SECTION["direction_alignment_null"] | {"z": z}
    values = {"directions": {"reliability": 0.9}, "heads": SECTION | {"direction_alignment_null": null}}
    run = cached_run(tmp_path, {"curves": {}, **values})
    noted = read_group(run, "heads").assign_attrs(notes=[])
    monkeypatch.setattr(heads, "read_group", lambda _, name: noted if name == "heads" else read_group(run, name))
    (section,) = heads.sections(run)
    rows = [
        [side, *row]
        for side in ("QK query", "QK key", "OV read", "OV write")
        for row in (
            ["largest 4.0", "L0H0", "0.50", "0.25 ± 0.12", "0.01"],
            ["smallest 4.0", "L0H0", "0.50", "0.25 ± 0.12", "1"],
        )
    ]
    assert [table.rows for table in section.tables] == ([] if np.isnan(z) else [rows])
    writing = "8 of 8 heads … OV write … “refusal” … larger than with permuted labels … 64 and 63 prompts … Bonferroni"
    if np.isnan(z):
        assert section.finding == section.facts[0]
    else:
        assert_says(section.finding, f"{section.facts[0]} … {writing} … 0)")
    assert section.notes == ([CHANCE, *heads._ALIGNMENT_NOTES] if np.isfinite(z) else [])
    shares = "position -1 … harmful 25.0 % and 25.0 % (n = 4); harmless 25.0 % and 25.0 % (n = 4)"
    assert_says(section.facts[-1], f"null space … 3 of 8, 37.5 % … {shares} … random subspace … 37.5 %")


def test_keys_of_an_earlier_layer_are_as_reliable_as_its_direction(monkeypatch):
    monkeypatch.setattr(heads, "unreliable_layers", lambda *_: [0, 4])
    group = xr.Dataset(coords={"layer": range(6)})
    shared = group.assign_attrs(keys_of={"3": 0, "4": 1})
    found = {side: heads._unreliable(shared, group, "refusal", side) for side in heads._SIDES}
    assert found == {"qk_query": [0, 4], "qk_key": [0, 3], "ov_read": [0, 3], "ov_write": [0, 4]}
    assert heads._unreliable(group, group, "refusal", "qk_key") == [0, 4]
    assert heads._unreliable(shared, None, "refusal", "qk_key") == []
