"""Sentences, tables and figures of the tokens of directions."""

import numpy as np
import pandas as pd
import pytest
from support.each import each
from support.finished_runs import cached_run

from theodolite.drawing.style import bare_layout
from theodolite.groups.logit_lens import sections as logit_lens
from theodolite.groups.logit_lens.figures import shown_depths, token_strip
from theodolite.sections.parts import MISSING

LIMIT = 5.0
RAISED = [" I", "I", " Sorry", "cannot", " <b>", "\n\n", "as", "not", " no", "an"]
LOWERED = [" Here", "Sure", " sure", "Yes", "\r\n", "1", "#", "Step", " a", " the"]


def tokens(z=9.0, depths=range(1, 8), positions=(-1,)):
    """Return a table of tokens of layers 0 mid to 3 mid."""
    rows = [
        {
            **{"contrast": "refusal", "position": position, "site": "resid_mid" if depth % 2 else "resid_pre"},
            **{"layer": depth // 2, "depth": depth, "end": end, "place": place, "token": token},
            **{"token_id": place, "change": sign * (2 - 0.1 * place) * depth, "z": sign * (z - 0.1 * place)},
        }
        for position in positions
        for depth in depths
        for end, sign, texts in (("raised", 1, RAISED), ("lowered", -1, LOWERED))
        for place, token in enumerate(texts)
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def made(tmp_path, monkeypatch):
    def made(table, auroc=None, soft_cap=False, **groups):
        """Return the sections of a run with this table and the AUROC at each layer of resid_mid."""
        monkeypatch.setattr(logit_lens, "read_direction_tokens", lambda *_: table)
        given = {"curves": {}, "logit_lens": {"n_used": [20, 21]}, **groups}
        if auroc is not None:
            given["separation"] = {"auroc": np.array([np.full(4, 0.5), auroc])[:, None, :, None]}
        attributes = {"limit": LIMIT, "soft_cap": soft_cap}
        return logit_lens.sections(cached_run(tmp_path, given, attributes=attributes))

    return made


def test_sentences_name_the_tokens_at_the_depth_of_the_largest_separation(made):
    (section,) = made(tokens(), auroc=[0.6, 0.7, 0.9, 0.8])
    assert section.title == (
        "What the direction of the contrast “refusal” says at position -1: 20 harmful and 21 harmless prompts"
    )
    assert section.headline == (
        "At layer 2 mid, the direction raises “I”, “Sorry”, “cannot” and lowers “Here”, “Sure”, “Yes” most."
    )
    assert len(section.headline.split()) <= 25
    assert section.facts == [
        "At layer 2 mid, the depth of the largest separation, the difference of the means raises the logit of “·I” "
        "most, by 10 nats (z = 9.0), and lowers that of “·Here” most, by 10 nats (z = -9.0), relative to the mean over "
        "the vocabulary.",
        "Of the 20 listed tokens at this depth, 20 exceed the limit of chance for the search over the vocabulary, "
        "|z| = 5.0.",
        "Depths at which at least half of the listed tokens exceed it: 7 of 7.",
    ]
    (table,) = section.tables
    assert table.columns == ["place", "raised", "change", "z", "lowered", "change", "z"]
    assert table.rows[0] == ["1", "·I", "+10", "9.0", "·Here", "-10", "-9.0"]
    assert table.rows[5] == ["6", "⏎⏎", "+7.5", "8.5", "1", "-7.5", "-8.5"]
    assert [row[4] for row in table.rows].index("\\r⏎") == 4
    assert [figure.name for figure in section.figures] == ["logit_lens.refusal.raised", "logit_lens.refusal.lowered"]
    assert not section.finding
    assert not any("soft cap" in note for note in section.notes)


def test_without_separation_the_last_depth_counts(made):
    (section,) = made(tokens(), soft_cap=True)
    assert section.facts[0].startswith("At layer 3 mid, the last depth, the difference of the means raises")
    assert section.headline.startswith("At layer 3 mid, the direction raises")
    assert any("soft cap" in note for note in section.notes)


def test_without_a_token_beyond_chance_the_headline_names_none(made):
    (section,) = made(tokens(z=4.0))
    assert section.headline == (
        "At layer 3 mid, no listed token differs from permuted labels beyond chance (|z| of at most 5.0)."
    )
    assert section.facts[1].startswith("Of the 20 listed tokens at this depth, 0 exceed")
    assert section.facts[2].endswith("exceed it: 0 of 7.")


def test_one_end_beyond_chance_is_named_alone(made):
    table = tokens()
    table.loc[table["end"] == "lowered", "z"] = -1.0
    (section,) = made(table)
    assert section.headline == "At layer 3 mid, the direction raises “I”, “Sorry”, “cannot” most."


def test_missing_z_leave_no_nan(made):
    (section,) = made(tokens().assign(z=np.nan))
    texts = [
        section.headline,
        *section.facts,
        *section.notes,
        *(cell for row in section.tables[0].rows for cell in row),
    ]
    assert not [text for text in texts if "nan" in text.lower()]
    assert section.tables[0].rows[0][3] == MISSING
    figure = section.figures[0].draw()
    assert "nan" not in figure.to_json().lower()
    assert figure.data[0].customdata[0][0][2] == "unknown (no spread)"


def test_a_run_whose_means_are_equal_has_no_section(made):
    assert made(tokens().iloc[:0]) == []


def test_depths_beyond_chance_are_stated_as_ranges(made):
    table = tokens()
    table.loc[table["depth"] < 4, "z"] = 0.5
    (section,) = made(table)
    assert section.facts[2] == (
        "Depths at which at least half of the listed tokens exceed it: 4 of 7 (layers 2 pre to 3 mid)."
    )


def test_other_sites_are_shown_only_if_there_are_no_half_blocks(made):
    table = tokens()
    (section,) = made(pd.concat([table, table.assign(site="resid_post", depth=99)], ignore_index=True))
    assert len(section.figures[0].draw().data[0].y) == 7
    (section,) = made(table.assign(site="resid_post"))
    assert len(section.figures[0].draw().data[0].y) == 7


def test_the_strip_has_the_first_tokens_of_each_depth():
    table = tokens()
    figure = token_strip(table[table["end"] == "raised"], LIMIT)
    (cells,) = figure.data
    assert list(cells.y) == ["0-mid", "1-pre", "1-mid", "2-pre", "2-mid", "3-pre", "3-mid"]
    assert list(cells.x) == ["1", "2", "3", "4", "5", "6"]
    assert list(cells.text[0]) == ["·I", "I", "·Sorry", "cannot", "·&lt;b&gt;", "⏎⏎"]  # no tag of Plotly's texts
    assert cells.z[0][0] == 9.0
    assert list(cells.customdata[0][0]) == ["“·I”", "+2", "9.0"]
    # Between the limits, all cells have the colour of chance, and beyond them another one.
    assert (cells.zmin, cells.zmax) == (-9.0, 9.0)
    middle = [(share, colour) for share, colour in cells.colorscale if colour == "#ececea"]
    np.testing.assert_allclose([share for share, _ in middle], [2 / 9, 7 / 9])
    assert figure.layout.paper_bgcolor == bare_layout(1)["paper_bgcolor"]


def test_long_tokens_are_cut():
    table = tokens(depths=[3])
    table.loc[(table["end"] == "raised") & (table["place"] == 0), "token"] = " " * 40
    cells = token_strip(table[table["end"] == "raised"], LIMIT).data[0]
    assert cells.text[0][0] == "·" * 14 + "…"


@each("n, shown", [(1, 1), (48, 48), (49, 25), (59, 30), (60, 30), (128, 43)])
def test_a_strip_has_at_most_48_depths_and_that_of_the_table(n, shown):
    found = shown_depths(list(range(n)))
    assert len(found) == shown
    assert found[-1] == n - 1
    assert found == sorted(found)
    assert shown_depths(list(range(n)), n - 2) == sorted({*found, n - 2} & {*range(n)})
