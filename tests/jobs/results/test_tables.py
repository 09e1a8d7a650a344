"""Flat tables hold the numbers of the arrays."""

from support.analysing import analyse
from support.result_cases import (
    REQUESTED,
    assert_same_rows,
    contrast,
    draw,
    norms,
    silent,
)
from support.stored import assert_declared, read_table, store_run

from theodolite.store.result_reader import read_group


def test_flat_tables_hold_the_same_numbers(tmp_path):
    arrays = {"bad": draw(6), "good": draw(7, positions=1, seed=1)}
    contrasts = {"refusal": contrast("bad", "good")}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    analyse(run, contrasts, None, silent, requested=REQUESTED, norms=norms())
    for name in ("curves", *sorted(REQUESTED)):
        assert_same_rows(read_table(run.location, f"tables/{name}.parquet"), read_group(run, name))
    assert_declared(run)
