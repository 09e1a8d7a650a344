"""Check the table of the runs of a store against that of a service over the same store."""

import json
from pathlib import Path

import pandas as pd
import pytest
from support.each import each
from support.serving import copied

import theodolite
from theodolite.errors import StoreError


@each(
    "choices",
    [
        {},
        {"numbers": True},
        {"model": "TINY"},
        {"contrast": "subject"},
        {"model": "tiny", "contrast": "no"},
        {"model": "big"},
    ],
)
def test_a_store_and_a_service_return_the_same_table(shelf, service, choices):
    pd.testing.assert_frame_equal(theodolite.runs(shelf, **choices), service.runs(**choices))


def test_the_table_has_the_complete_runs_newest_first(shelf):
    table = theodolite.runs(Path(shelf))
    assert sorted(table["run_id"]) == ["heads-0", "tiny-0"]  # captured-0 has no results
    assert table["created"].is_monotonic_decreasing
    assert isinstance(table["created"].iloc[0], pd.Timestamp)
    for run_id in table["run_id"]:
        assert theodolite.open_run(shelf, run_id).id == run_id


def test_the_numbers_are_those_of_the_overview_and_of_a_comparison(shelf):
    table = theodolite.runs(shelf, numbers=True).set_index(["run_id", "contrast"])
    contrasts = ("refusal", "subject")
    assert sorted(table.index) == [(run, contrast) for run in ("heads-0", "tiny-0") for contrast in contrasts]
    for contrast in contrasts:
        row = table.loc["tiny-0", contrast]
        (known,) = theodolite.compare(["tiny-0"], contrast=contrast, store=shelf).attrs["milestones"]
        assert row["largest_auroc"] == known["largest_auroc"]
        assert row["least_cosine_at"] == known["least_cosine_at"]
        tile, *_ = theodolite.open_run(shelf, "tiny-0").overview(contrast).tiles
        assert (row["separable"], row["separable_low"], row["separable_answer"]) == (
            *(tile.glyph.value, tile.glyph.low),
            tile.answer,
        )


def test_a_damaged_run_is_left_out(shelf, tmp_path):
    store = copied(shelf, tmp_path, "heads-0", "tiny-0")
    (tmp_path / "runs/tiny-0/run.json").write_text(json.dumps({}))
    assert theodolite.runs(store)["run_id"].tolist() == ["heads-0"]


def test_an_empty_store_has_a_table_with_the_same_columns(shelf, tmp_path):
    table = theodolite.runs(tmp_path / "none")
    assert len(table) == 0
    assert table.columns.tolist() == theodolite.runs(shelf).columns.tolist()


def test_an_invalid_url_raises():
    with pytest.raises(StoreError, match="cannot open the store nowhere://bucket"):
        theodolite.runs("nowhere://bucket")
