"""The table of effects and the means of scores, from numbers written by hand."""

import numpy as np
import pytest

from theodolite.sites import Site
from theodolite_jobs.effects.work import Question
from theodolite_jobs.groups.effects.means import score_changes
from theodolite_jobs.groups.effects.table import empty_table, table_of

DOSES = (-1.0, 1.0, 2.0)


def question(*, is_paired: bool = True) -> Question:
    return Question((Site.RESID_PRE,), (4,), DOSES, (0,), (1,), is_paired=is_paired, has_parts=False)


SCORED = (3, 5)  # the layers at whose input scores are measured: before and after the change at layer 4


def measured(scored: int = 2) -> dict[str, np.ndarray]:
    """Two pairs, one place, three doses: prompts 0 and 2 are positive."""
    column = np.arange(4.0)[:, None]
    changes = {
        "patch": {"kl": column, "log_odds": np.array([[1.0], [-3.0], [0.5], [2.0]])},
        "remove": {"kl": 10 + column, "log_odds": 20 + column},
        "dose": {"kl": np.tile(30 + column, (1, 3))[:, None], "log_odds": np.tile(40 + column, (1, 3))[:, None]},
    }
    arrays = {f"{name}_{measure}": values for name, of in changes.items() for measure, values in of.items()}
    scores = {
        f"{name}_score": first + np.arange(4.0 * scored).reshape(4, 1, scored)
        for name, first in {"patch": 100, "remove": 200, "add": 300}.items()
    }
    return {**arrays, **scores, "intact_log_odds": np.array([0.0, 4.0, 1.0, 1.0])}


def rows(table, **where):
    for name, value in where.items():
        table = table[table[name].isna() if value is None else table[name] == value]
    return table


def test_a_row_holds_the_numbers_of_its_prompt_and_intervention():
    table = table_of(measured(), question(), np.array([7, 7, 9, 9]), ("harmful", "harmless"), SCORED)
    assert len(table) == 4 * (2 + 3)
    (row,) = rows(table, set="harmless", sample=9, intervention="remove").to_dict("records")
    assert (row["kl"], row["log_odds"], row["site"], row["layer"]) == (13, 23, "resid_pre", 4)
    assert set(table.columns) | {"contrast", "position"} == set(empty_table().columns)


def test_a_patch_restores_a_share_of_the_difference_of_its_own_pair():
    patched = rows(table_of(measured(), question(), np.arange(4), ("a", "b"), SCORED), intervention="patch")
    # From 0 to 4 it moved by 1, from 4 to 0 by -3; the second pair has no difference to restore.
    np.testing.assert_array_equal(patched["pair_restored"], [0.25, 0.75, np.nan, np.nan])


def test_without_pairs_no_share_is_restored():
    table = table_of(measured(), question(is_paired=False), np.arange(4), ("a", "b"), SCORED)
    assert table["pair_restored"].isna().all()


def test_the_score_is_that_of_the_last_layer_and_of_the_dose_towards_the_other_set():
    table = table_of(measured(), question(), np.arange(4), ("a", "b"), SCORED)
    assert rows(table, intervention="patch")["score_change"].tolist() == [101, 103, 105, 107]
    assert rows(table, set="a", dose=-1.0)["score_change"].tolist() == [301, 305]
    assert rows(table, set="b", dose=1.0)["score_change"].tolist() == [303, 307]
    for where in ({"set": "a", "dose": 1.0}, {"set": "b", "dose": -1.0}, {"dose": 2.0}):
        assert rows(table, **where)["score_change"].isna().all()


def test_without_a_captured_block_input_no_score_is_known():
    table = table_of(measured(scored=0), question(), np.arange(4), ("a", "b"), ())
    assert table["score_change"].isna().all()


def test_a_score_that_is_measured_before_the_change_is_missing():
    assert table_of(measured(), question(), np.arange(4), ("a", "b"), (2, 3))["score_change"].isna().all()
    later = Question((Site.RESID_MID,), (5,), DOSES, (0,), (1,), is_paired=True, has_parts=False)
    assert table_of(measured(), later, np.arange(4), ("a", "b"), SCORED)["score_change"].isna().all()


def test_score_changes_are_means_over_the_prompts_of_a_side_with_intervals():
    found = score_changes(measured(), question().places, SCORED)
    assert found.shape == (2, 1, 3, 2, 3)
    value, low, high = np.moveaxis(found, -1, 0)
    assert np.isnan(value[..., 0]).all(), "measured before the change"
    # Positive prompts are 0 and 2: (101 + 105) / 2 at the second layer that is scored.
    assert value[0, 0, :, 1] == pytest.approx([103, 203, 303])
    assert value[1, 0, :, 1] == pytest.approx([105, 205, 305])
    assert (low[0, 0, :, 1] == [101, 201, 301]).all()
    assert (high[0, 0, :, 1] == [105, 205, 305]).all()
