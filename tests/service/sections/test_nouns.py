"""Check sentences, maps and tables about nouns, biases and composition from given results."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from support.sentences import assert_says

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


def both_tests(passed, head, relatedness):
    return f"{passed} of 6 heads … relatedness … largest … {head} … {relatedness} … permuted nouns"


def test_sentences_count_the_heads_that_pass_both_tests(section):
    assert_says(
        section.facts[0], "n = 4 nouns … median over heads 0.04 … 0.00 to 0.15", "permuted nouns … 1.00 and 1.00"
    )
    tests = "1.00 ± 1.00 (z = 10.0, p = 0.01 … random matrices give 1.00 ± 1.00 (z = 5.0, p = 0.01"
    assert_says(section.facts[1], f"{both_tests(1, 'L1H0', '0.10')} … {tests}")


def test_the_largest_z_of_all_heads_is_stated_if_none_passes_both_tests(section_of):
    random_p = np.array([[1.0, 1.0], [0.2, 0.3], [1.0, 1.0]])
    section = section_of(words_group({("random", "p_family"): random_p}))
    tests = "1.00 ± 1.00 (z = 15.0, p = 0.01 … random matrices give 1.00 ± 1.00 (z = 7.5, p = 0.3"
    assert_says(section.facts[1], f"{both_tests(0, 'L1H1', '0.15')} … {tests}")
    assert not [trace for trace in section.maps[0].draw().data if trace.type == "scatter" and trace.x]


def test_a_head_that_passes_only_the_test_with_matrices_is_not_counted(section_of):
    section = section_of(words_group({("permuted", "p_family"): 0.06}))
    assert_says(section.facts[1], both_tests(0, "L1H1", "0.15"))
    passing = section_of(words_group({("permuted", "p_family"): 0.05}))
    assert_says(passing.facts[1], both_tests(1, "L1H0", "0.10"))


def test_means_of_permuted_nouns_that_round_to_0_have_no_sign(section_of):
    means = {(control, "mean"): -0.001 for control in ("permuted", "random")}
    facts = section_of(words_group(means)).facts
    assert_says(facts[1], "permuted nouns give 0.00 ± 1.00 … random matrices give 0.00 ± 1.00")


def subjects(passed):
    return f"above 50 % in 1 of 6 heads … permuted nouns in {passed} … n = 4 nouns … 75 %, of L1H1 … 100.0 %"


def offsets(shared, nouns):
    return f"5 tokens … 80 % at offset 1, 30 % at offset 4 … share {shared} … first {nouns} nouns"


def keys_of_others(share, median):
    return f"another noun … {share} % … pairs … L1H1; median head {median} % … random … 0.20 % … n = 4 nouns"


def test_sentences_name_the_subject_heads_and_the_keys_at_offsets(section):
    first, keys, at_offsets = section.facts[2:]
    assert_says(first, f"{subjects(2)}", "2 heads are in 2 of 3 layers … 52 %")
    assert_says(keys, f"5 tokens … largest 38 %, of L1H1; median over heads 7.5 % … {keys_of_others('0.0', '0.0')}")
    assert_says(at_offsets, offsets("0.0 %", 4))


@pytest.mark.parametrize(("others", "said"), [(1, "1 other head has"), (2, "2 other heads have")])
def test_other_heads_with_the_largest_share_are_counted(section_of, others, said):
    shares = np.zeros((LAYERS, HEADS))
    shares.flat[: others + 1] = 0.5
    facts = section_of(words_group(own_first=shares, own_keys=shares)).facts
    assert_says(facts[2], f"50 %, of L0H0 ({said} … permuted nouns")
    assert_says(facts[3], f"50 %, of L0H0 ({said} … median over heads")


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
    assert_says(fact, f"median over heads 7.5 % … {keys_of_others('25.0', '16.7')}")


def test_heads_that_find_no_more_nouns_than_with_permuted_nouns_have_no_layers(section_of):
    section = section_of(words_group(own_first_null={"p_family": 0.06}))
    assert_says(section.facts[2], subjects(0))
    assert "layers" not in section.facts[2]


def test_the_keys_that_two_nouns_share_are_those_of_the_median_head(section_of, found):
    """Over all pairs of the four nouns, the heads have shares of 0, 1/12, 1/4, 1/3, 1/3 and 1."""
    shared = [
        *(([0, 1], [2, 3], [4, 5], [6, 7]), ([0, 1], [2, 3], [0, 1], [2, 3])),
        *(([0, 1], [2, 1], [4, 5], [6, 7]), ([0, 1], [1, 2], [2, 3], [4, 0])),
        *(([0, 1], [1, 2], [2, 3], [3, 0]), ([0, 1], [1, 0], [0, 1], [1, 0])),
    ]
    keys = found["noun_keys"].sort_values(["layer", "head", "noun_id", "place"])
    found["noun_keys"] = keys.assign(token_id=np.ravel(shared)).iloc[::-1]
    assert_says(section_of(words_group()).facts[-1], offsets("29.2 %", 4))


def test_only_the_first_nouns_of_the_offsets_are_compared(section_of, found):
    keys = found["noun_keys"]
    found["noun_keys"] = keys.assign(token_id=np.where(keys["noun_id"] < 2, keys["place"], keys["token_id"]))
    assert_says(section_of(words_group()).facts[-1], offsets("16.7 %", 4))
    found["noun_offsets"]["n"] = 2
    assert_says(section_of(words_group()).facts[-1], offsets("100.0 %", 2))


def test_figures_are_drawn_and_tables_are_in_the_order_of_the_lists(section):
    for figure in (*section.figures, *section.maps):
        assert figure.draw().data
    (dots,) = [trace for trace in section.maps[0].draw().data if trace.type == "scatter"]
    assert (dots.x, dots.y) == ((1,), (0,))
    keys, sums = section.tables
    assert_says(keys.caption, "L1H1 … largest z")
    assert keys.rows[0] == ["cat", "sun", "sea", "·cat0  ·cat1", "·cat0  ·cat1"]
    assert [len(keys.columns), len(sums.columns)] == [5, 4]
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
    assert_says(section.facts[0], "7, in L0H1 … “·key0top” … median over 2 heads … 6")
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
    assert_says(section.facts[0], "Q-composition: 0.300, L4H1 into L5H0 … n = 4 pairs … 0.150 … random … 0.100")
    assert section.tables[0].rows[0] == ["L4H1 into L5H0: 0.300"] * 3
    assert len(section.tables[0].rows) == 4
    assert all(figure.draw().data for figure in section.maps)
    monkeypatch.setattr(heads_composition, "finished_groups", lambda _: {})
    assert composition_sections(None, 100) == []
