"""Check sentences, maps and tables about nouns, biases and composition from given results."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from theodolite.groups import GROUPS
from theodolite.sections import heads_composition, words_biases, words_nouns
from theodolite.sections.heads_composition import composition_sections
from theodolite.sections.words_biases import bias_sections
from theodolite.sections.words_nouns import noun_sections

LAYERS, HEADS, NOUNS = 3, 2, ["cat", "dog", "sun", "sea"]


def group(**values: np.ndarray) -> xr.Dataset:
    """Return the group `words` of a model with six heads; variables that are not given are 1."""
    shape = (LAYERS, HEADS)
    arrays = {one.name: (one.dims, values.get(one.name, np.ones(shape))) for one in GROUPS["words"].variables}
    attributes = {"nouns": len(NOUNS), "tokens": 5, "nouns_dropped": [], "own_keys_chance": 0.002}
    attributes["tables"] = ["noun_keys", "noun_values", "noun_alignment", "noun_scores", "noun_offsets"]
    return xr.Dataset(arrays, {"layer": range(LAYERS), "head": range(HEADS)}, attributes)


def tables(layer: int, head: int) -> dict[str, pd.DataFrame]:
    pairs = [(q, k) for q in range(4) for k in range(4)]
    scores = pd.DataFrame(pairs, columns=["noun_id", "key_id"]).assign(layer=layer, head=head, similarity=1.0)
    names = {"noun": [f" {NOUNS[q]}" for q, _ in pairs], "key": [f" {NOUNS[k]}" for _, k in pairs]}
    lists = pd.DataFrame([(q, place) for q in range(4) for place in (1, 0)], columns=["noun_id", "place"])
    lists = lists.assign(noun=[f" {NOUNS[q]}" for q in lists["noun_id"]])
    lists = lists.assign(
        token=[f" {NOUNS[q]}{place}" for q, place in zip(lists["noun_id"], lists["place"], strict=True)]
    )
    near = pd.DataFrame({"noun_id": range(4), "noun": NOUNS, "nearest_before": "sun", "nearest_after": "sea"})
    offsets = pd.DataFrame({"offset": [1, 4] * 2, "share_kept": [0.9, 0.5, 0.7, 0.1], "n": 4})
    found = {"noun_scores": scores.assign(score=range(16), **names), "noun_keys": lists, "noun_values": lists}
    return {**found, "noun_alignment": near, "noun_offsets": offsets}


def words_group(**changed):
    """Return a group in which L1H0 and L1H1 pass the test with permuted nouns, and only L1H0 that with matrices."""
    p_family = np.full((LAYERS, HEADS), 1.0)
    p_family[1] = 0.01
    random_p = p_family.copy()
    random_p[1, 1] = 0.5
    z = np.arange(6.0).reshape(LAYERS, HEADS) * [[1], [5], [1]]
    values = {"relatedness": z / 100, "relatedness_z": z, "relatedness_p_family": p_family}
    values["relatedness_random_z"] = z / 2  # the stricter test
    first = np.array([[0.1, 0.0], [0.2, 0.75], [0.3, 0.1]])
    own = {"own_first": first, "own_first_p_family": np.where(first > 0.25, 0.01, 1), "own_keys": first / 2}
    return group(**{**values, "relatedness_random_p_family": random_p, **own, **changed})


@pytest.fixture
def section_of(monkeypatch):
    found = tables(1, 1)
    monkeypatch.setattr(words_nouns, "read_words", lambda _, name, filters=(): found[name])

    def made(words):
        (section,) = noun_sections(None, words)
        return section

    return made


@pytest.fixture
def section(section_of):
    return section_of(words_group())


STRICTER = "has the largest z in the stricter of both tests: relatedness"
BOTH_TESTS = (
    "In {} of 6 heads the relatedness is larger than with permuted nouns and larger than with random matrices of the "
    "same singular values (family-wise p of at most 0.05 in both tests). Of {}, where permuted nouns give "
)


def test_sentences_count_the_heads_that_pass_both_tests(section):
    assert section.facts[0] == (
        "Relatedness (mean rank correlation between similarity and score, n = 4 nouns): median over heads 0.04, from "
        "0.00 to 0.15 (all heads, also those that pass no test); unrelated orders give 0."
    )
    assert section.facts[1] == (
        f"{BOTH_TESTS.format(1, f'these, L1H0 {STRICTER} 0.10')}1.00 ± 1.00 (z = 10.0, p = 0.01 over all heads) and "
        "random matrices give 1.00 ± 1.00 (z = 5.0, p = 0.01 over all heads)."
    )


def test_the_largest_z_of_all_heads_is_stated_if_none_passes_both_tests(section_of):
    section = section_of(words_group(relatedness_random_p_family=np.array([[1.0, 1.0], [0.2, 0.3], [1.0, 1.0]])))
    assert section.facts[1] == (
        f"{BOTH_TESTS.format(0, f'all, L1H1 {STRICTER} 0.15')}1.00 ± 1.00 (z = 15.0, p = 0.01 over all heads) and "
        "random matrices give 1.00 ± 1.00 (z = 7.5, p = 0.3 over all heads)."
    )
    assert not [trace for trace in section.maps[0].draw().data if trace.type == "scatter" and trace.x]


def test_a_head_that_passes_only_the_test_with_matrices_is_not_counted(section_of):
    section = section_of(words_group(relatedness_p_family=np.full((LAYERS, HEADS), 0.06)))
    assert section.facts[1].startswith(BOTH_TESTS.format(0, f"all, L1H1 {STRICTER} 0.15"))
    passing = section_of(words_group(relatedness_p_family=np.full((LAYERS, HEADS), 0.05)))
    assert passing.facts[1].startswith(BOTH_TESTS.format(1, f"these, L1H0 {STRICTER} 0.10"))


def test_means_of_permuted_nouns_that_round_to_0_have_no_sign(section_of):
    means = {f"relatedness{which}_null_mean": np.full((LAYERS, HEADS), -0.001) for which in ("", "_random")}
    text = section_of(words_group(**means)).facts[1]
    assert "permuted nouns give 0.00 ± 1.00" in text
    assert "random matrices give 0.00 ± 1.00" in text


def test_sentences_name_the_subject_heads_and_the_keys_at_offsets(section):
    text = " ".join(section.facts)
    subjects = "Subject heads (the query of a noun gives its own key the largest score): in 2 of 6 heads this is so for"
    assert f"{subjects} more nouns than with permuted nouns (family-wise p of at most 0.05, n = 4 nouns)" in text
    assert "they are in layers 1 to 2, and their median share of nouns is 52 %" in text
    assert "The largest share is 75 %, of L1H1" in text
    assert (
        "Share of nouns with a spelling of themselves among the 5 tokens of the vocabulary that have the largest "
        "scores as their keys: largest 38 %, of L1H1; median over heads 8 %; random keys give 0.20 % (n = 4 nouns)."
    ) in text
    keys = (
        "Take the 5 tokens with the largest scores as keys of a noun at offset 0. The share of them that is still among"
    )
    assert f"{keys} the best at another offset, in the median head: 80 % at offset 1, 30 % at offset 4" in text


def test_figures_are_drawn_and_tables_are_in_the_order_of_the_lists(section):
    for figure in (*section.figures, *section.maps):
        assert figure.draw().data
    (dots,) = [trace for trace in section.maps[0].draw().data if trace.type == "scatter"]
    assert (dots.x, dots.y) == ((1,), (0,))
    keys, sums = section.tables
    assert keys.rows[0] == ["cat", "sun", "sea", "·cat0  ·cat1", "·cat0  ·cat1"]
    assert sums.columns == ["noun", "layer 0", "layer 1", "layer 2"]
    assert all(len(row) == 4 for row in sums.rows)


def test_runs_of_older_versions_and_runs_with_few_nouns_have_no_section():
    assert noun_sections(None, xr.Dataset(attrs={"tables": ["noun_keys"]})) == []
    assert noun_sections(None, group(relatedness_z=np.full((LAYERS, HEADS), np.nan))) == []


def test_a_model_without_biases_has_no_section_about_them():
    assert bias_sections(None, xr.Dataset(attrs={"tables": ["noun_keys"]})) == []


def test_heads_are_ordered_by_the_largest_score_of_their_biases(monkeypatch):
    rows = [
        (0, head, side, end, place, f" {side}{place}{end}", score + place)
        for side, score in (("query", 1.0), ("key", 5.0))
        for head in (0, 1)
        for end in ("top", "bottom")
        for place in (1, 0)
    ]
    table = pd.DataFrame(rows, columns=["layer", "head", "side", "end", "place", "token", "score"])
    table.loc[table["head"] == 1, "score"] += 2
    monkeypatch.setattr(words_biases, "read_words", lambda *_: table)
    (section,) = bias_sections(None, xr.Dataset(attrs={"tables": ["bias_tokens"]}))
    assert section.facts[0].startswith("Largest score that a bias adds to keys: 7, in L0H1 for the token “·key0top”")
    assert "median over 2 heads of the largest score of a token: 6." in section.facts[0]
    assert [row[0] for row in section.tables[0].rows] == ["L0H1", "L0H0", "L0H1", "L0H0"]
    assert section.tables[0].rows[0][2:] == ["·key0top  ·key1top", "·key0bottom  ·key1bottom"]


def test_composition_names_the_pairs_with_the_largest_scores(monkeypatch):
    score = np.full((3, 2, 2, 2, 2), np.nan)
    score[:, 0, :, 1, :] = [[0.1, 0.2], [0.3, 0.1]]
    dims = GROUPS["composition"].variables[0].dims
    labels = {
        "composition": ["q", "k", "v"],
        "layer": [4, 5],
        "head": [0, 1],
        "layer_other": [4, 5],
        "head_other": [0, 1],
    }
    monkeypatch.setattr(heads_composition, "finished_groups", lambda _: {"composition": "digest"})
    monkeypatch.setattr(heads_composition, "read_group", lambda *_: xr.Dataset({"score": (dims, score)}, labels))
    (section,) = composition_sections(None, 100)
    assert section.facts[0] == (
        "Largest Q-composition: 0.300, L4H1 into L5H0; median over n = 4 pairs of heads 0.150; random directions give "
        "about 0.100."
    )
    assert section.tables[0].rows[0] == ["L4H1 into L5H0: 0.300"] * 3
    assert len(section.tables[0].rows) == 4
    assert all(figure.draw().data for figure in section.maps)
    monkeypatch.setattr(heads_composition, "finished_groups", lambda _: {})
    assert composition_sections(None, 100) == []
