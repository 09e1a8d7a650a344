"""Sentences about the parity check and the spot checks."""

from dataclasses import replace

import numpy as np
from support.sentences import assert_each_says
from support.stored import store_run

from theodolite.query.parity import parity_notes, spot_check_notes
from theodolite.query.runs import describe
from theodolite.store.records import decode_record, encode_record
from theodolite.store.runs import open_run

HALF = {
    "dtype": "bfloat16",
    "float32_distances": {
        "resid_pre": {"captured": [0.01, 0.02], "plain": [0.011, 0.021]},
        "mlp_out": {"captured": [0.03, 0.5], "plain": [0.028, 0.6]},
    },
    "routing": "compared",
    "routing_flips": 1234,
    "routed": 56789,
}


def test_half_precision_states_the_distances_from_float32_and_the_routing():
    assert_each_says(
        parity_notes(HALF),
        "mlp_out … 3.0e-02 in the median … 5.0e-01 at the 95 % quantile … plain … bfloat16 … 2.8e-02 and 6.0e-01",
        "1,234 of 56,789 routings … rounding",
    )
    assert "not known" in list(parity_notes({**HALF, "routing": "unknown"}))[1]
    assert len(list(parity_notes({**HALF, "routing": "no experts"}))) == 1


def test_float32_and_half_precision_without_distances_need_no_sentence():
    assert list(parity_notes({"dtype": "float32", "float32_distances": None, "routing": "not compared"})) == []
    assert list(parity_notes({"dtype": "bfloat16", "bound": 4e-2})) == []


def test_the_rounding_of_plain_float32_explains_a_large_error_unless_a_warning_does():
    measured = {"dtype": "float32", "max_error": 1.8e-5, "float32_rounding": 2.2e-5, "warning": None}
    assert_each_says(parity_notes(measured), "float32 … float64 … 2.2e-05 … three times … can be rounding")
    assert list(parity_notes({**measured, "warning": "The error is large"})) == []
    assert list(parity_notes({**measured, "max_error": 9e-6})) == []
    half = {**measured, "dtype": "bfloat16", "max_error": 0.02}
    assert list(parity_notes({**half, "float32_blocks_max_error": 1e-6})) == []
    assert list(parity_notes({**half, "float32_blocks_max_error": 1.1e-5})) != []


def test_spot_checks_of_all_sets_are_summed():
    one = {"spot_checks": 1200, "spot_checks_rerouted": 0, "spot_check_error": 2e-6}
    two = {"spot_checks": 34, "spot_checks_rerouted": 2, "spot_check_error": 3e-6}
    assert_each_says(spot_check_notes({"a": one, "b": two}), "1,234 more prompts … 3.0e-06 … 2 of them")
    assert list(spot_check_notes({"a": {**one, "spot_checks": 0}})) == []


def test_commit_records_with_spot_checks_are_read(tmp_path):
    store_run(tmp_path, {"set": {"resid_pre": np.ones((10, 1, 3, 8))}}, shard_prompts=4)
    run = open_run(str(tmp_path), "tiny-0")
    content = (tmp_path / "runs/tiny-0/shards/set/00001.json").read_bytes()
    commit = decode_record(content, run.record, "set", 1)
    assert encode_record(commit) == content
    checked = replace(commit, spot_checks=2, spot_checks_rerouted=1, spot_check_error=0.25)
    assert decode_record(encode_record(checked), run.record, "set", 1) == checked
    assert describe(run)["sets"]["set"]["spot_checks"] == 0
