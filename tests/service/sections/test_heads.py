"""Sentences about the ranks of heads, beside those of random weights."""

import numpy as np
import pytest
import xarray as xr
from support.finished_runs import finished_run

from theodolite.sections import heads
from theodolite.store.result_reader import read_group

RANKS = np.array([[[[8.0, 7.5], [3.04, 9.0]], [[60.0, 50.0], [12.25, 70.0]]]]).swapaxes(0, 1)
"""(circuit, offset, layer, head)"""

MEDIAN = (
    "Median effective rank of the circuits, of at most 64: QK 7.8 (smallest 3.0, of L1H0); VO 55.0 (smallest 12.2, of "
)


def group(random, ranks=RANKS):
    dims = ("circuit", "offset", "layer", "head")
    return xr.Dataset(
        {"effective_rank": (dims, ranks), "effective_rank_random": random},
        {"circuit": ["qk", "vo"], "offset": [0], "layer": range(2), "head": range(2), "rank": range(64)},
    )


def test_the_effective_ranks_of_both_circuits_stand_beside_that_of_random_weights():
    assert list(heads._rank_facts(group(52.04))) == [f"{MEDIAN}L1H0); circuits of random weights have 52.0."]


def test_effective_ranks_of_an_older_version_have_no_null():
    assert list(heads._rank_facts(group(np.nan))) == [f"{MEDIAN}L1H0)."]


def test_a_circuit_of_zeros_has_no_rank_and_is_not_the_smallest():
    ranks = RANKS.copy()
    ranks[0, 0, 1, 0] = np.nan
    (fact,) = heads._rank_facts(group(52.04, ranks))
    assert "64: QK 8.0 (smallest 7.5, of L0H1); VO 55.0" in fact


def test_the_rank_is_that_at_offset_0():
    rotated = group(52.04, RANKS / 2).assign_coords(offset=[4])
    both = xr.concat([rotated, group(52.04)], "offset", data_vars="minimal", coords="minimal", compat="override")
    assert list(heads._rank_facts(both)) == list(heads._rank_facts(group(52.04)))


@pytest.mark.parametrize("parts", [(), ("_random",)])
def test_a_stored_run_has_the_null_unless_an_older_version_wrote_it(tmp_path, older_run, parts):
    values = {"effective_rank": 1.5, "effective_rank_random": 1.8}
    run = older_run("heads", values, *parts) if parts else finished_run(tmp_path, {"heads": values})
    (fact,) = heads._rank_facts(read_group(run, "heads"))
    assert fact == (
        "Median effective rank of the circuits, of at most 2: QK 1.5 (smallest 1.5, of L0H0); VO 1.5 (smallest 1.5, of "
        f"L0H0){'' if parts else '; circuits of random weights have 1.8'}."
    )
