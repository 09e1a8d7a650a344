"""Check sentences, maps and tables about nouns, biases and composition from given results."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from theodolite.groups import GROUPS
from theodolite.groups.heads import sections_composition as heads_composition
from theodolite.groups.heads.sections_composition import composition_sections
from theodolite.groups.words import sections_biases as words_biases
from theodolite.groups.words import sections_nouns as words_nouns
from theodolite.groups.words.sections_biases import bias_sections
from theodolite.groups.words.sections_nouns import noun_sections

LAYERS, HEADS, NOUNS = 3, 2, ["cat", "dog", "sun", "sea"]


def group(relatedness_null, own_first_null, **values: np.ndarray) -> xr.Dataset:
    """Return the analysis `words` of a model with six heads; what is not given is 1.

    The nulls are given by their labels: (control, null) and null.
    """
    labels = {"layer": range(LAYERS), "head": range(HEADS), **GROUPS["words"].labels}
    shapes = {one: [len(labels[dim]) for dim in one.dims] for one in GROUPS["words"].variables}
    arrays = {one.name: (one.dims, values.get(one.name, np.ones(shape))) for one, shape in shapes.items()}
    attributes = {"nouns": len(NOUNS), "tokens": 5, "nouns_dropped": [], "own_keys_chance": 0.002}
    attributes["tables"] = ["noun_keys", "noun_values", "noun_alignment", "noun_scores", "noun_offsets"]
    words = xr.Dataset(arrays, {dim: list(of_dim) for dim, of_dim in labels.items()}, attributes)
    for (control, label), of_heads in relatedness_null.items():
        words["relatedness_null"].loc[{"control": control, "null": label}] = of_heads
    for label, of_heads in own_first_null.items():
        words["own_first_null"].loc[{"null": label}] = of_heads
    return words


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
    found = {"noun_scores": scores.assign(score=range(16), **names), "noun_keys": every_head(lists)}
    return {**found, "noun_values": lists, "noun_alignment": near, "noun_offsets": offsets}


def every_head(lists):
    """Return lists of noun_keys in every head of every layer, where no two nouns share a token."""
    heads = [lists.assign(layer=layer, head=head) for layer in range(LAYERS) for head in range(HEADS)]
    keys = pd.concat(heads, ignore_index=True)
    return keys.assign(token_id=10 * keys["noun_id"] + keys["place"]).iloc[::-1]


def rows_that_pass(table, filters):
    """Return the rows of a table of tests; a column that the table lacks has one value."""
    for column, operator, value in filters:
        if column in table:
            table = table[table[column].isin(value if operator == "in" else [value])]
    return table


def words_group(relatedness_null=None, own_first_null=None, **changed):
    """Return a group in which L1H0 and L1H1 pass the test with permuted nouns, and only L1H0 that with matrices."""
    p_family = np.full((LAYERS, HEADS), 1.0)
    p_family[1] = 0.01
    random_p = p_family.copy()
    random_p[1, 1] = 0.5
    z = np.arange(6.0).reshape(LAYERS, HEADS) * [[1], [5], [1]]
    null = {("permuted", "z"): z, ("permuted", "p_family"): p_family, ("random", "p_family"): random_p}
    null["random", "z"] = z / 2  # the stricter test
    first = np.array([[0.1, 0.0], [0.2, 0.75], [0.3, 0.1]])
    own_null = {"p_family": np.where(first > 0.25, 0.01, 1)}
    values = {"relatedness": z / 100, "own_first": first, "own_keys": first / 2}
    return group(null | (relatedness_null or {}), own_null | (own_first_null or {}), **{**values, **changed})


@pytest.fixture
def found():
    return tables(1, 1)


@pytest.fixture
def section_of(monkeypatch, found):
    monkeypatch.setattr(words_nouns, "read_words", lambda _, name, filters=(): rows_that_pass(found[name], filters))

    def made(words):
        (section,) = noun_sections(None, words)
        return section

    return made


@pytest.fixture
def section(section_of):
    return section_of(words_group())


BOTH_TESTS = (
    "In {} of 6 heads the relatedness is larger than with permuted nouns and larger than with random matrices of the "
    "same singular values (family-wise p of at most 0.05 in both tests). {} has two z, one for each test. The head "
    "whose smaller z is largest is {}. Its relatedness is {}, where permuted nouns give "
)
PASSING, ALL = "Each of these heads", "Each head"


def test_sentences_count_the_heads_that_pass_both_tests(section):
    assert section.facts[0] == (
        "Relatedness (mean rank correlation between similarity and score, n = 4 nouns): median over heads 0.04, from "
        "0.00 to 0.15 (all heads, also those that pass no test). Chance does not give 0: with permuted nouns, the "
        "mean relatedness of a head is between 1.00 and 1.00. The reason is nouns whose key has a large score for "
        "every query: if such nouns are similar to many others, the relatedness is above 0 even by chance; if they "
        "are similar to few, it is below 0."
    )
    assert section.facts[1] == (
        f"{BOTH_TESTS.format(1, PASSING, 'L1H0', '0.10')}1.00 ± 1.00 (z = 10.0, p = 0.01 over all heads) and "
        "random matrices give 1.00 ± 1.00 (z = 5.0, p = 0.01 over all heads)."
    )


def test_the_largest_z_of_all_heads_is_stated_if_none_passes_both_tests(section_of):
    random_p = np.array([[1.0, 1.0], [0.2, 0.3], [1.0, 1.0]])
    section = section_of(words_group({("random", "p_family"): random_p}))
    assert section.facts[1] == (
        f"{BOTH_TESTS.format(0, ALL, 'L1H1', '0.15')}1.00 ± 1.00 (z = 15.0, p = 0.01 over all heads) and "
        "random matrices give 1.00 ± 1.00 (z = 7.5, p = 0.3 over all heads)."
    )
    assert not [trace for trace in section.maps[0].draw().data if trace.type == "scatter" and trace.x]


def test_a_head_that_passes_only_the_test_with_matrices_is_not_counted(section_of):
    section = section_of(words_group({("permuted", "p_family"): 0.06}))
    assert section.facts[1].startswith(BOTH_TESTS.format(0, ALL, "L1H1", "0.15"))
    passing = section_of(words_group({("permuted", "p_family"): 0.05}))
    assert passing.facts[1].startswith(BOTH_TESTS.format(1, PASSING, "L1H0", "0.10"))


def test_means_of_permuted_nouns_that_round_to_0_have_no_sign(section_of):
    means = {(control, "mean"): -0.001 for control in ("permuted", "random")}
    text = section_of(words_group(means)).facts[1]
    assert "permuted nouns give 0.00 ± 1.00" in text
    assert "random matrices give 0.00 ± 1.00" in text


SUBJECTS = (
    "Share of nouns whose query gives the largest score to the noun's own key: above 50 % in 1 of 6 heads, and larger "
    "than with permuted nouns in {} (family-wise p of at most 0.05, n = 4 nouns; the stricter test, with random "
    "matrices, was not made){}. The largest share is 75 %, of L1H1; permuted nouns give 100.0 %."
)
OFFSETS = (
    "Take the 5 tokens with the largest scores as keys of a noun at offset 0. In the median head, this share of them "
    "is also among the 5 tokens with the largest scores at another offset: 80 % at offset 1, 30 % at offset 4 (a head "
    "without rotary positions has 100 % at every offset). Two different nouns share {} of these tokens at offset 0, "
    "in the median head. The numbers of each head are means over the first {} nouns."
)


KEYS_OF_OTHERS = (
    "Two comparisons: the tokens of a noun A contain a spelling of another noun B in {1} % of the pairs (A, B) ({0}; "
    "median head {2} %). If as many tokens are drawn at random for each noun, they contain a spelling of this noun "
    "for 0.20 % of the nouns (n = 4 nouns; the shares are not tested)."
)


def test_sentences_name_the_subject_heads_and_the_keys_at_offsets(section):
    passed = ". These 2 heads are in 2 of 3 layers; their median share is 52 %"
    assert section.facts[2:] == [
        SUBJECTS.format(2, passed),
        "For each noun as query, take the 5 tokens of the vocabulary with the largest scores as keys. Share of nouns "
        "for which a spelling of the noun (the noun as one token, in any case, with or without spaces) is among these "
        "tokens: largest 38 %, of L1H1; median over heads 7.5 %. " + KEYS_OF_OTHERS.format("L1H1", "0.0", "0.0"),
        OFFSETS.format("0.0 %", 4),
    ]


@pytest.mark.parametrize(
    ("others", "said"),
    [(1, " (1 other head has the same share)"), (2, " (2 other heads have the same share)")],
)
def test_other_heads_with_the_largest_share_are_counted(section_of, others, said):
    shares = np.zeros((LAYERS, HEADS))
    shares.flat[: others + 1] = 0.5
    facts = section_of(words_group(own_first=shares, own_keys=shares)).facts
    assert f"The largest share is 50 %, of L0H0{said}; permuted nouns" in facts[2]
    assert f"largest 50 %, of L0H0{said}; median over heads" in facts[3]


def test_keys_of_a_noun_that_are_spellings_of_another_are_counted(section_of, found):
    """In each head, " Dog" and "dog" are keys of the cat and "cat" one of the sun: 2 of 12 pairs of two nouns.

    L1H1 has a third pair: "sea" is a key of the sun. L0H0 has none.
    """
    keys = found["noun_keys"]
    spellings = {" cat0": " Dog", " cat1": "dog", " sun0": "cat", " sea0": " sea"}
    tokens = keys["token"].replace(spellings)
    tokens[(keys["layer"] == 1) & (keys["head"] == 1) & (tokens == " sun1")] = "sea"
    is_first = (keys["layer"] == 0) & (keys["head"] == 0)
    found["noun_keys"] = keys.assign(token=tokens.where(~is_first, keys["token"]))
    fact = section_of(words_group()).facts[3]
    assert fact.endswith("; median over heads 7.5 %. " + KEYS_OF_OTHERS.format("L1H1", "25.0", "16.7"))


def test_heads_that_find_no_more_nouns_than_with_permuted_nouns_have_no_layers(section_of):
    section = section_of(words_group(own_first_null={"p_family": 0.06}))
    assert section.facts[2] == SUBJECTS.format(0, "")


def test_the_keys_that_two_nouns_share_are_those_of_the_median_head(section_of, found):
    """Over all pairs of the four nouns, the heads have shares of 0, 1/12, 1/4, 1/3, 1/3 and 1."""
    shared = [
        *(([0, 1], [2, 3], [4, 5], [6, 7]), ([0, 1], [2, 3], [0, 1], [2, 3])),
        *(([0, 1], [2, 1], [4, 5], [6, 7]), ([0, 1], [1, 2], [2, 3], [4, 0])),
        *(([0, 1], [1, 2], [2, 3], [3, 0]), ([0, 1], [1, 0], [0, 1], [1, 0])),
    ]
    keys = found["noun_keys"].sort_values(["layer", "head", "noun_id", "place"])
    found["noun_keys"] = keys.assign(token_id=np.ravel(shared)).iloc[::-1]
    assert section_of(words_group()).facts[-1] == OFFSETS.format("29.2 %", 4)


def test_only_the_first_nouns_of_the_offsets_are_compared(section_of, found):
    keys = found["noun_keys"]
    found["noun_keys"] = keys.assign(token_id=np.where(keys["noun_id"] < 2, keys["place"], keys["token_id"]))
    assert section_of(words_group()).facts[-1] == OFFSETS.format("16.7 %", 4)
    found["noun_offsets"]["n"] = 2
    assert section_of(words_group()).facts[-1] == OFFSETS.format("100.0 %", 2)


def test_figures_are_drawn_and_tables_are_in_the_order_of_the_lists(section):
    for figure in (*section.figures, *section.maps):
        assert figure.draw().data
    (dots,) = [trace for trace in section.maps[0].draw().data if trace.type == "scatter"]
    assert (dots.x, dots.y) == ((1,), (0,))
    keys, sums = section.tables
    assert keys.caption == (
        "Nouns in L1H1, the head with the largest z against permuted nouns. Keys: the tokens with the largest scores "
        "as keys. Logits: those of the noun's embedding plus the head's value; the embedding alone favours the noun "
        "itself"
    )
    assert keys.columns == [
        *("noun", "most similar noun", "noun with the largest score", "keys", "tokens with the largest logits")
    ]
    assert sums.caption == (
        "Tokens with the largest logits, after the final norm, of e + norm(e)·ΣW_OV, where e is the noun's embedding, "
        "and the sum is over all heads of a layer. If the second term is short, as often in the first layer, the "
        "embedding determines the order, and favours the noun itself. Tokens with long embeddings have an advantage"
    )
    assert keys.rows[0] == ["cat", "sun", "sea", "·cat0  ·cat1", "·cat0  ·cat1"]
    assert sums.columns == ["noun", "layer 0", "layer 1", "layer 2"]
    assert all(len(row) == 4 for row in sums.rows)


def test_runs_with_few_nouns_have_no_section():
    assert noun_sections(None, words_group({("permuted", "z"): np.nan})) == []


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
